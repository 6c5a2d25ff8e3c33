"""Run folders, read back and grouped into tables of comparable runs."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedgen.config import PER_ALGORITHM, RunConfig
from fedgen.errors import FedgenError
from fedgen.files import read_json, read_text
from fedgen.runs.folder import RunFolder
from fedgen.runs.scores import Record, result
from fedgen.runs.stopping import stopped_at
from fedgen.version import __version__

_ADVICE = "run it again"  # where a file cannot be read
# What two runs of one table may have differently. Their algorithms' options are compared row by row.
_MAY_DIFFER = {"algorithms", "seed", "seeds", "data_dir", "plugins", "options", *PER_ALGORITHM}


@dataclass(frozen=True)
class Run:
    """One run folder."""

    path: Path
    config: RunConfig
    config_text: str
    version: str | None  # None where the run has not ended, as for the device
    device: Mapping[str, Any] | None
    results: Sequence[Record]  # as in summary.json; of a run that has not ended, from its metrics
    records: Sequence[Record]  # the evaluations
    users: int
    labels: Mapping[int, Sequence[Sequence[int]]]  # by seed: counts [user, label], where they were kept
    class_names: Sequence[str]  # of the labels, where they were kept

    @property
    def ended(self) -> bool:
        """Whether the run came to its end."""
        return self.version is not None


@dataclass
class Row:
    """An algorithm with its options: one row of a table, one curve."""

    algorithm: str
    options: Mapping[str, Any]
    label: str = ""
    variant: int = 0  # among the rows of this algorithm
    results: dict[int, Record] = field(default_factory=dict)  # by seed
    records: dict[int, list[Record]] = field(default_factory=dict)  # by seed


@dataclass
class Group:
    """Runs that may be compared: alike in dataset, preset, metric and every other setting that they share."""

    shared: Mapping[str, Any]
    runs: list[Run] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def config(self) -> RunConfig:
        """The first run's configuration: all runs agree in the settings that are shared."""
        return self.runs[0].config


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run."""
    return (path / "config.toml").exists()


def read_run(path: Path) -> Run:
    """A run folder, also of a run that has not ended."""
    folder = RunFolder(path)
    text = read_text(folder.config_file, _ADVICE)
    records = read_records(path)
    labels: dict[str, Any] = {"users": 0, "counts": {}}
    if folder.labels_file.exists():
        labels = read_json(folder.labels_file, _ADVICE)
    names: list[str] = []
    if folder.data_file.exists():
        names = read_json(folder.data_file, _ADVICE).get("class_names", [])
    try:
        config = RunConfig.model_validate(tomllib.loads(text))
        if folder.summary_file.exists():
            summary = folder.summary()
            version, device, results = summary["version"], summary.get("device"), summary["results"]
        else:
            version, device, results = None, None, results_so_far(config, records)
        counts = {int(seed): users for seed, users in labels["counts"].items()}
        return Run(path, config, text, version, device, results, records, int(labels["users"]), counts, names)
    except (ValidationError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise FedgenError(
            f"{path} is not a run folder that version {__version__} can read ({reason}); run it again"
        ) from error


def group(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that may be compared, and nothing else."""
    groups: list[Group] = []
    for run in runs:
        shared = _shared(run)
        home = next((g for g in groups if g.shared == shared), None)
        if home is None:
            home = Group(shared)
            groups.append(home)
        home.runs.append(run)
        _add_rows(home, run)
    for one in groups:
        _name_rows(one)
        _tell_unfinished(one)
        _tell_devices(one)
    return groups


def differing(groups: Sequence[Group]) -> list[str]:
    """The settings in which groups differ."""
    keys = list(dict.fromkeys(key for one in groups for key in one.shared))
    return [key for key in keys if any(one.shared.get(key) != groups[0].shared.get(key) for one in groups)]


def _shared(run: Run) -> dict[str, Any]:
    values = run.config.model_dump(mode="json")
    shared = {key: value for key, value in values.items() if key not in _MAY_DIFFER}
    for section in ("dataset", "model", "partition"):
        shared |= {f"{section}.{key}": value for key, value in values["options"].get(section, {}).items()}
    shared |= {key: origin for key, origin in values["plugins"].items() if not key.startswith("algorithm ")}
    return {**shared, "version": run.version or __version__}


def _add_rows(home: Group, run: Run) -> None:
    common = {key: getattr(run.config, key) for key in PER_ALGORITHM}
    for algorithm in run.config.algorithms:
        plugin = run.config.plugins.get(f"algorithm {algorithm}")
        options = {**common, **run.config.of(algorithm), **({"plugin": plugin} if plugin else {})}
        row = next((r for r in home.rows if r.algorithm == algorithm and r.options == options), None)
        if row is None:
            row = Row(algorithm, options)
            home.rows.append(row)
        for seed in run.config.run_seeds:
            found = next((r for r in run.results if r["algorithm"] == algorithm and r["seed"] == seed), None)
            if found is None:
                continue
            if seed in row.results:
                same = found["curve"] == row.results[seed]["curve"]
                what = "repeats another run exactly" if same else "differs from another run with the same settings"
                home.notices.append(f"{algorithm}, seed {seed}: {run.path} {what}; the first given is shown.")
                continue
            row.results[seed] = found
            row.records[seed] = [r for r in run.records if r["algorithm"] == algorithm and r["seed"] == seed]
            if "stopped_at" in found:
                best = f"; its best evaluation was at round {found['best']['round']}" if "best" in found else ""
                home.notices.append(f"{algorithm}, seed {seed}: stopped early, at round {found['stopped_at']}{best}.")
            if found["diverged_at"]:
                home.notices.append(
                    f"{algorithm}, seed {seed}: diverged at round {found['diverged_at']}, so {algorithm} has no mean."
                )


def _tell_unfinished(one: Group) -> None:
    for run in one.runs:
        if not run.ended:
            going = [r for r in run.results if not r["diverged_at"] and "stopped_at" not in r]
            begun = {(r["algorithm"], r["seed"]): r["rounds"] for r in going}
            wanted = len(run.config.algorithms) * run.config.seeds
            halfway = [f"{a} (seed {s}) is at round {r}" for (a, s), r in begun.items() if r < run.config.rounds]
            states = [*halfway, f"{wanted - len(run.results)} of {wanted} runs are not begun"]
            one.notices.append(f"{run.path} has not ended: {', '.join(states)}; of such there is no score.")


def _name_rows(one: Group) -> None:
    for algorithm in {row.algorithm for row in one.rows}:
        variants = [row for row in one.rows if row.algorithm == algorithm]
        keys = sorted({key for row in variants for key in row.options})
        differ = [key for key in keys if any(row.options.get(key) != variants[0].options.get(key) for row in variants)]
        for number, row in enumerate(variants):
            row.variant = number
            settings = ", ".join(f"{key} = {row.options.get(key, 'none')}" for key in differ)
            row.label = f"{algorithm} ({settings})" if settings else algorithm
        if algorithm == "fedavg" and len(variants) > 1:
            one.notices.append("FedAvg is here with several settings, so no difference to it is shown.")
    seeds = {frozenset(row.results) for row in one.rows}
    if len(seeds) > 1:
        one.notices.append("The algorithms were not all run with the same seeds; differences need the same ones.")


def _tell_devices(one: Group) -> None:
    devices = {json.dumps(run.device, sort_keys=True) for run in one.runs if run.device is not None}
    if len(devices) > 1:
        one.notices.append("These runs were made on different devices or with different versions of JAX (see below).")


def results_so_far(config: RunConfig, records: Sequence[Record]) -> list[Record]:
    """The results of an unfinished run: a finished algorithm has its score, another only a curve."""
    results = []
    for algorithm, seed in dict.fromkeys((r["algorithm"], r["seed"]) for r in records):
        own = [r for r in records if r["algorithm"] == algorithm and r["seed"] == seed]
        diverged = next((r["diverged_at"] for r in own if "diverged_at" in r), None)
        good, stopped = [r for r in own if "diverged_at" not in r], stopped_at(own)
        about = {"algorithm": algorithm, "seed": seed, "rounds": own[-1]["round"], "diverged_at": diverged}
        about |= {} if stopped is None else {"stopped_at": stopped}
        numbers = result(good, config.rounds if stopped is None else stopped)
        if stopped is None and own[-1]["round"] < config.rounds:  # a score of fewer rounds is not comparable
            numbers = {**dict.fromkeys(numbers), "curve": numbers["curve"]}
        results.append({**about, **numbers})
    return results


def read_records(folder: Path) -> list[Record]:
    """The evaluations of a run, as far as it is."""
    path = RunFolder(folder).metrics_file
    if not path.exists():
        return []
    lines = read_text(path, _ADVICE).splitlines(keepends=True)
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]  # the last may be half-written
    except ValueError as error:
        raise FedgenError(f"{path} cannot be read: {error}") from error
