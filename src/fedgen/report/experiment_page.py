"""The report's sections about a reproduction: our numbers beside the published ones."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.experiments.results import AUTHORS, CURVES, FULL_TEST, Store, accuracy_axis, caveats, read_json, table_name
from fedgen.experiments.spec import experiments
from fedgen.report.charts import bubbles, lines, series
from fedgen.report.curves import TITLES, spread
from fedgen.report.parts import Cell, Chart, Column, Section, Source, Table, difference, number
from fedgen.report.prototype_page import prototype_parts
from fedgen.report.published import PUBLISHED
from fedgen.report.styles import styles_of

Entry = Mapping[str, Any]  # of one row and column
Experiment = Mapping[str, Any]  # as `results.assemble` makes it
_PRESETS = ("paper", "reference", "tuned")
_MOST_COLUMNS = 10  # a table with more is turned
_SUFFIXES = dict(zip(CURVES, ("", "/seen"), strict=True))  # to a row's name, for the curve of another metric


def sections(folder: Path) -> list[Section]:
    """A section for each experiment in a results folder."""
    order = list(experiments())
    store = Store(folder)
    tables = sorted(
        store.tables(),
        key=lambda t: (
            order.index(t["experiment"]) if t["experiment"] in order else len(order),
            t["quick"],
            _PRESETS.index(t["preset"]) if t["preset"] in _PRESETS else len(_PRESETS),
        ),
    )
    made = []
    for table in tables:
        try:
            made.append(_section(table, store))
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise FedgenError(
                f"the table of {table['experiment']} in {folder} is damaged ({type(error).__name__}: {error});"
                " make it again with fedgen reproduce"
            ) from error
    return made


def _section(table: Experiment, store: Store) -> Section:
    name = table_name(table)
    cells = _cells(table, store)
    tables: list[Table] = []
    charts: list[Chart] = []
    if "cells" in table:
        tables, charts = _views(table), _figures(table, cells, name)
    elif "labels" in table:
        panels = {panel["label"]: panel["counts"] for panel in table["labels"]}
        if panels:
            charts = [bubbles(name, "Who holds what", "A bubble's area is the number of samples.", panels)]
    elif "prototype" in table:
        tables, charts = prototype_parts(table["prototype"], name)
    quick = " · quick look" if table["quick"] else ""
    changed = "".join(f" · {value} {key}" for key, value in sorted(table["overrides"].items()))
    label = table.get("metric_label", "")
    lead = f"{table['about'].strip()}{' ' + label[0].upper() + label[1:] + '.' if label else ''}"
    notices = _notices(table)
    lacking = sum(
        e["status"] == "done" and e["id"] not in cells for row in table.get("cells", {}).values() for e in row.values()
    )
    if cells and lacking:
        notices.append(
            f"The files of {lacking} cells are not in the folder: their numbers are shown, their curves not."
        )
    return Section(
        name.replace(".", "-"),
        f"{table['title']} · {table['preset']}{quick}{changed}",
        lead,
        notices=notices,
        tables=tables,
        charts=charts,
        notes=table.get("prototype", {}).get("notes", ()),
        sources=[_source(table, cells, store.folder / f"{name}.json")],
    )


# ---- what a reader must be told ----


def _notices(table: Experiment) -> list[str]:
    notices = []
    if table["quick"]:
        how = ": few rows and columns, 10 rounds, one seed" if "cells" in table else ""
        notices.append(f"A quick look, not a result{how}.")
    entries = [(row, column, e) for row, es in table.get("cells", {}).items() for column, e in es.items()]
    states = Counter(e["status"] for *_, e in entries if e["status"] != "done")
    if states:
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        reasons = dict.fromkeys(e["error"] for *_, e in entries if e.get("error"))
        notices.append(f"Of {len(entries)} cells: {told}. {' '.join(f'({reason})' for reason in reasons)}".strip())
    others: dict[str, list[str]] = {}
    for _, column, e in entries:
        if e["preset"] != table["preset"]:
            label = next(c["label"] for c in table["columns"] if c["name"] == column)
            others.setdefault(e["preset"], []).append(label)
    for preset, labels in others.items():
        notices.append(f"Of preset {preset}, not {table['preset']}: {', '.join(dict.fromkeys(labels))}.")
    for key, what in (("devices", "on different devices"), ("seeds", "with different numbers of seeds")):
        if len(table.get(key, ())) > 1:
            notices.append(f"Computed {what}: {', '.join(map(str, table[key]))}.")
    if "labels" in table and not table["labels"]:
        notices.append("There are no rows in this file.")
    explained = table.get("prototype", {}).get("notes", ())  # below its figures
    return [*notices, *(note for note in caveats(table) if note not in explained)]


# ---- tables ----


def _views(table: Experiment) -> list[Table]:
    """The same grid with different things in its cells."""
    entries = [e for row in table["cells"].values() for e in row.values()]
    less = table["metric"] != "accuracy"
    base = {c["name"]: c["label"] for c in (*table["rows"], *table["columns"])}[table["baseline"]]
    published = any(e["published"] for e in entries)
    views: dict[str, Callable[[Entry], Cell]] = {}
    notes: dict[str, str] = {}
    paired = any(e.get("difference") for e in entries)
    if table["metric"] == "time":
        ratio = _published_ratios(table)
        views["Time of local training"] = lambda e: _with_published(e, e.get("time_ratio"), ratio(e), less, alike=False)
        views["Accuracy, %, full test set"] = lambda e: _with_published(e, _metric(e, "accuracy"), None, False)
    elif published or not paired:
        title = "Ours, the published beneath" if published else "Ours"
        views[title] = lambda e: _with_published(e, e, e["published"], less, alike=False)
        if published:
            notes[title] = f"{PUBLISHED} Ours is another here, so the differences have no colour."
        if published and table["metric"] == "accuracy":
            notes[title] += " The view of the authors' metric compares like with like."
    else:
        views[f"Ours, the difference to {base} beneath"] = lambda e: _with_difference(e, less)
    if paired and table["metric"] != "time":
        views[f"Paired difference to {base}"] = lambda e: _paired(e, less)
    if table["metric"] == "accuracy":
        views["The authors' metric"] = lambda e: _with_published(
            e, _metric(e, "authors"), e["published"], False, alike=e.get("official_data", False)
        )
        notes["The authors' metric"] = f"{AUTHORS[0].upper()}{AUTHORS[1:]}. In colour where the data are the paper's."
    if table["metric"] == "rounds":
        views["Megabytes until then"] = _megabytes
    return [_grid(table, title, cell, notes.get(title, "")) for title, cell in views.items()]


def _grid(table: Experiment, caption: str, cell: Callable[[Entry], Cell], note: str) -> Table:
    styles = styles_of(table["columns"])
    if len(table["columns"]) <= _MOST_COLUMNS:
        columns = [Column("setting", number=False), *(Column(c["label"]) for c in table["columns"])]
        rows = [
            [Cell(r["label"], f"{place:03}"), *(cell(table["cells"][r["name"]][c["name"]]) for c in table["columns"])]
            for place, r in enumerate(table["rows"])  # sorted by name, α = 0.1 would come before 0.05
        ]
    else:
        columns = [Column("algorithm", number=False), *(Column(r["label"]) for r in table["rows"])]
        rows = [
            [
                Cell(c["label"], c["label"], swatch=styles[c["name"]]),
                *(cell(table["cells"][r["name"]][c["name"]]) for r in table["rows"]),
            ]
            for c in table["columns"]
        ]
    return Table(caption, columns, rows, note)


def _metric(entry: Entry, name: str) -> Mapping[str, Any] | None:
    return entry["metrics"][name] if "metrics" in entry else None


def _with_published(
    entry: Entry,
    ours: Mapping[str, Any] | None,
    theirs: Mapping[str, Any] | None,
    less: bool,
    *,
    alike: bool = True,
) -> Cell:
    """Our mean and deviation, and below the published ones and the difference, in colour if they are `alike`."""
    below = []
    if theirs is not None:
        text = theirs.get("text") or f"{theirs['mean']:.2f}"
        below.append(Cell(f"published {text}", beside=f"± {theirs['std']:.2f}" if theirs["std"] else ""))
    if ours is None or ours.get("mean") is None:
        return Cell(_why_not(entry), tone="missing", below=below)
    if theirs is not None and theirs["mean"] is not None:
        below.append(difference(ours["mean"] - theirs["mean"], less_is_better=less, alike=alike))
    beside = f"± {ours['std']:.2f}" if ours["std"] is not None else ""
    plain = number(ours["mean"])
    return Cell(plain.text, plain.sort, beside, below=below)


def _why_not(entry: Entry) -> str:
    if entry["status"] == "done" and "reached" in entry:
        return f"{entry['reached']} of {entry['n']} seeds"
    return str(entry["status"])


def _paired(entry: Entry, less: bool) -> Cell:
    found = entry.get("difference")
    return difference(found["mean"], found["interval"], less_is_better=less) if found else difference(None)


def _with_difference(entry: Entry, less: bool) -> Cell:
    ours = _with_published(entry, entry, None, less)
    return replace(ours, below=[_paired(entry, less)]) if entry.get("difference") else ours


def _megabytes(entry: Entry) -> Cell:
    if entry.get("mean") is None:
        return number(None)
    return number(entry["mean"] * entry["bytes_per_round"] / 1e6, ",.0f")


def _published_ratios(table: Experiment) -> Callable[[Entry], Mapping[str, Any] | None]:
    """Published times are of another machine: what can be compared is their ratio to the baseline's."""
    base = {
        id(e): row[table["baseline"]]["published"]
        for row in table["cells"].values()
        for e in row.values()
        if table["baseline"] in row
    }

    def ratio(entry: Entry) -> Mapping[str, Any] | None:
        theirs, baseline = entry["published"], base.get(id(entry))
        return {"mean": theirs["mean"] / baseline["mean"], "std": None} if theirs and baseline else None

    return ratio


# ---- figures ----


def _figures(table: Experiment, cells: Mapping[str, Any], name: str) -> list[Chart]:
    charts = [_over_rows(table, figure, name) for figure in table["figures"] if figure["kind"] == "lines"]
    curves = _learning_curves(table, cells, name) if cells else _stored_curves(table, name)
    return [*(chart for chart in charts if chart.data["series"]), *curves]


def _over_rows(table: Experiment, figure: Mapping[str, Any], name: str) -> Chart:
    styles = styles_of(table["columns"])
    curves = [
        series(
            one["label"],
            styles[one["name"]],
            {"y": list(zip(one["x"], one["y"], one["low"], one["high"], strict=True))},
            published={"y": one.get("published", [])},
        )
        for one in figure["series"]
    ]
    hollow = " Hollow: published, by the authors' metric." if any(one["published"] for one in curves) else ""
    return lines(
        f"{name}.{figure['name']}",
        figure["title"],
        f"Mean over seeds; the band is one standard deviation.{hollow}",
        curves,
        x={"x": figure["x_label"]},
        y={"y": {"title": figure["y_label"], "axis": figure["y_label"]}},
        log=figure["log"],
        markers=True,
    )


def _learning_curves(table: Experiment, cells: Mapping[str, Any], name: str) -> list[Chart]:
    """Of every row, from the cells."""
    points: dict[str, dict[str, Any]] = {column["name"]: {} for column in table["columns"]}
    for row in table["rows"]:
        for column in table["columns"]:
            cell = cells.get(table["cells"][row["name"]][column["name"]]["id"])
            if cell is None:
                continue
            for metric, suffix in _SUFFIXES.items():  # a cell of an earlier version has the first only
                curves = [list(zip(cell["rounds"], r.get(metric, ()), strict=False)) for r in cell["results"]]
                points[column["name"]][row["name"] + suffix] = spread(curves)
    return _curve_chart(table, points, {row["name"]: row["label"] for row in table["rows"]}, name)


def _stored_curves(table: Experiment, name: str) -> list[Chart]:
    """Of the figures, where the cells are not at hand."""
    figures = [figure for figure in table["figures"] if figure["kind"] == "curves" and figure["series"]]
    points: dict[str, dict[str, Any]] = {column["name"]: {} for column in table["columns"]}
    for figure in figures:
        for one in figure["series"]:
            drawn = zip(one["x"], one["y"], one["low"], one["high"], strict=True)
            points[one["name"]][figure["name"]] = list(drawn)
    return _curve_chart(table, points, {figure["name"]: figure["title"] for figure in figures}, name)


def _curve_chart(
    table: Experiment, points: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str], name: str
) -> list[Chart]:
    styles = styles_of(table["columns"])
    curves = [series(c["label"], styles[c["name"]], points[c["name"]], scale={"round": 1}) for c in table["columns"]]
    drawn = {key for one in curves for key in one["points"]}
    scored_on = table.get("scored_on", FULL_TEST)
    y = {key: {"title": title, "axis": accuracy_axis(scored_on)} for key, title in titles.items() if key in drawn}
    if not y:
        return []
    metrics = {
        suffix: TITLES[CURVES[metric]].replace("full test set", scored_on.removeprefix("the "))
        for metric, suffix in _SUFFIXES.items()
        if any(key + suffix in drawn for key in y)
    }
    caption = "The line is the mean over seeds, the band their range."
    lacking = sum(
        key in one["points"] and key + suffix not in one["points"] for one in curves for key in y for suffix in metrics
    )
    if lacking:
        caption += f" Of the second metric {lacking} curve{'s were' if lacking > 1 else ' was'} not recorded."
    return [
        lines(f"{name}.curves", "Learning curves", caption, curves, x={"round": "round"}, y=y, metrics=metrics),
    ]


# ---- where it comes from ----


def _cells(table: Experiment, store: Store) -> dict[str, Any]:
    wanted = {e["id"] for row in table.get("cells", {}).values() for e in row.values()}
    paths = {name: store.cells / f"{name}.json" for name in wanted}
    return {name: read_json(path) for name, path in paths.items() if path.exists()}


def _source(table: Experiment, cells: Mapping[str, Any], path: Path) -> Source:
    facts = {"version": ", ".join(table["versions"])}
    for key in ("devices", "seeds", "rounds"):
        if table.get(key):
            facts[key] = ", ".join(map(str, table[key]))
    return Source(str(path), facts, _settings(list(cells.values())))


def _settings(cells: Sequence[Mapping[str, Any]]) -> str:
    """The settings of all cells: those they share, then those in which they differ."""
    flat = []
    for cell in cells:
        config = {key: value for key, value in cell["config"].items() if key != "options"}
        for section, options in cell["config"].get("options", {}).items():
            config |= {f"{section}.{key}": value for key, value in options.items()}
        flat.append(config)
    keys = dict.fromkeys(key for config in flat for key in config)
    values = {
        key: list(dict.fromkeys(json.dumps(c[key], ensure_ascii=False) for c in flat if key in c)) for key in keys
    }
    alike = [f"{key} = {found[0]}" for key, found in values.items() if len(found) == 1]
    differ = [f"{key} = {' | '.join(found)}" for key, found in values.items() if len(found) > 1]
    return "\n".join([*alike, *(("", "# differs between cells", *differ) if differ else ())])
