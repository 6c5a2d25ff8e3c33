"""From the cells of an experiment to its results: for each row and column our number beside the published one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedgen.config import RunConfig
from fedgen.grid.store import Cell, identity, rounded
from fedgen.paper.ranks import rank_all
from fedgen.paper.results import FORMAT, FULL_TEST, Results, accuracy_axis
from fedgen.paper.spec import Column, Experiment, Figure, Row
from fedgen.runs.scores import LAST_ROUNDS, mean_and_std, mean_interval, score_of

_SLICES = "accuracy_authors_best5"
FIGURE_POINTS = 40  # of a learning curve in the file; the cells have all
METRICS = {
    "accuracy": "accuracy on the full test set, %, mean of the last 10 rounds"
    " (where there is no global model: the mean of the users' own)",
    "matching": "accuracy of the users, each on its own label distribution, %, mean of the last 10 rounds",
    "rounds": "rounds until the accuracy on the full test set first reaches the target",
    "time": "time of a client's local training, FedAvg = 1: the median of repeats, ± as their quartiles tell it",
}


def assemble(
    experiment: Experiment,
    configs: Mapping[tuple[str, str], RunConfig],
    cells: Mapping[str, Cell],
    failures: Mapping[str, str],
    *,
    preset: str,
    quick: bool,
    overrides: Mapping[str, Any] | None = None,
    times: Mapping[str, Sequence[float]] | None = None,
) -> Results:
    """An experiment's results: for each row and column our number, the published one and the difference.

    `configs` are by row and column, `cells` and `failures` by identity; `times` are by column.
    """
    got = {place: cells.get(identity(config)) for place, config in configs.items()}
    entries: dict[str, dict[str, Any]] = {}
    sliced, labels_alone = _rows_by_slices(got)
    for row in experiment.rows:
        entries[row.name] = {}
        for column in experiment.columns:
            config, cell = configs[row.name, column.name], got[row.name, column.name]
            entry: dict[str, Any] = {"id": identity(config), "preset": config.preset}
            if cell is None:
                error = failures.get(entry["id"])
                entry |= {"status": "failed", "error": error} if error else {"status": "missing"}
            else:
                against = _against(experiment, row, column, got)
                entry |= _entry(experiment, row, cell, against, by_slices=row.name in sliced)
                entry["official_data"] = _is_official(cell)
                if times is not None:
                    entry["time_ratio"] = _typical(times[column.name])
            published = row.published.get(column.name)
            entry["published"] = _published(published)
            entries[row.name][column.name] = entry
    present = [cell for cell in got.values() if cell is not None]
    scored_on = _scored_on(configs.values())
    tested, older = _by_the_authors(experiment, sliced, labels_alone)
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "preset": preset,
        "quick": quick,
        "overrides": dict(overrides or {}),
        "metric": experiment.metric,
        "metric_label": METRICS[experiment.metric].replace(FULL_TEST, scored_on),
        "also": list(experiment.also),
        "baseline": experiment.baseline,
        "notes": [*experiment.notes, *_notes(present), *older, *_whole_runs(experiment, configs)],
        "authors_test_on": tested,
        "versions": sorted({cell["version"] for cell in present}),
        "devices": sorted({f"{cell['device']['kind']} ({cell['device']['platform']})" for cell in present}),
        "seeds": sorted({len(cell["results"]) for cell in present}),
        "rounds": sorted({cell["config"]["rounds"] for cell in present}),
        "rows": [{"name": row.name, "label": row.label, "target": row.target, "x": row.x} for row in experiment.rows],
        "columns": [{"name": c.name, "label": c.label, "algorithm": c.algorithm} for c in experiment.columns],
        "cells": entries,
        "scored_on": scored_on,
        **({"ranks": rank_all(experiment, entries)} if experiment.ranks else {}),
        "figures": [
            _figure(experiment, figure, entries, got, accuracy_axis(scored_on)) for figure in experiment.figures
        ],
    }


def _scored_on(configs: Iterable[RunConfig]) -> str:
    validation = any(config.evaluate_on == "validation" for config in configs)
    return "held-out training images" if validation else FULL_TEST


def _entry(experiment: Experiment, row: Row, cell: Cell, against: Cell | None, *, by_slices: bool) -> dict[str, Any]:
    values = scores_of(cell, experiment.metric, row.target)
    entry: dict[str, Any] = {"status": "done", "metrics": {}}
    diverged = [r["seed"] for r in cell["results"] if r["diverged_at"]]
    if diverged:
        entry |= {"status": "diverged", "error": f"diverged with seed {', '.join(map(str, diverged))}"}
    entry |= _statistics(values)
    entry["reached"] = sum(value is not None for value in values.values())
    results = cell["results"]
    if not by_slices:
        results = [{key: value for key, value in result.items() if key != _SLICES} for result in results]
    for metric in ("accuracy", "authors", "seen", "matching"):
        entry["metrics"][metric] = _statistics({r["seed"]: score_of(r, metric) for r in results})
    first = cell["results"][0]
    entry["bytes_per_round"] = first["bytes_up"] + first["bytes_down"]
    if against is not None:
        baseline = scores_of(against, experiment.metric, row.target)
        pairs = [(values[s], baseline.get(s)) for s in values]
        if pairs and all(a is not None and b is not None for a, b in pairs):
            differences = [a - b for a, b in pairs if a is not None and b is not None]
            low_high = mean_interval(differences)
            entry["difference"] = {"mean": rounded(float(np.mean(differences))), "interval": rounded(low_high)}
    return entry


def scores_of(cell: Cell, metric: str, target: float | None = None) -> dict[int, float | None]:
    """A cell's number for each seed; None where it diverged or never reached the target."""
    if metric != "rounds":
        score = "matching" if metric == "matching" else "accuracy"
        return {row["seed"]: score_of(row, score) for row in cell["results"]}
    assert target is not None
    return {row["seed"]: rounds_to(cell["rounds"], row["curve"], target) for row in cell["results"]}


def rounds_to(rounds: Sequence[int], curve: Sequence[float], target: float) -> float | None:
    """The first evaluated round at which the curve is at the target or above; None if it never is."""
    return next((float(r) for r, value in zip(rounds, curve, strict=False) if value >= target), None)


def _against(
    experiment: Experiment, row: Row, column: Column, got: Mapping[tuple[str, str], Cell | None]
) -> Cell | None:
    """The cell that a difference is taken to: in the baseline column, or in the baseline row."""
    place = (experiment.baseline, column.name)
    if place not in got:
        place = (row.name, experiment.baseline)
    return got[place] if place != (row.name, column.name) else None


def _statistics(values: Mapping[int, float | None]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; none if a seed has no value, since the others' mean would be too good."""
    mean, std = mean_and_std(list(values.values()))
    return {
        "n": len(values),
        "mean": rounded(mean),
        "std": rounded(std),
        "values": {str(seed): rounded(value) for seed, value in values.items()},
    }


def _typical(ratios: Sequence[float]) -> dict[str, Any]:
    """The median, and a standard deviation estimated from the quartiles: robust against outliers by other load."""
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    return {"n": len(ratios), "mean": rounded(float(middle)), "std": rounded(float(high - low) / 1.349)}


def _published(value: tuple[float, float] | str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return {"mean": None, "std": None, "text": value}
    return {"mean": value[0], "std": value[1]}


def _figure(
    experiment: Experiment,
    figure: Figure,
    entries: Mapping[str, Mapping[str, Any]],
    got: Mapping[tuple[str, str], Cell | None],
    y_label: str,
) -> dict[str, Any]:
    series = []
    for name in figure.columns or tuple(c.name for c in experiment.columns):
        one: dict[str, Any] = {"name": name, "label": experiment.column(name).label}
        if figure.kind != "lines":
            one |= _curve(got[figure.rows[0], name], over_bytes=figure.kind == "bytes")
        else:
            done = [row for row in figure.rows if entries[row][name].get("mean") is not None]
            numbers = [entries[row][name] for row in done]
            one["x"] = [experiment.row(row).x for row in done]
            one["y"] = [entry["mean"] for entry in numbers]
            one["low"] = [entry["mean"] - (entry["std"] or 0) for entry in numbers]
            one["high"] = [entry["mean"] + (entry["std"] or 0) for entry in numbers]
            published = [(experiment.row(r).x, experiment.row(r).published.get(name)) for r in figure.rows]
            one["published"] = [[x, p[0]] for x, p in published if isinstance(p, tuple)]
        series.append(one)
    return {
        "name": figure.name,
        "title": figure.title,
        "kind": figure.kind,
        "x_label": figure.x_label,
        "y_label": y_label,
        "log": figure.log,
        **({"whole": True} if figure.whole else {}),
        "series": [one for one in series if one["x"]],
    }


def _curve(cell: Cell | None, *, over_bytes: bool) -> dict[str, Any]:
    """A cell's mean over seeds, and the range, at no more than so many rounds; the last is among them.

    `over_bytes`: over the megabytes that all active users have sent and received by then.
    """
    if cell is None:
        return {"x": [], "y": [], "low": [], "high": []}
    length = min(len(row["curve"]) for row in cell["results"])  # a run that diverged has fewer
    curves = np.array([row["curve"][:length] for row in cell["results"]])
    step = max(-(-length // FIGURE_POINTS), 1)
    kept = np.arange(length - 1, -1, -step)[::-1]
    first = cell["results"][0]
    megabytes = (first["bytes_up"] + first["bytes_down"]) / 1e6
    return {
        "x": [rounded(cell["rounds"][i] * megabytes) if over_bytes else cell["rounds"][i] for i in kept],
        "y": rounded(curves[:, kept].mean(axis=0).tolist()),
        "low": curves[:, kept].min(axis=0).tolist(),
        "high": curves[:, kept].max(axis=0).tolist(),
    }


# Training and test images of the official splits; CelebA's are those with which the paper's numbers were made.
_OFFICIAL = {"mnist": (60_000, 10_000), "emnist": (124_800, 20_800)}


def _is_official(cell: Cell) -> bool:
    return (cell["data"]["train"], cell["data"]["test"]) == _OFFICIAL.get(cell["config"]["dataset"])


def _rows_by_slices(got: Mapping[tuple[str, str], Cell | None]) -> tuple[set[str], set[str]]:
    """The rows of which every cell knows the slices that the authors test on, and those with older cells."""
    there = {row for (row, _), cell in got.items() if cell is not None}
    older = {
        row
        for (row, _), cell in got.items()
        if cell is not None and any(_SLICES not in result for result in cell["results"])
    }
    return there - older, older


def _by_the_authors(experiment: Experiment, sliced: set[str], labels_alone: set[str]) -> tuple[str, list[str]]:
    """What the authors' metric tests on, and a note where some rows differ."""
    if not sliced:
        return "labels", []
    older = [row.label for row in experiment.rows if row.name in labels_alone]
    note = f"The authors' metric takes all test images of a user's labels in these rows: {'; '.join(older)}."
    shown = experiment.metric == "accuracy" and "authors" in experiment.also
    return "their slices of the labels", [note] if older and shown else []


def _whole_runs(experiment: Experiment, configs: Mapping[tuple[str, str], RunConfig]) -> list[str]:
    """A note on the rows whose runs have no more rounds than the score is a mean of."""
    short = {row for (row, _), config in configs.items() if 1 < config.rounds <= LAST_ROUNDS}
    labels = [row.label for row in experiment.rows if row.name in short]
    if not labels or experiment.metric not in ("accuracy", "matching"):
        return []
    return [f"A mean over the whole run, its beginning too, since it has no more rounds: {'; '.join(labels)}."]


def _notes(cells: Sequence[Cell]) -> list[str]:
    """What a reader must know to compare the numbers with the paper's."""
    notes = []
    sizes: dict[str, set[tuple[int, int]]] = {}
    for cell in cells:
        sizes.setdefault(cell["config"]["dataset"], set()).add((cell["data"]["train"], cell["data"]["test"]))
    for dataset, found in sorted(sizes.items()):
        for train, test in sorted(found):
            if dataset == "celeba":
                notes.append(
                    f"CelebA here is not the whole dataset in its official split: {train:,} training and {test:,} test"
                    " images, where the paper does not say which it used. Compare algorithms within a row, not our"
                    " numbers with the paper's."
                )
            elif (train, test) != _OFFICIAL.get(dataset, (train, test)):
                notes.append(
                    f"{dataset.upper()} here is not the official split: {train:,} training and {test:,} test images"
                    f" instead of {_OFFICIAL[dataset][0]:,} and {_OFFICIAL[dataset][1]:,}, so its numbers are"
                    " comparable with the paper's only with care."
                )
        if len(found) > 1:
            notes.append(f"The cells of {dataset} were computed from different files: do not compare them.")
    return notes
