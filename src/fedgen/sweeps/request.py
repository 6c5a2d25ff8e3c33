"""What a sweep was asked for, checked once, and the configurations that follow from it."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from fedgen import toml
from fedgen.algorithms import ALGORITHMS
from fedgen.config import PER_ALGORITHM, TABLES, RunConfig, own_options, resolve
from fedgen.errors import FedgenError, unknown
from fedgen.files import read_text, write_whole
from fedgen.models import MODELS
from fedgen.sweeps.space import Axis, Range, Settings, combinations, parse_axis

METHODS = ("grid", "random", "halving")
SEEDS, FIRST_SEED, FINAL_SEEDS, KEEP = 3, 100, 10, 3  # the defaults
FILE = "sweep.toml"
# On the test set nothing is chosen, also no round.
FINAL: Settings = {"evaluate_on": "test", "patience": 0, "keep_best": False}
_MAY_CHANGE = {"final_seeds"}  # from one call to the next, since no configuration depends on it


@dataclass(frozen=True)
class Trial:
    """A configuration of one algorithm that is tried."""

    algorithm: str
    number: int  # among those of its algorithm, from 1
    settings: Settings
    config: RunConfig  # of the first seed

    @property
    def label(self) -> str:
        """Its settings in a line."""
        return label_of(self.algorithm, self.settings)

    def configs(self, seeds: Sequence[int]) -> list[RunConfig]:
        """The configuration of each seed, on held-out samples."""
        return [self.config.model_copy(update={"seed": seed}) for seed in seeds]


@dataclass(frozen=True)
class Request:
    """A sweep: the algorithms, what is tried of each and how often, and all settings that stay the same."""

    algorithms: tuple[str, ...]
    over: tuple[str, ...]
    method: str
    trials: int  # configurations of each algorithm; 0: every combination
    keep: int  # of method halving: of so many configurations one goes on
    seeds: int
    seed: int
    final_seeds: int
    settings: Mapping[str, Any]  # a layer
    own: Collection[str] = field(default=(), compare=False)  # what was given as an object (`resolve`)
    data: str = ""  # the checksum of one's own data
    network: str = ""  # that of a network which was given as an object

    @classmethod
    def of(
        cls,
        settings: Mapping[str, Any],
        over: Sequence[str],
        *,
        method: str | None = None,
        trials: int = 0,
        keep: int = KEEP,
        final_seeds: int = FINAL_SEEDS,
        own: Collection[str] = (),
    ) -> "Request":
        """Check what was asked for; `settings` is a layer with the algorithms and the first of the seeds."""
        base = resolve({"seeds": SEEDS, "seed": FIRST_SEED}, settings, {"evaluate_on": "validation"}, own=own)
        if base.partition_file:
            raise FedgenError("a sweep divides the data by its own seeds; leave partition_file out")
        if not over:
            raise FedgenError("nothing is swept; say over which settings, for example --over lr=0.01,0.03,0.1")
        ranges = any(isinstance(parse_axis(text), Range) for text in over)
        method = method or ("random" if ranges or trials else "grid")
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        if ranges and method == "grid":
            raise FedgenError("a grid takes lists of values (lr=0.01,0.1); for a range use --method random --trials N")
        if not trials and (ranges or method == "random"):
            raise FedgenError("say how many configurations of each algorithm are drawn: --trials 20")
        if set(range(final_seeds)) & set(base.run_seeds):
            raise FedgenError(
                f"the final seeds 0 to {final_seeds - 1} must be others than those of the sweep"
                f" ({base.seed} to {base.run_seeds[-1]}); give --seed {max(FIRST_SEED, final_seeds)}"
            )
        dropped = {"algorithms", "seed", "seeds", "evaluate_on"}
        kept = {key: value for key, value in settings.items() if key not in dropped}
        paths = {key: getattr(base, key) for key in ("dataset", "data_dir", "user_file") if kept.get(key)}
        return cls(
            base.algorithms, tuple(over), method, trials, keep, base.seeds, base.seed, final_seeds, kept | paths, own,
        )  # fmt: skip

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds that configurations are compared by."""
        return tuple(range(self.seed, self.seed + self.seeds))

    def axes(self, algorithm: str) -> list[Axis]:
        """What is swept of one algorithm: its own settings take the place of those for all."""
        found: dict[str, Axis] = {}
        for text in self.over:
            axis = parse_axis(text)
            section, name = _parts(axis.key)
            _check_key(axis.key, self.algorithms, self.method)
            if section in ("", "model", algorithm):
                common = section == algorithm and name in PER_ALGORITHM
                key = name if common else axis.key  # in a run of this algorithm alone it is the same
                if key in found and not common:
                    if section == "" and _said_for(algorithm, name, self.over):
                        continue
                    raise FedgenError(f"--over {key} is given twice; give all of its values at once")
                if isinstance(axis, Range):
                    axis = replace(axis, whole=_is_whole(self.config({}, algorithm), algorithm, key))
                found[key] = replace(axis, key=key)
        return list(found.values())

    def all_trials(self) -> dict[str, list[Trial]]:
        """The configurations of each algorithm."""
        return {
            algorithm: [
                Trial(algorithm, number, settings, self.config(settings, algorithm))
                for number, settings in enumerate(combinations(self.axes(algorithm), self.trials, self.seed), 1)
            ]
            for algorithm in self.algorithms
        }

    def config(self, settings: Mapping[str, Any], algorithm: str) -> RunConfig:
        """The configuration of one algorithm with these settings, for the first seed."""
        fixed = {"algorithms": [algorithm], "seed": self.seed, "seeds": 1, "evaluate_on": "validation"}
        return resolve(self.settings, fixed, settings, own=self.own)

    def finals(self, trial: Trial) -> list[RunConfig]:
        """The configuration of each final seed, on the test set: resolved anew, since there nothing is held out."""
        fixed = {"algorithms": [trial.algorithm], "seed": 0, "seeds": 1, **FINAL}
        config = resolve(self.settings, fixed, trial.settings, own=self.own)
        return [config.model_copy(update={"seed": seed}) for seed in range(self.final_seeds)]

    def write(self, folder: Path) -> None:
        """Keep what was asked for in the folder; one that holds another sweep is refused."""
        path, text = folder / FILE, self._text()
        if path.exists():
            changed = self._changed(tomllib.loads(read_text(path, "give another --out")))
            for key, what in (("data", "other data"), ("network", "another network")):
                if key in changed:
                    raise FedgenError(
                        f"{folder} holds a sweep that was made with {what} (by its checksum); give another --out"
                    )
            if changed:
                raise FedgenError(
                    f"{folder} holds a sweep that was asked for with other settings ({', '.join(changed)});"
                    " give another --out"
                )
        elif folder.exists() and any(folder.iterdir()):
            raise FedgenError(f"{folder} is not the folder of a sweep (no {FILE}); give another --out")
        write_whole(path, text.encode())

    def _text(self) -> str:
        names = [name for name in self.__dataclass_fields__ if name not in ("own", "settings")]
        asked = {name: getattr(self, name) for name in names} | {"own": sorted(self.own)}
        about = "What this sweep was asked for. `fedgen sweep --out` with this folder goes on where it is."
        return f"# {about}\n{toml.dumps({**asked, 'settings': dict(self.settings)})}"

    def _changed(self, before: Mapping[str, Any]) -> list[str]:
        now = tomllib.loads(self._text())
        before = {"own": now["own"], "network": "", **before}  # which folders of earlier versions lack
        keys = [key for key in {**now, **before} if key not in {*_MAY_CHANGE, "settings"}]
        settings = {**before.get("settings", {}), **now["settings"]}
        return [
            *(key for key in keys if now.get(key) != before.get(key)),
            *(key for key in settings if now["settings"].get(key) != before.get("settings", {}).get(key)),
        ]


def read_request(folder: Path) -> Request:
    """The sweep in a folder, to go on with it."""
    path = folder / FILE
    if not path.exists():
        raise FedgenError(
            f"nothing is swept, and {folder} holds no sweep to go on with;"
            " say over which settings, for example --over lr=0.01,0.03,0.1"
        )
    try:
        asked = tomllib.loads(read_text(path, "start the sweep anew in another folder"))
        of = {key: asked[key] for key in ("method", "trials", "keep", "final_seeds")}
        layer = {**asked["settings"], **{key: asked[key] for key in ("algorithms", "seeds", "seed")}}
        if asked.get("own"):
            raise FedgenError(f"the sweep in {folder} has its {asked['own'][0]} from Python; go on with it there")
        return Request.of(layer, asked["over"], **of)
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise FedgenError(f"{path} cannot be read ({error}); start the sweep anew in another folder") from error


def check_not_fixed(over: Sequence[str], fixed: Mapping[str, Any]) -> None:
    """Refuse a setting that is swept and given as well."""
    for text in over:
        key = parse_axis(text).key
        for name in fixed:
            if name == key or (name.endswith(f".{key}") and key in PER_ALGORITHM):
                raise FedgenError(f"{name} is given, and --over sweeps {key}; leave one of them out")


def label_of(algorithm: str, settings: Mapping[str, Any]) -> str:
    """An algorithm's settings in a line, without its own name."""
    shown = (f"{key.removeprefix(algorithm + '.')} {_shown(value)}" for key, value in settings.items())
    return ", ".join(shown) or "as given"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parts(key: str) -> tuple[str, str]:
    section, _, name = key.rpartition(".")
    return section, name


def _check_key(key: str, algorithms: Sequence[str], method: str) -> None:
    section, name = _parts(key)
    if section in ("dataset", "partition") or (not section and _says_what_is_learned(name)):
        raise FedgenError(f"{key} cannot be swept: with another value, scores are not comparable; give it by itself")
    if section and section != "model" and section not in algorithms:
        raise FedgenError(f"--over {key}: {section} is not among the algorithms here ({', '.join(algorithms)})")
    if key == "rounds" and method == "halving":
        raise FedgenError("rounds cannot be swept by halving, which itself gives poor configurations fewer rounds")


def _says_what_is_learned(name: str) -> bool:
    """Whether a setting is one of the task and not of how it is learned."""
    if name not in RunConfig.model_fields or name in TABLES:
        raise unknown("setting", name, set(RunConfig.model_fields) - set(TABLES))
    extra = RunConfig.model_fields[name].json_schema_extra
    panel = extra["panel"] if isinstance(extra, dict) else ""
    return name == "users" or panel in ("Run", "Evaluation") or (panel == "Data" and name != "model")


def _said_for(algorithm: str, name: str, over: Sequence[str]) -> bool:
    return any(parse_axis(text).key == f"{algorithm}.{name}" for text in over)


def _is_whole(config: RunConfig, algorithm: str, key: str) -> bool:
    """Whether a setting is a whole number."""
    section, name = _parts(key)
    if not section:
        annotation = RunConfig.model_fields[name].annotation
        return int in (annotation, *get_args(annotation))
    builder: Any = MODELS.find(config.model) if section == "model" else ALGORITHMS.find(algorithm)
    options = own_options(section, builder)
    return name in options and type(options[name].default) is int
