"""The tables of a sweep: the best of each algorithm, and all configurations by rank."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedgen.report.comparison import compare, score_text
from fedgen.report.runs import Row
from fedgen.report.styles import style_of
from fedgen.report.table import Cell, Column, Difference, Number, Table, Text, without_empty
from fedgen.runs.scores import Record
from fedgen.sweeps.results import Results, best_of


def scored_on(results: Results) -> str:
    """What configurations are compared by, in words."""
    return score_text(results["score"], "validation")


def best_table(results: Results, between: str = ", ") -> Table:
    """The best configuration of each algorithm, how many it was chosen from, and how it did on the test set.

    Its settings have `between` between them: in a narrow terminal the end of a line.
    """
    columns = [
        Column("algorithm", number=False),
        Column("tried", "how many configurations"),
        Column("best settings", number=False),
        Column("held out", f"{scored_on(results)}; mean ± standard deviation over seeds", optional=2),
        Column("test", f"{score_text(results['score'], 'test')}; mean ± standard deviation over other seeds"),
        Column("vs fedavg", "on the test set, paired by seed, with its 95 % interval", optional=1),
        Column("rounds", "of all configurations and seeds", optional=3),
    ]
    best = best_of(results)
    tested = {row["algorithm"]: row for row in (results["final"] or {"table": []})["table"]}
    rows: list[Sequence[Cell]] = []
    for one in results["algorithms"]:
        entry, final = best[one["algorithm"]], tested.get(one["algorithm"], {})
        rows.append(
            [
                Text(one["algorithm"], style=style_of(one["algorithm"])),
                Number(one["tried"], form="d"),
                Text(entry["label"].replace(", ", between) if entry else "none is left"),
                Number(entry["mean"], entry["std"]) if entry else Number(None),
                Number(final.get("mean"), final.get("std")),
                Difference(final.get("diff_to_fedavg"), final.get("diff_ci95")),
                Number(one["rounds"], form=",d"),
            ]
        )
    return without_empty(Table(columns, rows, about=scored_on(results)))


def ranking(results: Results, one: Mapping[str, Any], most: int | None = None) -> Table:
    """The configurations of an algorithm, the best first."""
    name = one["algorithm"]
    entries = one["configurations"]
    keys = list(entries[0]["settings"])
    early = any(entry["stopped_early"] for entry in entries)
    eventful = any(_state(entry) for entry in entries)
    columns = [
        Column("rank"),
        *(Column(key.removeprefix(f"{name}."), number=_is_number(entries, key)) for key in keys),
        Column("held out", f"{scored_on(results)}; mean ± standard deviation over seeds"),
        Column("vs best", "paired by seed, with its 95 % interval", optional=2),
        *([Column("rounds", "after which it was compared last")] if early else []),
        *([Column("", "what happened", number=False, optional=1)] if eventful else []),
    ]
    rows: list[Sequence[Cell]] = []
    for entry in entries[:most]:
        to_best = entry["to_best"] or {}
        rows.append(
            [
                Number(entry["rank"], form="d"),
                *(_value(entry["settings"][key]) for key in keys),
                Number(entry["mean"], entry["std"]),
                Difference(to_best.get("mean"), to_best.get("interval")),
                *([Number(entry["rounds"], form="d")] if early else []),
                *([Text(_state(entry))] if eventful else []),
            ]
        )
    return without_empty(Table(columns, rows, title=name, about=scored_on(results)))


def final_table(results: Results, rows: Sequence[Record]) -> Table:
    """The best configurations on the test set, compared as those of a run are, but for the time that they took."""
    found: dict[str, Row] = {}
    for row in rows:
        name = row["algorithm"]
        found.setdefault(name, Row(name, {}, name)).results[row["seed"]] = row
    table = compare(list(found.values()), results["score"])
    kept = [place for place, column in enumerate(table.columns) if column.title != "train s"]
    columns, cells = [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=columns, rows=cells)


def _is_number(entries: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(isinstance(entry["settings"][key], int | float) for entry in entries)


def _value(value: Any) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(value, form="d" if isinstance(value, int) else "g")
    return Text(str(value))


def _state(entry: Mapping[str, Any]) -> str:
    if entry["failed"]:
        return f"failed: {entry['failed']}"
    if entry["diverged_at"]:
        return "diverged: " + ", ".join(f"seed {seed} at round {at}" for seed, at in entry["diverged_at"].items())
    return "stopped early" if entry["stopped_early"] else ""
