"""Tables for the terminal."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgen.report.figures import heading

Row = dict[str, Any]
Rows = list[Row]

SCORES = {
    "accuracy": "accuracy on the full test set, mean of the last 10 rounds",
    "authors": "the authors' metric: labels a user trained on, mean of the 5 best rounds",
    "seen": "accuracy on the labels a user trained on, mean of the last 10 rounds",
    "matching": "accuracy on each user's own label distribution, mean of the last 10 rounds",
}
_ABSENT = "–"

# title -> the cell, from a row of the summary's table and the results behind it
_COLUMNS: dict[str, Callable[[Row, Rows], str]] = {
    "score": lambda row, _: _number(row["mean"]),
    "± std": lambda row, _: _number(row["std"]),
    "vs fedavg": lambda row, _: _number(row["diff_to_fedavg"], "+.2f"),
    "95 % interval": lambda row, _: "{:+.2f} … {:+.2f}".format(*row["diff_ci95"]) if row["diff_ci95"] else _ABSENT,
    "full test": lambda _, results: _number(_average(results, "accuracy")),
    "users' own": lambda _, results: _number(_average(results, "accuracy_users")),
    "seen labels": lambda _, results: _number(_average(results, "accuracy_seen_labels")),
    "MB/round": lambda _, results: _number((results[0]["bytes_up"] + results[0]["bytes_down"]) / 1e6),
    "train s": lambda _, results: _number(sum(r["seconds_train"] for r in results), ".0f"),
}
_LEAVE_OUT_FIRST = ("MB/round", "users' own", "train s", "seen labels", "± std")


def comparison(summary: Row, console: Console) -> Table:
    """The algorithms of a run beside each other; a narrow terminal gets fewer columns, not torn ones."""
    results = {
        row["algorithm"]: [r for r in summary["results"] if r["algorithm"] == row["algorithm"]]
        for row in summary["table"]
    }
    cells = {
        title: [cell(row, results[row["algorithm"]]) for row in summary["table"]] for title, cell in _COLUMNS.items()
    }
    if summary["config"]["score"] == "accuracy":
        del cells["full test"]  # it is the score
    shown = [title for title, column in cells.items() if any(value != _ABSENT for value in column)]
    table = _draw(summary, cells, shown)
    for title in _LEAVE_OUT_FIRST:
        unlimited = console.options.update_width(10_000)
        if console.measure(table, options=unlimited).maximum <= console.width:
            break
        shown = [name for name in shown if name != title]
        table = _draw(summary, cells, shown)
    return table


def _draw(summary: Row, cells: dict[str, list[str]], shown: list[str]) -> Table:
    config = summary["config"]
    title = f"{heading(config)}\n{SCORES[config['score']]}"
    table = Table(title=escape(title), title_justify="left")
    table.add_column("algorithm", no_wrap=True)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for i, row in enumerate(summary["table"]):
        table.add_row(row["algorithm"], *(cells[name][i] for name in shown))
    return table


def _average(results: Rows, key: str) -> float | None:
    values = [r[key] for r in results if r[key] is not None]
    return sum(values) / len(values) if values else None


def _number(value: float | None, form: str = ".2f") -> str:
    return _ABSENT if value is None else format(value, form)
