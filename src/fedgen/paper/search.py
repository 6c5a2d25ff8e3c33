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
from fedgen.paper.spec import Column, Experiment, Over, Settings, trial_name
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
    cells: dict[str, dict[str, Any]] = {row.name: {} for row in experiment.rows}
    found: Choices = {}
    for first in (row for row in experiment.rows if not row.chosen_with):
        rows = [row for row in experiment.rows if first.name in (row.name, row.chosen_with)]
        for column in experiment.columns:
            names = [trial_name(column, number) for number in range(experiment.trials)]
            config = configs[first.name, names[0]]
            tried = {row.name: [results["cells"][row.name][name] for name in names] for row in rows}
            complete = all(entry["status"] != "missing" for entries in tried.values() for entry in entries)
            number = _best(list(tried.values()), config.score) if complete else None
            for name, entries in tried.items():
                cells[name][column.name] = _shown(entries, number, config.score) if complete else _missing(config)
            if number is not None:
                settings = experiment.tried(first, column)[number]
                marked = _with_edges(settings, experiment.values(first, column))
                for name in tried:
                    cells[name][column.name]["settings"] = label_of(column.algorithm, marked)
                of_row = found.setdefault(config.dataset, {}).setdefault(f"T{config.local_steps}", {})
                of_row[column.algorithm] = _own(column, settings)
    columns = [{"name": c.name, "label": c.label, "algorithm": c.algorithm} for c in experiment.columns]
    return {**results, "columns": columns, "cells": cells, "baseline": experiment.baseline}, found


def _best(tried: list[list[dict[str, Any]]], score: str) -> int | None:
    """The number of the configuration with the highest mean of this score over the rows; the first of equal ones.

    None where each configuration diverged in some row.
    """
    by_number = list(zip(*(_means(entries, score) for entries in tried), strict=True))
    means = [-1.0 if None in of_rows else sum(of_rows) / len(of_rows) for of_rows in by_number]
    best = max(range(len(means)), key=means.__getitem__)
    return best if means[best] >= 0 else None


def _shown(entries: list[dict[str, Any]], number: int | None, score: str) -> dict[str, Any]:
    """What the table has of a column: the entry of this number, and the means of all."""
    means = _means(entries, score)
    if number is None:
        return {**entries[0], "published": None, "tried": means}
    kept = {key: value for key, value in entries[number].items() if key in _FEW}
    return {**kept, **entries[number]["metrics"][score], "published": None, "tried": means}


def _missing(config: RunConfig) -> dict[str, Any]:
    return {"id": "", "preset": config.preset, "status": "missing", "published": None}


def _means(entries: list[dict[str, Any]], score: str) -> list[Any]:
    """The mean score of each configuration; None where it diverged with any seed, or failed."""
    return [entry["metrics"][score]["mean"] if "metrics" in entry else None for entry in entries]


def _with_edges(settings: Settings, over: Over) -> Settings:
    """The settings, a number that is the highest or the lowest of those tried with an arrow: beyond may be better."""

    def marked(value: Any, tried: tuple[Any, ...]) -> Any:
        if isinstance(value, (bool, str)) or len(tried) < 2 or min(tried) < value < max(tried):
            return value
        return f"{value:g}{'↑' if value == max(tried) else '↓'}"

    return {key: marked(value, over[key]) for key, value in settings.items()}


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
