"""The tables of an experiment: the same grid with different numbers in its cells, ours and the published."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.markup import escape
from rich.table import Table as Grid

from fedgen.paper.published import PUBLISHED
from fedgen.paper.results import AUTHORS, Results, caveats, differs
from fedgen.paper.theory import over_users
from fedgen.report.styles import styles_of
from fedgen.report.table import ABSENT, Cell, Column, Difference, Number, Table, Text
from fedgen.report.terminal import terminal

Entry = Mapping[str, Any]  # of one row and column
Fill = Callable[[str, Entry], Cell]  # makes a cell from the row's name and the entry
_MOST_COLUMNS = 10  # a grid with more is transposed


def tables(results: Results) -> list[Table]:
    """All tables of an experiment, the main one first."""
    if "prototype" in results:
        return [_prototype(results["prototype"])]
    if "theory" in results:
        return [_theory(results["theory"])]
    if "labels" in results:
        return [_labels(results["labels"])] if results["labels"] else []
    return _views(results)


def terminal_tables(results: Results, width: int) -> list[str | Grid]:
    """The main table for a terminal, between its title and its notes."""
    quick = ": [yellow]a look, not a result[/yellow]" if results["quick"] else ""
    printed = any(entry.get("published") for row in results.get("cells", {}).values() for entry in row.values())
    label = f"\n{results['metric_label']}{'; grey: published' * printed}" if "metric_label" in results else ""
    title = f"[bold]{escape(results['title'])}[/bold], preset {results['preset']}{differs(results)}{quick}"
    main = [grid for table in tables(results)[:1] for grid in terminal(table, width)]
    return [title + escape(label), *main, *(f"[dim]{escape(note)}[/dim]" for note in caveats(results))]


def _views(results: Results) -> list[Table]:
    entries = [entry for row in results["cells"].values() for entry in row.values()]
    metric, less = results["metric"], results["metric"] == "rounds"
    names = {one["name"]: one["label"] for one in (*results["rows"], *results["columns"])}
    base = names.get(results["baseline"], results["baseline"])
    published, paired = (any(entry.get(key) for entry in entries) for key in ("published", "difference"))
    made: list[Table] = []

    def add(title: str, about: str, fill: Fill, note: str = "") -> None:
        made.append(_grid(results, fill, title, about, note))

    about = _sentence(results["metric_label"])
    if metric == "time":
        add("Time of local training", about, lambda row, e: _time(results, row, e))
        about = "Accuracy on the full test set, %, mean of the last 10 rounds"
        add("Accuracy, %, full test set", about, lambda _, e: _number(e, _metric(e, "accuracy")))
    elif published:
        note = f"{PUBLISHED} The reproduced one is another here, so the differences have no colour."
        note += " The view of the authors' metric compares like with like." if metric == "accuracy" else ""
        add("Reproduced, the published below", about, lambda _, e: _number(e, e, e["published"], less=less), note)
    else:
        title = f"Reproduced, the difference to {base} below" if paired else "Reproduced"
        add(title, about, lambda _, e: _number(e, e, difference=_paired(e, less)))
    if paired:
        title = f"Paired difference to {base}"
        add(title, f"{title}, with its 95 % interval", lambda _, e: _paired(e, less) or Difference(None))
    also = results.get("also", ["authors"]) if any("metrics" in entry for entry in entries) else []
    if metric == "matching" and "accuracy" in also:
        about = "Accuracy on the full test set, %, mean of the last 10 rounds"
        add("Accuracy, %, full test set", about, lambda _, e: _number(e, _metric(e, "accuracy")))
    if metric == "accuracy" and "authors" in also:
        about = _sentence(AUTHORS.format(results.get("authors_test_on", "labels")))
        note = f"{about}. In colour where the data are the paper's."
        add("The authors' metric", about, _by_the_authors, note)
    if metric == "rounds":
        about = "Megabytes sent and received by all active users until then"
        add("Megabytes until then", about, lambda _, e: _megabytes(e))
    if any("settings" in entry for entry in entries):
        about = "The chosen settings; of several values tried ↑ is the highest and ↓ the lowest"
        add("The chosen settings", about, lambda _, e: Text(e.get("settings", _why_not(e))))
    if results.get("ranks", {}).get("rows"):
        made.append(_ranks(results))
        about = "Megabytes that all active users send and receive in a round"
        add("Megabytes of a round", about, lambda _, e: _megabytes_of_a_round(e))
    return made


def _ranks(results: Results) -> Table:
    """Each column's rank over all complete rows, the best first."""
    ranks, styles = results["ranks"]["columns"], styles_of(results["columns"])
    lines: list[list[Cell]] = []
    for column in sorted(results["columns"], key=lambda column: ranks[column["name"]]["rank"]):
        one = ranks[column["name"]]
        low, high = one["interval"]
        rank, interval = Number(one["rank"], form=".1f"), Text(f"{low:.1f} … {high:.1f}", f"{low:09.2f}")
        best = Number(100 * one["best"], form=".0f")
        lines.append([Text(column["label"], style=styles[column["name"]]), rank, interval, best])
    titles = (("rank", "the mean over the rows"), ("95 % interval", "by seeds"), ("best, %", "of draws of seeds"))
    heads = [Column("", "algorithm", number=False), *(Column(title, hint) for title, hint in titles)]
    number = len(results["ranks"]["rows"])
    about = f"Mean rank over {number} rows (1 is the best); seeds are drawn anew with replacement, the same for all"
    return Table(heads, lines, "Ranks", about)


def _grid(results: Results, fill: Fill, title: str, about: str, note: str) -> Table:
    rows, columns, cells = results["rows"], results["columns"], results["cells"]
    filled = {(r["name"], c["name"]): fill(r["name"], cells[r["name"]][c["name"]]) for r in rows for c in columns}
    if len(columns) <= _MOST_COLUMNS:
        heads = [Column("", "setting", number=False), *(Column(c["label"]) for c in columns)]
        lines: list[list[Cell]] = [
            [Text(r["label"], f"{place:03}"), *(filled[r["name"], c["name"]] for c in columns)]
            for place, r in enumerate(rows)  # sorted by name, α = 0.1 would come before 0.05
        ]
        return Table(heads, lines, title, about, note)
    styles = styles_of(columns)
    heads = [Column("", "algorithm", number=False), *(Column(r["label"]) for r in rows)]
    lines = [
        [Text(c["label"], style=styles[c["name"]]), *(filled[r["name"], c["name"]] for r in rows)] for c in columns
    ]
    return Table(heads, lines, title, about, note)


def _number(
    entry: Entry,
    ours: Mapping[str, Any] | None,
    theirs: Mapping[str, Any] | None = None,
    *,
    less: bool = False,
    alike: bool = False,
    difference: Difference | None = None,
) -> Number:
    """Our mean and deviation, the published ones, and the difference to these if no other is given."""
    mean = (ours or {}).get("mean")
    published = Number(theirs["mean"], theirs["std"], missing=theirs.get("text", ABSENT)) if theirs else None
    if mean is None or ours is None:
        return Number(None, missing=_why_not(entry), published=published)
    if published and published.value is not None:
        difference = Difference(mean - published.value, less_is_better=less, alike=alike)
    return Number(mean, ours["std"], published=published, difference=difference)


def _why_not(entry: Entry) -> str:
    if entry["status"] == "diverged":
        return f"{sum(value is None for value in entry['values'].values())} of {entry['n']} diverged"
    if entry["status"] != "done":
        return str(entry["status"])
    return f"reached by {entry['reached']} of {entry['n']}" if "reached" in entry else ABSENT


def _metric(entry: Entry, name: str) -> Mapping[str, Any] | None:
    return entry["metrics"][name] if "metrics" in entry else None


def _by_the_authors(_: str, entry: Entry) -> Cell:
    return _number(entry, _metric(entry, "authors"), entry["published"], alike=entry.get("official_data", False))


def _time(results: Results, row: str, entry: Entry) -> Cell:
    """Published times are of another machine: what can be compared is their ratio to the baseline's."""
    theirs, base = entry["published"], results["cells"][row].get(results["baseline"], {}).get("published")
    ratio = {key: theirs[key] / base["mean"] for key in ("mean", "std")} if theirs and base else None
    return _number(entry, entry.get("time_ratio"), ratio, less=True)


def _paired(entry: Entry, less: bool) -> Difference | None:
    found = entry.get("difference")
    if not found:
        return None
    return Difference(found["mean"], found["interval"], less_is_better=less, repeated=found["interval"] is not None)


def _megabytes(entry: Entry) -> Cell:
    if entry.get("mean") is None:
        return Number(None)
    return Number(entry["mean"] * entry["bytes_per_round"] / 1e6, form=".0f")


def _megabytes_of_a_round(entry: Entry) -> Cell:
    return Number(entry["bytes_per_round"] / 1e6 if "bytes_per_round" in entry else None)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _labels(panels: Sequence[Mapping[str, Any]]) -> Table:
    """How the labels are divided among the users."""
    rows: list[list[Cell]] = []
    for panel in panels:
        counts = np.array(panel["counts"])
        largest, held = int(counts.sum(axis=1).max()), float((counts > 0).sum(axis=1).mean())
        samples, labels = Text(f"{largest:,} samples", f"{largest:09}"), Text(f"{held:.1f} on average", f"{held:09.1f}")
        rows.append([Text(panel["label"]), Number(len(counts), form="d"), samples, labels])
    titles = ("users", "largest user", "labels of a user")
    return Table([Column("partition", number=False), *map(Column, titles)], rows)


_OF_EACH_USER = {
    "before": "before",
    "control": "control: no generator",
    "control_from_average": "control, from the average",
    "after": "after",
}
_OF_ALL = {"average": "averaged model", "ensemble": "users' ensemble", "oracle": "oracle"}


def _prototype(result: Mapping[str, Any]) -> Table:
    """The paper's table with more rows: accuracy in percent ± standard deviation over seeds."""
    accuracy, published = result["accuracy"], result["published"]
    users = len(accuracy["before"]["mean"])
    none = Text("")
    rows: list[list[Cell]] = [
        [Text(label), *_accuracies(accuracy[name], published.get(name)), none]
        for name, label in _OF_EACH_USER.items()
        if name in accuracy
    ]
    for way in result["ways"]:
        label = f"after, rate {way['generator_lr']:g}, diversity × {way['eta']:g}"
        rows.append([Text(label), *_accuracies(way["after"]), none])
    rows += [
        [Text(label), *[none] * users, *_accuracies(accuracy[name], published.get(name))]
        for name, label in _OF_ALL.items()
    ]
    titles = (*(f"user {user + 1}" for user in range(users)), "one for all")
    return Table([Column("accuracy, % (published)", number=False), *map(Column, titles)], rows)


def _accuracies(numbers: Mapping[str, Any], theirs: Any = None) -> list[Number]:
    """A cell for each user, or one where there is one model for all."""
    means = np.atleast_1d(numbers["mean"]).tolist()
    stds, printed = (
        [None] * len(means) if values is None else np.atleast_1d(values).tolist() for values in (numbers["std"], theirs)
    )
    return [
        Number(mean, std, ".1f", published=None if value is None else Number(value, form=".1f"))
        for mean, std, value in zip(means, stds, printed, strict=True)
    ]


_MEASURED = {
    "own": "distance of a user",
    "augmented": "with generated",
    "bound": "Corollary's bound of it",
    "ideal": "with others of all users",
    "generated": "distance of the generated",
    "risk": "risk on own data",
    "test_risk": "on the test set",
    "global_risk": "on the test set, as predicted",
}


def _theory(result: Mapping[str, Any]) -> Table:
    """Distances and risks, means over users ± standard deviation over seeds, at the first, a middle and last round."""
    rounds, rows = result["rounds"], list[list[Cell]]()
    for column in result["columns"]:
        found = {key: over_users(result, column["name"], key) for key in _MEASURED}
        if found["own"] is not None and found["generated"] is not None:
            found["bound"] = (found["own"] + found["generated"]) / 2
        for place in sorted({0, len(rounds) // 2, len(rounds) - 1}):
            cells = [Number(None) if v is None else Number(*_mean_and_std(v[:, place])) for v in found.values()]
            rows.append([Text(f"{column['label']}, round {rounds[place]}", f"{column['name']}{place:03}"), *cells])
    return Table([Column("", "algorithm and round", number=False), *map(Column, _MEASURED.values())], rows)


def _mean_and_std(values: NDArray[np.float64]) -> tuple[float, float | None]:
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else None
