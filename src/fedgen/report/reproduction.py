"""A reproduction for the eye: tables for the terminal, figures, and the Markdown page of all results."""

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table as Grid

from fedgen.errors import FedgenError
from fedgen.experiments.results import AUTHORS, Store, Table, caveats, table_name
from fedgen.experiments.spec import experiments
from fedgen.files import write_whole
from fedgen.report.figures import new_figure, save_figure
from fedgen.report.partitions import bubbles
from fedgen.report.prototype import prototype_figure
from fedgen.report.styles import DASHES, LIGHT, styles_of

_ABSENT = "–"
_BESIDE = 4  # figures side by side
_FAR = 25.0  # points below the best: further down a curve would flatten the others


def draw(table: Table, folder: Path) -> list[Path]:
    """An experiment's figures as PNG and SVG, in `figures/` of the results."""
    name = table_name(table)
    place = folder / "figures"
    if "prototype" in table:
        return prototype_figure(table["prototype"], place, name)
    if "labels" in table:
        counts = {panel["label"]: np.array(panel["counts"]) for panel in table["labels"]}
        return bubbles(counts, place, name)
    panels = [figure for figure in table["figures"] if figure["series"]]
    return _panels(table, panels, place, name) if panels else []


def _panels(table: Table, panels: Sequence[Mapping[str, Any]], folder: Path, name: str) -> list[Path]:
    columns = min(len(panels), _BESIDE)
    rows = -(-len(panels) // columns)
    figure = new_figure(3.4 * columns + 1.6, 2.9 * rows + 0.5)
    all_axes: Any = figure.subplots(rows, columns, squeeze=False)
    styles = styles_of(table["columns"])
    for axes in all_axes.flat[len(panels) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, panel in zip(all_axes.flat, panels, strict=False):
        for one in panel["series"]:
            colour, dash = styles[one["name"]]
            marker = "o" if panel["kind"] == "lines" else ""
            (line,) = axes.plot(one["x"], one["y"], marker=marker, ms=3.5, lw=1.3, color=LIGHT[colour])
            if DASHES[dash]:
                line.set_dashes(DASHES[dash])
            axes.fill_between(one["x"], one["low"], one["high"], color=LIGHT[colour], alpha=0.12, lw=0)
            handles.setdefault(one["label"], line)
            if one.get("published"):
                x, y = zip(*one["published"], strict=True)
                axes.plot(x, y, ls="", marker="o", ms=5, mfc="none", mew=0.9, color=LIGHT[colour])
        axes.set(xlabel=panel["x_label"], title=panel["title"])
        if panel["log"]:
            axes.set_xscale("log")
        _look_at_the_top(axes, panel)
        axes.grid(alpha=0.3)
    for axes in all_axes[:, 0]:
        axes.set_ylabel(panels[0]["y_label"])
    order = [column["label"] for column in table["columns"] if column["label"] in handles]
    figure.legend([handles[label] for label in order], order, loc="outside right center", frameon=False)
    quick = "\na look, not a result" if table["quick"] else ""
    hollow = (
        "; hollow: published, by the authors' metric"
        if any(one.get("published") for panel in panels for one in panel["series"])
        else ""
    )
    title = f"{table['title']}, preset {table['preset']}{_unlike(table)}{hollow}"
    letters = int(11 * figure.get_figwidth())  # of this size, in a line
    figure.suptitle("\n".join(textwrap.wrap(title, letters)) + quick, fontsize="medium")
    return save_figure(figure, folder, name)


def _look_at_the_top(axes: Any, panel: Mapping[str, Any]) -> None:
    """Leave out the first rounds, and say where a curve ends that lies far below the others."""
    ends = {one["label"]: one["y"][-1] for one in panel["series"]}
    lowest = [min(one["y"]) if panel["kind"] == "lines" else one["y"][-1] for one in panel["series"]]
    lowest += [y for one in panel["series"] for _, y in one.get("published", ())]
    near = [low for low in lowest if low >= max(ends.values()) - _FAR]
    bottom = max(min(near) - (2 if panel["kind"] == "lines" else 12), 0)
    axes.set_ylim(bottom=bottom)
    below = [f"{label} {end:.0f}" for label, end in ends.items() if end < bottom]
    partly = [one["label"] for one in panel["series"] if min(one["y"]) < bottom <= one["y"][-1]]
    if panel["kind"] == "lines":
        below += [f"{label} in part" for label in partly]
    if below:
        axes.text(0.97, 0.05, "below: " + ", ".join(below), transform=axes.transAxes, ha="right", fontsize="small")


def terminal_tables(table: Table, width: int) -> list[str | Grid]:
    """An experiment's numbers for the terminal: ours, and the published in grey; a wide table in several parts."""
    if "prototype" in table:
        return [_title(table), _from_markdown(*_prototype_table(table["prototype"]))]
    if "labels" in table:
        return [_title(table), _from_markdown(_LABEL_TITLES, _label_rows(table))]
    titles = [column["label"] for column in table["columns"]]
    fitting = max((width - 30) // 15, 2)
    grids: list[str | Grid] = [_title(table)]
    for start in range(0, len(titles), fitting):
        grid = Grid()
        grid.add_column("", no_wrap=True)
        for title in titles[start : start + fitting]:
            grid.add_column(title, justify="right")
        for row in table["rows"]:
            cells = [table["cells"][row["name"]][c["name"]] for c in table["columns"][start : start + fitting]]
            grid.add_row(row["label"], *(_terminal_cell(cell) for cell in cells))
        grids.append(grid)
    return [*grids, *(f"[dim]{escape(note)}[/dim]" for note in caveats(table))]


def _title(table: Table) -> str:
    quick = ": [yellow]a look, not a result[/yellow]" if table["quick"] else ""
    label = f"\n{table['metric_label']}; grey: published" if "metric_label" in table else ""
    return f"[bold]{escape(table['title'])}[/bold], preset {table['preset']}{_unlike(table)}{quick}{escape(label)}"


def _from_markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    grid = Grid()
    for title in titles:
        grid.add_column(title, justify="right" if title != titles[0] else "left")
    for row in rows:
        grid.add_row(*row)
    return grid


def _terminal_cell(cell: Mapping[str, Any]) -> str:
    published = cell["published"]
    theirs = "" if published is None else f"\n[dim]{published.get('text') or _number(published)}[/dim]"
    return f"{escape(_ours(cell))}{theirs}"


def _ours(cell: Mapping[str, Any]) -> str:
    """Our number, or why there is none."""
    if cell["status"] in ("missing", "failed"):
        return str(cell["status"])
    if "time_ratio" in cell:
        return _number(cell["time_ratio"])
    if cell["mean"] is not None:
        return _number(cell)
    return "diverged" if cell["status"] == "diverged" else f"reached by {cell['reached']} of {cell['n']}"


def _number(value: Mapping[str, Any]) -> str:
    if value["mean"] is None:
        return _ABSENT
    spread = f" ±{value['std']:.2f}" if value["std"] is not None else ""
    return f"{value['mean']:.2f}{spread}"


def write_page(store: Store, path: Path) -> None:
    """Write the Markdown page of all tables in a results folder."""
    write_whole(path, page(store, path.parent).encode())


def page(store: Store, seen_from: Path) -> str:
    """The Markdown page; `seen_from` is the folder that its links start from."""
    tables = store.tables()
    if not tables:
        raise FedgenError(f"{store.folder} holds no results; make some with: fedgen reproduce overview --quick")
    order = list(experiments())
    known = [table for table in tables if table["experiment"] in order]
    known.sort(key=lambda t: (order.index(t["experiment"]), t["quick"], _PRESETS.index(t["preset"])))
    parts = [_HEAD, "".join(f"- [{_heading(t)}](#{_anchor(t)})\n" for t in known)]
    parts += [_section(table, store, seen_from) for table in known]
    return "\n".join(parts)


_PRESETS = ("paper", "reference", "tuned")
_HEAD = """# Results

Made by `fedgen reproduce page` from the files in `results/`; do not edit. Each cell: ours, then the published number in
brackets. That one is by another metric, the authors', which has tables of its own. ± is the standard deviation over
seeds. How to read them: [reading.md](reading.md).
"""


def _heading(table: Table) -> str:
    return f"{table['title']} (`{table['experiment']}`, preset {table['preset']}{_unlike(table)})"


def _unlike(table: Table) -> str:
    """How a table differs from its experiment in full."""
    changed = [f"{value} {key}" for key, value in sorted(table["overrides"].items())]
    return "".join(f", {part}" for part in [*(["quick"] if table["quick"] else []), *changed])


def _anchor(table: Table) -> str:
    kept = "".join(c for c in _heading(table).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _section(table: Table, store: Store, seen_from: Path) -> str:
    lines = [f"## {_heading(table)}", "", table["about"].strip(), ""]
    if "prototype" in table:
        lines += _markdown(*_prototype_table(table["prototype"]))
    elif "labels" in table:
        lines += _markdown(_LABEL_TITLES, _label_rows(table))
    else:
        lines += _grid_section(table)
    lines += [f"- {note}" for note in caveats(table)]
    name = table_name(table)
    pictures = sorted((store.folder / "figures").glob(f"{name}.png"))
    for picture in pictures:
        link = Path(os.path.relpath(picture, seen_from)).as_posix()
        lines += ["", f"![{table['title']}]({link})"]
    return "\n".join(lines) + "\n"


def _grid_section(table: Table) -> list[str]:
    seeds = "1 seed" if table["seeds"] == [1] else f"{_list(table['seeds'])} seeds"
    run = f"{seeds}, {_list(table['rounds'])} rounds, {', '.join(table['devices'])}."
    by_columns = len(table["columns"]) <= 10
    titles = ["", *(column["label"] for column in table["columns"])]

    def grid(cell: Any) -> list[str]:
        rows = [
            [row["label"], *(cell(table["cells"][row["name"]][column["name"]]) for column in table["columns"])]
            for row in table["rows"]
        ]
        if by_columns:
            return _markdown(titles, rows)
        turned = [list(line) for line in zip(*([titles, *rows]), strict=True)]
        return _markdown(turned[0], turned[1:])

    lines = [f"{table['metric_label'][0].upper()}{table['metric_label'][1:]}. {run}", "", *grid(_markdown_cell)]
    if table["metric"] == "time":
        lines += ["", "Accuracy on the full test set, %, mean of the last 10 rounds:", "", *grid(_metric("accuracy"))]
    differing = [c for row in table["cells"].values() for c in row.values() if c.get("difference")]
    if differing:
        base = next((c["label"] for c in table["columns"] if c["name"] == table["baseline"]), None)
        against = base or next(r["label"] for r in table["rows"] if r["name"] == table["baseline"])
        lines += ["", f"Paired difference to {against}, with its 95 % interval:", "", *grid(_difference_cell)]
    if table["metric"] == "accuracy" and any(
        r for row in table["cells"].values() for r in row.values() if "metrics" in r
    ):
        lines += ["", f"{AUTHORS[0].upper()}{AUTHORS[1:]}:", "", *grid(_metric("authors"))]
    if table["metric"] == "rounds":
        lines += ["", "Megabytes sent and received by all active users until then:", "", *grid(_megabytes_cell)]
    return [*lines, ""]


def _markdown_cell(cell: Mapping[str, Any]) -> str:
    published = cell["published"]
    theirs = "" if published is None else f" ({published.get('text') or _number(published)})"
    return _ours(cell) + theirs


def _difference_cell(cell: Mapping[str, Any]) -> str:
    difference = cell.get("difference")
    if not difference:
        return _ABSENT
    interval = difference["interval"]
    spread = f" ({interval[0]:+.2f} … {interval[1]:+.2f})" if interval else ""
    return f"{difference['mean']:+.2f}{spread}"


def _metric(name: str) -> Any:
    def cell(entry: Mapping[str, Any]) -> str:
        published = entry["published"]
        theirs = f" ({_number(published)})" if published and name == "authors" else ""
        ours = _number(entry["metrics"][name]) if "metrics" in entry else str(entry["status"])
        return ours + theirs

    return cell


def _megabytes_cell(cell: Mapping[str, Any]) -> str:
    if cell.get("mean") is None:
        return _ABSENT
    return f"{cell['mean'] * cell['bytes_per_round'] / 1e6:.0f}"


def _prototype_table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    titles, rows = result["table"]["titles"], result["table"]["rows"]
    return titles, rows


_LABEL_TITLES = ("partition", "users", "largest user", "labels of a user")


def _label_rows(table: Table) -> list[list[str]]:
    rows = []
    for panel in table["labels"]:
        counts = np.array(panel["counts"])
        rows.append(
            [
                panel["label"],
                str(len(counts)),
                f"{int(counts.sum(axis=1).max()):,} samples",
                f"{float((counts > 0).sum(axis=1).mean()):.1f} on average",
            ]
        )
    return rows


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _list(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values))
