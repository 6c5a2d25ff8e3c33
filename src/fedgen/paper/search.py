"""The outcome of a search: the best configuration of each algorithm, and the file that the preset `tuned` reads."""

import tomllib
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from fedgen import toml
from fedgen.config import PER_ALGORITHM, RunConfig
from fedgen.files import write_whole
from fedgen.paper.results import Results
from fedgen.paper.spec import Column, Experiment, Settings, trial_name
from fedgen.presets import TUNED, Choices
from fedgen.sweeps.request import label_of

FILE = "tuned.toml"
_ABOUT = """\
# What the preset `tuned` sets, by dataset, local steps and algorithm: chosen on held-out training images, never on
# the test set. `fedgen reproduce tuning` writes this file.

"""
_FEW = {"id", "preset", "status", "n", "mean", "std", "values", "metrics", "bytes_per_round", "official_data"}


def best_of_each(
    experiment: Experiment, results: Results, configs: Mapping[tuple[str, str], RunConfig]
) -> tuple[Results, Choices]:
    """The results with the best of each column's configurations in its place; and what these are, for `tuned`.

    A column of which a configuration is still missing has no best: it would have had a smaller budget.
    """
    cells: dict[str, dict[str, Any]] = {}
    found: Choices = {}
    for row in experiment.rows:
        cells[row.name] = {}
        for column in experiment.columns:
            names = [trial_name(column, number) for number in range(experiment.trials)]
            config = configs[row.name, names[0]]
            entry, number = _best([results["cells"][row.name][name] for name in names], config.score)
            cells[row.name][column.name] = entry
            if number is not None:
                settings = experiment.tried(row, column)[number]
                entry["settings"] = label_of(column.algorithm, settings)
                of_row = found.setdefault(config.dataset, {}).setdefault(f"T{config.local_steps}", {})
                of_row[column.algorithm] = _own(column, settings)
    columns = [{"name": c.name, "label": c.label, "algorithm": c.algorithm} for c in experiment.columns]
    return {**results, "columns": columns, "cells": cells, "baseline": experiment.baseline}, found


def _best(entries: list[dict[str, Any]], score: str) -> tuple[dict[str, Any], int | None]:
    """The entry with the highest mean of this score, and its number; the first of equal ones."""
    means = [entry["metrics"][score]["mean"] if "metrics" in entry else None for entry in entries]
    if any(entry["status"] == "missing" for entry in entries):
        return {"id": "", "preset": entries[0]["preset"], "status": "missing", "published": None}, None
    if all(mean is None for mean in means):
        return {**entries[0], "published": None, "tried": means}, None
    number = max(range(len(means)), key=[-1.0 if mean is None else mean for mean in means].__getitem__)
    kept = {key: value for key, value in entries[number].items() if key in _FEW}
    return {**kept, **entries[number]["metrics"][score], "published": None, "tried": means}, number


def _own(column: Column, settings: Settings) -> Settings:
    """The settings of a configuration that are its algorithm's own, without its name."""
    prefix = f"{column.algorithm}."
    every = {**column.settings, **settings}
    return {k.removeprefix(prefix): v for k, v in every.items() if k.startswith(prefix) or k in PER_ALGORITHM}


def write_choices(folder: Path, found: Choices) -> None:
    """Write `tuned.toml`: what was found, and for the rest what the folder's has, or the preset."""
    earlier = folder / FILE
    every = tomllib.loads(earlier.read_text(encoding="utf-8")) if earlier.exists() else deepcopy(TUNED)
    for dataset, by_steps in found.items():
        for steps, of_each in by_steps.items():
            every.setdefault(dataset, {}).setdefault(steps, {}).update(of_each)
    write_whole(folder / FILE, (_ABOUT + toml.dumps(every)).encode())
