"""The table of a run: its algorithms beside each other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Table as Grid

from fedgen.report.figures import heading
from fedgen.report.runs import Row
from fedgen.report.styles import style_of
from fedgen.report.table import Cell, Column, Difference, Number, Table, Text, without_empty
from fedgen.report.terminal import terminal
from fedgen.runs.scores import Record, table

_SCORES = {
    "accuracy": "accuracy on {scored}, mean of the last 10 rounds",
    "authors": "the authors' metric: slices of the labels a user trained on, mean of the 5 best rounds",
    "seen": "accuracy on the labels a user trained on, mean of the last 10 rounds",
    "matching": "accuracy on each user's own label distribution, mean of the last 10 rounds",
}
_BESIDE = {  # the other scores: key of a result -> its column
    "accuracy": Column("full test", "global model, {scored}, last 10 rounds", optional=1),
    "accuracy_users": Column("users' own", "mean of the users' own models, {scored}, last 10 rounds", optional=4),
    "accuracy_seen_labels": Column("seen labels", "each user on the labels it trained on, last 10 rounds", optional=2),
    "accuracy_seen_labels_best5": Column(
        "seen, best 5", "each user on the labels it trained on, mean of the 5 best rounds", optional=6
    ),
    "accuracy_authors_best5": Column(
        "authors'", "the authors' metric: slices of seen labels, mean of the 5 best rounds", optional=5
    ),
    "accuracy_matching": Column("matching", "each user on its own label distribution, last 10 rounds", optional=7),
}
HELD_OUT = "held-out training samples"
_SCORED = {"test": "the full test set", "validation": HELD_OUT}


def score_text(score: str, evaluate_on: str) -> str:
    """What a score is, in words."""
    return _SCORES[score].format(scored=_SCORED[evaluate_on])


def comparison(summary: Mapping[str, Any], width: int) -> list[Grid]:
    """The table of a finished run, for a terminal so wide."""
    rows: dict[str, Row] = {}
    for result in summary["results"]:
        name = result["algorithm"]
        rows.setdefault(name, Row(name, {}, name)).results[result["seed"]] = result
    score, evaluate_on = summary["config"]["score"], summary["config"]["evaluate_on"]
    title = f"{heading(summary['config'])}\n{score_text(score, evaluate_on)}"
    return terminal(compare(list(rows.values()), score, evaluate_on), width, title)


def compare(
    rows: Sequence[Row],
    score: str,
    evaluate_on: str = "test",
    published: Mapping[str, tuple[float, float]] | None = None,
    source: str = "",
) -> Table:
    """Algorithms by their score, with the difference to FedAvg, their other scores and costs.

    `published` are mean and standard deviation by algorithm, by the authors' metric; `source` says where from.
    """
    published = published or {}
    labelled = [{**r, "algorithm": row.label} for row in rows for r in row.results.values()]
    compared = {row["algorithm"]: row for row in table(labelled, score)}
    said = score_text(score, evaluate_on)
    beside = {
        key: _of(column, evaluate_on) for key, column in _BESIDE.items() if (key, score) != ("accuracy", "accuracy")
    }
    columns = [
        Column("algorithm", number=False),
        Column("score", said + "; mean ± standard deviation over seeds"),
        Column(
            "vs fedavg",
            "paired by seed, with its 95 % interval; filled where that excludes zero, grey where one seed has none",
        ),
        Column("published", source),
        Column("ours − published", "the score less the published number"),
        *beside.values(),
        Column("ε", _privacy_said(rows)),
        Column("seeds", optional=8),
        Column("MB/round", "sent up and down by all active users in a round", optional=5),
        Column("train s", "seconds of training, all seeds", optional=3),
    ]
    cells: list[list[Cell]] = []
    for row in rows:
        results = list(row.results.values())
        numbers = compared.get(row.label, {})
        mean, (theirs, theirs_std) = numbers.get("mean"), published.get(row.algorithm, (None, None))
        gain = None if mean is None or theirs is None else mean - theirs
        cells.append(
            [
                Text(row.label, style=style_of(row.algorithm, row.variant)),
                Number(mean, numbers.get("std")),
                Difference(numbers.get("diff_to_fedavg"), numbers.get("diff_ci95"), repeated=len(results) > 1),
                Number(theirs, theirs_std),
                Difference(gain, alike=score == "authors", repeated=len(results) > 1),
                *(Number(_mean(results, key)) for key in beside),
                Number(epsilon(results), form=".3g"),
                Number(len(results), form="d"),
                Number(traffic(results)),
                Number(_total(results, "seconds_train"), form=".1f"),
            ]
        )
    note = _no_global_model(rows)
    if published:
        same = "Here the score is that metric too."
        other = "The score here is another metric, so the differences to them have no colour."
        note += f"{source} {same if score == 'authors' else other}"
    return without_empty(Table(columns, cells, about=said, note=note))


def _of(column: Column, evaluate_on: str) -> Column:
    """A column of another score, said of the samples that it is of."""
    title = "held out" if evaluate_on == "validation" and column.title == "full test" else column.title
    return replace(column, title=title, hint=column.hint.format(scored=_SCORED[evaluate_on].removeprefix("the ")))


def traffic(results: Sequence[Record]) -> float | None:
    """Megabytes in a round, up and down, of all active users."""
    first = next((r for r in results if r.get("bytes_up") is not None), None)
    return (first["bytes_up"] + first["bytes_down"]) / 1e6 if first else None


def epsilon(results: Sequence[Record]) -> float | None:
    """The differential privacy of a user's whole data, present or absent: the greatest ε of any seed."""
    return max((r["privacy"]["epsilon"] for r in results if r.get("privacy")), default=None)


def _privacy_said(rows: Sequence[Row]) -> str:
    deltas = sorted({r["privacy"]["delta"] for row in rows for r in row.results.values() if r.get("privacy")})
    delta = " or ".join(f"{value:g}" for value in deltas)
    return f"differential privacy of a user's whole data, present or absent, at δ = {delta}" if deltas else ""


def _no_global_model(rows: Sequence[Row]) -> str:
    local = [
        row.label for row in rows if any(r["accuracy"] is None and r["accuracy_users"] for r in row.results.values())
    ]
    return f"No global model: {', '.join(local)}. There the users' own models are scored. " if local else ""


def _mean(results: Sequence[Record], key: str) -> float | None:
    values = [r.get(key) for r in results if not r.get("diverged_at")]
    present = [v for v in values if v is not None]
    return float(np.mean(present)) if present and len(present) == len(results) else None


def _total(results: Sequence[Record], key: str) -> float | None:
    values = [r[key] for r in results if r.get(key) is not None]
    return float(sum(values)) if values else None
