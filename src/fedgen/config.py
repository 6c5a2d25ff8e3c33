"""The configuration of a run: layers of settings, resolved and checked once, written so that it can be repeated.

Layers from weakest to strongest: the defaults in the code, the preset, a TOML file, the command line. A
layer is flat: `rounds` is a setting of the run, `fedgen.w` one of an algorithm, `model.latent` and
`partition.min_samples` of the model and the partition. In TOML the latter are tables: `[options.fedgen]`.
"""

import inspect
import tomllib
from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from fedgen import toml
from fedgen.algorithms import ALGORITHMS
from fedgen.core.settings import Federation, NotNegative, Positive, Rate, WholeNumber, setting
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS, loader_of, own_path
from fedgen.errors import FedgenError, unknown
from fedgen.models import MODELS
from fedgen.presets import PRESETS, ROBUST, doubts, layers_of
from fedgen.registry import Registry, check_origin, is_absent, needs_key, options_of

Layer = Mapping[str, Any]


class RunConfig(Federation):
    """Everything that decides the result of a run."""

    preset: str = setting(
        "paper", "Run", "where settings that are not given come from: paper, reference or tuned (see `fedgen list`)"
    )
    algorithms: tuple[str, ...] = setting(
        ("fedgen", "fedavg"), "Run", "an algorithm: a name of `fedgen list`, or module:function of your own"
    )
    seeds: Positive = setting(1, "Run", "how many repetitions, each with its own partition")
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = setting(
        0, "Run", "the seed of all draws; repetitions have the following ones"
    )
    at_once: WholeNumber = setting(
        0,
        "Run",
        "how many users a device trains at once (0: one on a CPU, on a GPU what its memory holds); 20 make a network of"
        " a few thousand parameters twice as fast on a CPU (docs/performance.md)",
    )

    dataset: str = setting(
        "mnist",
        "Data",
        "the data: a name of `fedgen list`, module:function, or the path of your own: an .npz, CSV or Parquet"
        " file, a folder of those, of idx files, or with images in a folder for each class",
    )
    label: str = setting("label", "Data", "the column of a table (CSV, Parquet) that has the labels")
    user: str = setting(
        "", "Data", "the column of a table that has the natural user of each sample; partition is then natural"
    )
    channels: Literal["auto", "last", "first"] = setting(
        "auto",
        "Data",
        "where the channels of your own arrays are: last, as in [height, width, channel], or first; auto: last, but"
        " what looks like first is refused",
    )
    max_value: Annotated[int, Field(ge=0, le=65535, strict=True)] = setting(
        0,
        "Data",
        "the stored value of white in your own images or arrays of 8 or 16 bits, as 4095 for 12 of them (0: 255, or of"
        " 16 bits the largest value of as many bits as the training samples use)",
    )
    data_dir: str = setting(
        "",
        "Data",
        "where the dataset's files are, if neither in $FEDGEN_DATA nor where `fedgen data download` puts them",
    )
    user_file: str = setting(
        "", "Data", "a text or .npy file with the user of each training sample, for the partition natural"
    )
    model: str = setting("cnn", "Data", "the network: a name of `fedgen list`, or module:function of your own")
    partition: str = setting("dirichlet", "Data", "how the data is divided among the users (see `fedgen list`)")
    partition_file: str = setting(
        "", "Data", "a .json or .npz file with the partition; where it does not exist, it is written"
    )
    alpha: Rate = setting(
        0.1, "Data", "Dirichlet parameter of the partition: the smaller, the more different the users"
    )
    train_fraction: Annotated[float, Field(gt=0, le=1)] = setting(
        0.5, "Data", "the fraction of the training set that users get"
    )
    class_limit: bool = setting(
        False,
        "Data",
        "as in the authors' code, no class has more samples than a user's fair share of all (docs/data.md)",
    )
    proxy_limit: Positive = setting(50_000, "Data", "the maximum number of unlabelled samples at the server")

    active: Positive = setting(10, "Federation", "how many users train in a round")

    dp_delta: Annotated[float, Field(gt=0, lt=1)] = setting(
        1e-5, "Privacy", "differential privacy: the delta for which epsilon is reported"
    )

    eval_every: Positive = setting(5, "Evaluation", "rounds between evaluations")
    evaluate_on: Literal["test", "validation"] = setting(
        "test",
        "Evaluation",
        "what models are tested on: test, or validation: samples of the training set that no user holds",
    )
    validation: WholeNumber = setting(
        5000, "Evaluation", "how many samples are kept for validation (0: as many as are left, but at most 5000)"
    )
    score: Literal["accuracy", "authors", "seen", "matching"] = setting(
        "accuracy", "Evaluation", "the headline number: accuracy, authors, seen or matching (docs/data.md, Test sets)"
    )
    headline: Literal["auto", "global", "users"] = setting(
        "auto",
        "Evaluation",
        "whose accuracy is reported: the global model's, the users' own models', or auto: as the algorithm intends",
    )
    score_users: Positive = setting(100, "Evaluation", "the maximum number of users whose own models are evaluated")
    patience: WholeNumber = setting(
        0,
        "Evaluation",
        "end an algorithm's run after so many evaluations without a better score; needs evaluate_on validation"
        " (0: never)",
    )
    keep_best: bool = setting(
        False,
        "Evaluation",
        "keep the model of the best evaluation beside the last one, as patience does; needs evaluate_on validation",
    )
    plugins: dict[str, str] = Field(
        default={}, description="where algorithms, models, datasets and partitions come from that are not built in"
    )
    options: dict[str, dict[str, Any]] = Field(
        default={}, description="options of the algorithms, the model, the dataset and the partition"
    )

    @property
    def keeps_best(self) -> bool:
        """Whether the best evaluation's model is kept beside the last."""
        return self.keep_best or self.patience > 0

    def of(self, section: str) -> dict[str, Any]:
        """The options of an algorithm, of the dataset, the model or the partition."""
        return self.options.get(section, {})

    @property
    def run_seeds(self) -> tuple[int, ...]:
        """The seeds, one for each repetition."""
        return tuple(range(self.seed, self.seed + self.seeds))


def doubts_of(config: RunConfig) -> list[str]:
    """What a user should know of the preset's values in this run, a sentence for each thing."""
    steps = 0 if config.local_epochs else config.local_steps
    return doubts(config.dataset, steps, config.algorithms) if config.preset == "tuned" else []


READING = ("label", "user", "channels", "max_value")  # how one's own files are read
TABLES = ("plugins", "options")  # fields that are tables, not settings

# The sections of options that are no algorithm's, and which of their builder's options are settings of the run.
_PASSED = {"dataset": ("data_dir",), "model": (), "partition": ("alpha",)}

# Settings of the run that one algorithm may have differently: they concern its own training only.
PER_ALGORITHM = tuple(
    name
    for name, field in RunConfig.model_fields.items()
    if isinstance(field.json_schema_extra, dict) and field.json_schema_extra["per_algorithm"]
)


# A stored configuration without one of these is of a version that had no such setting, and computed this.
BEFORE: Layer = {"max_update": 0.0, "max_against": 0.0}


def resolve(*layers: Layer, own: Container[str] = ()) -> RunConfig:
    """The complete configuration that these layers (weakest first) give, over the preset they name.

    `own` names what the caller passes as an object ("dataset", "model"): their names need not be registered.
    """
    layers = tuple(_one_name_each(layer) for layer in layers)
    chosen: dict[str, Any] = {}
    for layer in layers:
        _check_preset_stays(chosen, layer)
        chosen.update(layer)
    preset = chosen.get("preset", "paper")
    if preset not in PRESETS:
        raise unknown("preset", str(preset), PRESETS)
    natural = {"partition": "natural"} if chosen.get("user") else {}

    flat: dict[str, Any] = {}
    for layer in (*layers_of(preset, chosen), natural, *map(_with_robust, layers)):
        for key in layer:
            if key in PER_ALGORITHM:  # said for all, it also replaces what a weaker layer said for one
                flat = {k: v for k, v in flat.items() if not k.endswith(f".{key}") or k.split(".")[0] in _PASSED}
        flat.update(layer)

    settings = {key: value for key, value in flat.items() if "." not in key}
    for key in settings:
        if key not in RunConfig.model_fields or key == "options":
            raise unknown("setting", key, set(RunConfig.model_fields) - set(TABLES))
    config = checked(RunConfig, settings, "")
    place = None if "dataset" in own else own_path(config.dataset)
    _check_reading(config, is_path=place is not None)
    if place is not None:
        config = config.model_copy(update={"dataset": str(place)})  # so that the run can be repeated from elsewhere
    paths = {key: getattr(config, key) for key in ("data_dir", "user_file", "partition_file")}
    config = config.model_copy(update={k: str(Path(v).expanduser().resolve()) for k, v in paths.items() if v})
    config = config.model_copy(update={"plugins": dict(_plugins(config, own))})
    if not config.algorithms:
        raise FedgenError("no algorithm is given; name at least one with --algorithm")
    if len(set(config.algorithms)) < len(config.algorithms):
        raise FedgenError(f"an algorithm is given twice in {', '.join(config.algorithms)}; name each once")
    if config.active > config.users:
        raise FedgenError(f"{config.active} active users of {config.users}: active must be at most users")
    if config.evaluate_on != "validation" and (config.patience or config.keep_best):
        chooser = "patience" if config.patience else "keep_best"
        raise FedgenError(
            f"{chooser} chooses a model by its score, and the test set must not choose; add --evaluate-on validation"
        )

    builders = _builders(config, own)
    given: dict[str, dict[str, Any]] = {}
    for path, value in flat.items():
        if "." in path:
            section, key = path.rsplit(".", 1)
            if section not in builders and section not in ALGORITHMS:
                raise unknown("section", section, {*builders, *ALGORITHMS})
            given.setdefault(section, {})[key] = value
    options = {}
    for section in dict.fromkeys([*builders, *config.algorithms, *given]):
        builder = builders[section] if section in builders else ALGORITHMS[section]
        options[section] = _options(section, builder, given.get(section, {}))
    used = (*builders, *config.algorithms)
    return config.model_copy(update={"options": {section: options[section] for section in used}})


def _check_reading(config: RunConfig, *, is_path: bool) -> None:
    """Refuse settings that would count for nothing: those of how files are read, without files of one's own."""
    given = [key for key in READING if getattr(config, key) != RunConfig.model_fields[key].default]
    if given and not is_path:
        raise FedgenError(
            f"{given[0]} says how your own files are read, and dataset '{config.dataset}' is not the path of any; leave"
            " it out" + (", or did you mean --users?" if given[0] == "user" else "")
        )
    if config.user and config.user_file:
        raise FedgenError("user names a column of users and user_file a file of them; give one of the two")


def _plugins(config: RunConfig, own: Container[str]) -> Iterator[tuple[str, str]]:
    """Where what is not built in comes from; it must be what the configuration names, where it names any."""
    names: list[tuple[str, str, Registry[Any]]] = [
        ("dataset", config.dataset, DATASETS),
        *(("algorithm", name, ALGORITHMS) for name in config.algorithms),
        ("model", config.model, MODELS),
        ("partition", config.partition, PARTITIONERS),
    ]
    for kind, name, registry in names:
        if kind in own or (kind == "dataset" and own_path(name) is not None):
            continue
        key = f"{kind} {name}"
        wanted = config.plugins.get(key)
        try:
            found = registry.origin(name)
        except FedgenError as error:
            if wanted is not None and is_absent(name, error):
                check_origin(kind, name, wanted, None)
            raise
        if wanted is not None:
            check_origin(kind, name, wanted, found)
        if found:
            yield key, found


def changes(config: RunConfig) -> dict[str, Any]:
    """The settings and options that differ from the defaults in the code, flat."""
    changed = config.model_dump(mode="json", exclude={"options"}, exclude_defaults=True)
    known = config.dataset in DATASETS or own_path(config.dataset) is not None
    builders = _builders(config, {*(() if config.model in MODELS else ("model",)), *(() if known else ("dataset",))})
    for section, options in config.options.items():
        builder = builders[section] if section in builders else ALGORITHMS[section]
        defaults = {name: parameter.default for name, parameter in options_of(builder).items()}
        changed |= {f"{section}.{k}": v for k, v in options.items() if k not in defaults or v != defaults[k]}
    return changed


def _builders(config: RunConfig, own: Container[str]) -> dict[str, Callable[..., Any]]:
    """What takes the options of the sections that are no algorithms."""
    return {
        "dataset": _no_options if "dataset" in own else loader_of(config.dataset),
        "model": _no_options if "model" in own else MODELS.find(config.model),
        "partition": PARTITIONERS.find(config.partition),
    }


def _with_robust(layer: Layer) -> Layer:
    """The layer, with what goes with robust aggregation where it asks for that: stronger than what was said before."""
    return {**ROBUST, **layer} if layer.get("aggregation", "mean") != "mean" else layer


def _one_name_each(layer: Layer) -> Layer:
    """The layer with `partition.alpha` under its usual name."""
    return {"alpha" if key == "partition.alpha" else key: value for key, value in layer.items()}


def _check_preset_stays(weaker: Layer, layer: Layer) -> None:
    """Refuse a preset over a file that has another one's values written out: it would change nothing but the name."""
    before, after = weaker.get("preset"), layer.get("preset")
    if before is None or after is None or before == after:
        return
    written = sorted(set(weaker) & {key for preset in PRESETS.values() for key in preset})
    if written:
        raise FedgenError(
            f"the configuration file has preset '{before}' and its values ({written[0]} ...) written out;"
            f" start from preset '{after}' without that file, or leave these values out of it"
        )


def _no_options() -> None:
    """The builder in place of a dataset or a model that the caller passes as an object."""


def own_options(section: str, builder: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a builder, less those that it gets from the run: its settings, and a network's random key."""
    passed = (*_PASSED.get(section, ()), *(("key",) if section == "model" and needs_key(builder) else ()))
    found = {name: value for name, value in options_of(builder).items() if name not in passed}
    taken = [] if section in _PASSED else [name for name in found if name in RunConfig.model_fields]
    if taken:
        raise FedgenError(
            f"algorithm '{section}' has an option '{taken[0]}', and that is a setting of the run; give the option"
            f" another name, for example 'server_{taken[0]}'"
        )
    return found


def _options(section: str, builder: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a builder: the given ones, checked, and the defaults of its signature."""
    shared = () if section in _PASSED else PER_ALGORITHM
    schema = _schema(section, builder, tuple(name for name in shared if name in given))
    for key in given:
        if key not in schema.model_fields:
            raise unknown(f"option of {section}", key, {*schema.model_fields, *shared})
    values = checked(schema, given, f"{section}.").model_dump()
    return {key: value for key, value in values.items() if value is not None}


@lru_cache(maxsize=256)  # making a model takes longer than all the rest, and a grid needs the same for each cell
def _schema(section: str, builder: Callable[..., Any], shared: tuple[str, ...]) -> type[BaseModel]:
    """The options of a builder, and settings of the run that it has for itself."""
    fields: dict[str, Any] = {
        name: (type_of(parameter), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in own_options(section, builder).items()
    }
    of_run = {name: RunConfig.model_fields[name] for name in shared}
    fields |= {name: (field.rebuild_annotation(), field.default) for name, field in of_run.items()}
    return create_model(section, __config__=ConfigDict(extra="forbid"), **fields)


def type_of(parameter: inspect.Parameter) -> Any:
    """A parameter's type: floats are finite, and numbers are not negative unless they say more."""
    annotation, default = parameter.annotation, parameter.default
    if annotation is parameter.empty:  # a plug-in need not annotate
        annotation = Any if default is None or default is parameter.empty else type(default)
    if get_origin(annotation) is Literal or isinstance(default, bool) or default is None:
        return annotation
    if isinstance(default, float):
        bounds = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
        return Annotated[float, Field(allow_inf_nan=False), *bounds] if bounds else NotNegative
    if isinstance(default, int):
        return Annotated[annotation, Field(strict=True)] if annotation is not int else WholeNumber
    return annotation


def checked(schema: type[BaseModel], values: Mapping[str, Any], prefix: str) -> Any:
    """The values as the schema's object; the first that does not fit is an error that names it."""
    try:
        return schema(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = prefix + ".".join(str(part) for part in first["loc"] if isinstance(part, str))
        what = first["msg"].replace("Input should be ", "must be ").replace("Input ", "")
        what = what.replace("a valid tuple", f"a list, as {[first['input']]}").split(", unable to parse")[0]
        raise FedgenError(f"{where} {what}, not {first['input']!r}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a layer."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedgenError(f"configuration {path} cannot be read: {error}") from error
    return layer_of(content, path)


def layer_of(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The content of a TOML file as a layer; `path` is for error messages."""
    layer = {key: value for key, value in content.items() if key != "options"}
    options = content.get("options", {})
    if not isinstance(options, dict):
        raise FedgenError(f"configuration {path}: options must be tables, as [options.fedgen]")
    for section, table in options.items():
        if not isinstance(table, dict):
            raise FedgenError(f"configuration {path}: options.{section} must be a table, as [options.{section}]")
        layer |= {f"{section}.{key}": value for key, value in table.items()}
    nested = [key for key, value in layer.items() if isinstance(value, dict) and "." not in key and key != "plugins"]
    if nested:
        raise FedgenError(f"configuration {path}: write [options.{nested[0]}] instead of [{nested[0]}]")
    return layer


def parse_setting(text: str) -> tuple[str, Any]:
    """`key=value` of the command line; the value is read as TOML where it is that, else as a word."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise FedgenError(f"--set takes key=value, for example fedgen.beta=1, not '{text}'")
    try:
        return key, tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return key, value


def to_toml(config: RunConfig) -> str:
    """The resolved configuration as a TOML file; reading it back gives the same configuration."""
    plugins = {"plugins": config.plugins} if config.plugins else {}
    return toml.dumps({**config.model_dump(exclude=set(TABLES)), **plugins, "options": config.options})


def to_commented_toml(config: RunConfig, without: Container[str] = ()) -> str:
    """The same for people: each setting under a comment that describes it; `without` names settings to leave out."""
    entries: list[tuple[str, dict[str, Any]]] = [
        (str(about.description), {name: getattr(config, name)})
        for name, about in RunConfig.model_fields.items()
        if name not in TABLES and name not in without
    ]
    if config.plugins:
        entries.append((str(RunConfig.model_fields["plugins"].description), {"plugins": config.plugins}))
    for section, options in config.options.items():
        if options and section not in without:
            is_documented = section in ALGORITHMS and not ALGORITHMS.origin(section)
            page = f" (docs/algorithms/{section.rstrip('+')}.md)" if is_documented else ""
            entries.append((f"options of {section}{page}", {"options": {section: options}}))
    return toml.dumps_commented(entries)
