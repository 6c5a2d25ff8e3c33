"""The report's sections about a reproduction: our numbers beside the published ones."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.files import read_json
from fedgen.grid.store import CURVES, Store, flat
from fedgen.paper.prototype_panels import prototype_panels
from fedgen.paper.results import FULL_TEST, Results, accuracy_axis, all_results, caveats, differs, results_name
from fedgen.paper.tables import tables
from fedgen.paper.theory_figure import theory_chart
from fedgen.report.charts import bubbles, lines, series
from fedgen.report.curves import TITLES, spread
from fedgen.report.parts import Chart, Section, Source
from fedgen.report.styles import styles_of

_SUFFIXES = dict(zip(CURVES, ("", "/seen"), strict=True))  # to a row's name, for the curve of another metric


def sections(folder: Path) -> list[Section]:
    """A section for each experiment in a results folder."""
    store = Store(folder)
    made = []
    for results in all_results(folder):
        try:
            made.append(_section(results, store))
        except (KeyError, TypeError, AttributeError, StopIteration) as error:
            raise FedgenError(
                f"the table of {results['experiment']} in {folder} is damaged ({type(error).__name__}: {error});"
                " make it again with fedgen reproduce"
            ) from error
    return made


def _section(results: Results, store: Store) -> Section:
    name = results_name(results)
    cells = _cells(results, store)
    charts: list[Chart] = []
    if "cells" in results:
        charts = _figures(results, cells, name)
    elif results.get("labels"):
        panels = {panel["label"]: panel["counts"] for panel in results["labels"]}
        charts = [bubbles(name, "Who holds what", "A bubble's area is the number of samples.", panels)]
    elif "prototype" in results:
        charts = [prototype_panels(results["prototype"], name)]
    elif "theory" in results:
        charts = [theory_chart(results["theory"], name)]
    shown = tables(results)
    label = f" {shown[0].about}." if shown and shown[0].about else ""
    notices = _notices(results)
    entries = [e for row in results.get("cells", {}).values() for e in row.values()]
    lacking = sum(e["status"] == "done" and e["id"] not in cells for e in entries)
    if cells and lacking:
        notices.append(
            f"The files of {lacking} cells are not in the folder: their numbers are shown, their curves not."
        )
    return Section(
        name.replace(".", "-"),
        f"{results['title']} · {results['preset']}{differs(results)}",
        results["about"].strip() + label,
        notices=notices,
        tables=shown,
        charts=charts,
        notes=results.get("prototype", {}).get("notes", ()),
        sources=[_source(results, cells, store.folder / f"{name}.json")],
    )


# ---- notices ----


def _notices(results: Results) -> list[str]:
    notices = []
    if results["quick"]:
        how = ": few rows and columns, 10 rounds, one seed" if "cells" in results else ""
        notices.append(f"A quick look, not a result{how}.")
    entries = [(row, column, e) for row, es in results.get("cells", {}).items() for column, e in es.items()]
    states = Counter(e["status"] for *_, e in entries if e["status"] != "done")
    if states:
        counted = ", ".join(f"{count} {state}" for state, count in states.items())
        reasons = dict.fromkeys(e["error"] for *_, e in entries if e.get("error"))
        notices.append(f"Of {len(entries)} cells: {counted}. {' '.join(f'({reason})' for reason in reasons)}".strip())
    others: dict[str, list[str]] = {}
    for _, column, e in entries:
        if e["preset"] != results["preset"]:
            label = next(c["label"] for c in results["columns"] if c["name"] == column)
            others.setdefault(e["preset"], []).append(label)
    for preset, labels in others.items():
        notices.append(f"Of preset {preset}, not {results['preset']}: {', '.join(dict.fromkeys(labels))}.")
    for key, what in (("devices", "on different devices"), ("seeds", "with different numbers of seeds")):
        if len(results.get(key, ())) > 1:
            notices.append(f"Computed {what}: {', '.join(map(str, results[key]))}.")
    if "labels" in results and not results["labels"]:
        notices.append("There are no rows in this file.")
    explained = results.get("prototype", {}).get("notes", ())  # below its figures
    return [*notices, *(note for note in caveats(results) if note not in explained)]


# ---- figures ----


def _figures(results: Results, cells: Mapping[str, Any], name: str) -> list[Chart]:
    charts = [_over_rows(results, figure, name) for figure in results["figures"] if figure["kind"] == "lines"]
    curves = _learning_curves(results, cells, name) if cells else _stored_curves(results, name)
    return [*(chart for chart in charts if chart.data["series"]), *curves]


def _over_rows(results: Results, figure: Mapping[str, Any], name: str) -> Chart:
    styles = styles_of(results["columns"])
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


def _learning_curves(results: Results, cells: Mapping[str, Any], name: str) -> list[Chart]:
    """Of every row, from the cells."""
    points: dict[str, dict[str, Any]] = {column["name"]: {} for column in results["columns"]}
    for row in results["rows"]:
        for column in results["columns"]:
            cell = cells.get(results["cells"][row["name"]][column["name"]]["id"])
            if cell is None:
                continue
            for metric, suffix in _SUFFIXES.items():  # a cell of an earlier version has the first only
                curves = [list(zip(cell["rounds"], r.get(metric, ()), strict=False)) for r in cell["results"]]
                points[column["name"]][row["name"] + suffix] = spread(curves)
    return _curve_chart(results, points, {row["name"]: row["label"] for row in results["rows"]}, name)


def _stored_curves(results: Results, name: str) -> list[Chart]:
    """Of the figures, where the cells are not at hand."""
    figures = [figure for figure in results["figures"] if figure["kind"] == "curves" and figure["series"]]
    points: dict[str, dict[str, Any]] = {column["name"]: {} for column in results["columns"]}
    for figure in figures:
        for one in figure["series"]:
            drawn = zip(one["x"], one["y"], one["low"], one["high"], strict=True)
            points[one["name"]][figure["name"]] = list(drawn)
    return _curve_chart(results, points, {figure["name"]: figure["title"] for figure in figures}, name)


def _curve_chart(
    results: Results, points: Mapping[str, Mapping[str, Any]], titles: Mapping[str, str], name: str
) -> list[Chart]:
    styles = styles_of(results["columns"])
    curves = [series(c["label"], styles[c["name"]], points[c["name"]], scale={"round": 1}) for c in results["columns"]]
    drawn = {key for one in curves for key in one["points"]}
    scored_on = results.get("scored_on", FULL_TEST)
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


def _cells(results: Results, store: Store) -> dict[str, Any]:
    # In the table's order, and not a set's: the same folder gives the same page.
    wanted = dict.fromkeys(e["id"] for row in results.get("cells", {}).values() for e in row.values())
    paths = {name: store.cells / f"{name}.json" for name in wanted}
    return {name: read_json(path) for name, path in paths.items() if path.exists()}


def _source(results: Results, cells: Mapping[str, Any], path: Path) -> Source:
    facts = {"version": ", ".join(results["versions"])}
    for key in ("devices", "seeds", "rounds"):
        if results.get(key):
            facts[key] = ", ".join(map(str, results[key]))
    return Source(str(path), facts, _settings(list(cells.values())))


def _settings(cells: Sequence[Mapping[str, Any]]) -> str:
    """The settings of all cells: those they share, then those in which they differ."""
    configs = [flat(cell["config"]) for cell in cells]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {
        key: list(dict.fromkeys(json.dumps(c[key], ensure_ascii=False) for c in configs if key in c)) for key in keys
    }
    alike = [f"{key} = {found[0]}" for key, found in values.items() if len(found) == 1]
    differ = [f"{key} = {' | '.join(found)}" for key, found in values.items() if len(found) > 1]
    return "\n".join([*alike, *(("", "# differs between cells", *differ) if differ else ())])
