"""The report's sections about a sweep: what was found, how scores respond to each setting, and every configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.files import read_json, read_text
from fedgen.grid.store import Cell, Store
from fedgen.report.charts import lines, series
from fedgen.report.comparison import HELD_OUT
from fedgen.report.curves import spread
from fedgen.report.figures import heading
from fedgen.report.page import collect
from fedgen.report.parts import Chart, Page, Section, Source
from fedgen.report.styles import style_of
from fedgen.runs.scores import Record
from fedgen.sweeps.request import FILE
from fedgen.sweeps.results import Results, best_of, read_results, seeds_text
from fedgen.sweeps.space import Range, parse_axis
from fedgen.sweeps.tables import best_table, final_table, ranking, scored_on

MOST_CURVES = 12  # of one algorithm in a figure
_WIDE = 8  # the largest value over the smallest from which an axis is logarithmic
_HELD_OUT_AXIS = {"title": f"accuracy, {HELD_OUT}", "axis": "validation accuracy, %"}
_METHODS = {
    "grid": "Combinations of the values were tried.",
    "random": "The configurations were drawn at random.",
    "halving": "There were too few configurations to stop any of them early.",
}
_TEST_AXIS = {"title": "accuracy, full test set", "axis": "test accuracy, %"}


def page_of(folder: Path) -> Page:
    """The page of a sweep."""
    return collect([folder], others=sections)


def sections(folder: Path) -> list[Section]:
    """The sections of a sweep's folder."""
    results, store = read_results(folder), Store(folder)
    try:
        return [_found(results, store), *(_algorithm(results, one, store) for one in results["algorithms"])]
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise FedgenError(
            f"{folder} is damaged ({type(error).__name__}: {error}); run the sweep again with this --out"
        ) from error


def final_results(results: Results, store: Store) -> list[Record]:
    """The results of the final runs, as far as their cells are there."""
    cells = (results["final"] or {}).get("cells", {})
    return [row for names in cells.values() for cell in _cells(store, names) for row in cell["results"]]


def _found(results: Results, store: Store) -> Section:
    method = _METHODS[results["method"]]
    if early := results["rungs"][:-1]:
        method = (
            f"Successive halving: after {_listed(early)} rounds one in {results['keep']} of an algorithm's"
            " configurations went on from where it was, the others stopped."
        )
    final = results["final"]
    notices = [*results["notes"], *(final or {}).get("failed", ())]
    tables = [replace(best_table(results), title="the best of each")]
    charts = [_response(results, key, axes) for key, axes in _swept(results).items()]
    if final:
        tables.append(replace(final_table(results, final_results(results, store)), title="all scores on the test set"))
        charts.insert(0, _final_curves(results, store))
    tested = (
        f" The best of each algorithm was then trained anew and tested with {seeds_text(final['seeds'])}, which nothing"
        " was chosen by."
        if final
        else ""
    )
    return Section(
        "sweep",
        f"Sweep: {heading(results['heading'])}",
        f"{method} They are compared by {scored_on(results)}, as the mean of {seeds_text(results['seeds'])}.{tested}",
        chips=[f"{key} = {value}" for key, value in results["settings"].items()],
        notices=notices,
        tables=tables,
        charts=[chart for chart in charts if chart.data["series"]],
        sources=[Source(str(store.folder / FILE), {"version": results["version"]}, read_text(store.folder / FILE))],
    )


def _algorithm(results: Results, one: Mapping[str, Any], store: Store) -> Section:
    name = one["algorithm"]
    best = best_of(results)[name]
    chosen = f" The best: {best['label']}." if best else ""
    return Section(
        f"of-{''.join(c if c.isalnum() else '-' for c in name)}",
        f"All configurations of {name}",
        f"{one['tried']} configurations, {one['rounds']:,} rounds in all.{chosen}",
        tables=[ranking(results, one)],
        charts=[chart for chart in [_curves(results, one, store)] if chart.data["series"]],
    )


# ---- how scores respond to a setting ----


def _swept(results: Results) -> dict[str, dict[str, bool]]:
    """Each swept setting by its short name: of which algorithms, and whether its values were drawn from a range."""
    found: dict[str, dict[str, bool]] = {}
    for one in results["algorithms"]:
        for key in one["configurations"][0]["settings"]:
            ranges = {parse_axis(text).key for text in results["over"] if isinstance(parse_axis(text), Range)}
            name = key.removeprefix(f"{one['algorithm']}.")
            found.setdefault(name, {})[one["algorithm"]] = bool({name, key, f"{one['algorithm']}.{name}"} & ranges)
    return found


def _response(results: Results, name: str, drawn: Mapping[str, bool]) -> Chart:
    """The scores over the values of one setting, after each rung."""
    of = [one for one in results["algorithms"] if one["algorithm"] in drawn]
    asked = [(one["algorithm"], sorted(one["configurations"], key=lambda entry: entry["number"])) for one in of]
    values = [_setting(entry, algorithm, name) for algorithm, entries in asked for entry in entries]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    places = {} if numbers else {text: number for number, text in enumerate(dict.fromkeys(map(str, values)), 1)}
    scatter = any(drawn.values())
    curves = []
    for one in of:
        points = {}
        for rung, rounds in enumerate(_compared(results)):
            at: dict[float, list[float]] = {}
            for entry in one["configurations"]:
                value = _setting(entry, one["algorithm"], name)
                if len(entry["rungs"]) > rung and (mean := entry["rungs"][rung][1]) is not None:
                    at.setdefault(value if numbers else places[str(value)], []).append(mean)
            worst = max if scatter else min
            points[f"round{rounds}"] = [[x, max(ys), worst(ys), max(ys)] for x, ys in sorted(at.items())]
        curves.append(series(one["algorithm"], style_of(one["algorithm"]), points))
    log = numbers and min(values) > 0 and max(values) >= _WIDE * min(values)
    shown = {f"round{rounds}": f"after {rounds} rounds" for rounds in _compared(results)}
    what = "A point is a configuration" if scatter else "The best configuration with each value"
    band = "" if scatter or len(_swept(results)) == 1 else "; the band goes down to the worst"
    named = "" if numbers else " (" + ", ".join(f"{number}: {text}" for text, number in places.items()) + ")"
    return lines(
        f"response.{name}",
        f"Response to {name}",
        f"{what}, mean over seeds{band}. Configurations in which a seed diverged are left out.",
        [one for one in curves if one["points"]],
        x={"x": f"{name}{named}"},
        y={key: {**_HELD_OUT_AXIS, "title": title} for key, title in shown.items()},
        first=next(iter(shown)),
        log=bool(log),
        markers=True,
        scatter=scatter,
    )


def _compared(results: Results) -> list[int]:
    """The rungs at which more than one configuration of some algorithm was left."""
    entries = [entry for one in results["algorithms"] for entry in one["configurations"]]
    left = [sum(len(entry["rungs"]) > rung for entry in entries) for rung in range(len(results["rungs"]))]
    kept = [rounds for rounds, some in zip(results["rungs"], left, strict=True) if some > len(results["algorithms"])]
    return kept or results["rungs"][:1]


def _setting(entry: Mapping[str, Any], algorithm: str, name: str) -> Any:
    settings = entry["settings"]
    return settings[name] if name in settings else settings[f"{algorithm}.{name}"]


# ---- learning curves ----


def _curves(results: Results, one: Mapping[str, Any], store: Store) -> Chart:
    name, entries = one["algorithm"], one["configurations"][:MOST_CURVES]
    curves = []
    for variant, entry in enumerate(entries):
        points = {"curve": _spread(_cells(store, entry["cells"]))}
        curves.append(series(entry["label"], style_of(name, variant), points, scale={"round": 1}))
    some = f"The best {len(entries)} of {one['tried']}. " if one["tried"] > len(entries) else ""
    return lines(
        f"configurations.{name.replace(':', '-')}",
        f"Learning curves of {name}",
        f"{some}Accuracy on {HELD_OUT}: the line is the mean over seeds, the band their range.",
        [curve for curve in curves if curve["points"]],
        x={"round": "round"},
        y={"curve": _HELD_OUT_AXIS},
    )


def _final_curves(results: Results, store: Store) -> Chart:
    cells = {name: _cells(store, names) for name, names in results["final"]["cells"].items()}
    curves = [
        series(name, style_of(name), {"curve": _spread(found)}, scale={"round": 1}) for name, found in cells.items()
    ]
    return lines(
        "final",
        "The best of each, on the test set",
        "The line is the mean over seeds, the band their range.",
        [curve for curve in curves if curve["points"]],
        x={"round": "round"},
        y={"curve": _TEST_AXIS},
    )


def _spread(cells: Sequence[Cell]) -> list[Any]:
    if not cells:
        return []
    return spread([list(zip(cell["rounds"], row["curve"], strict=False)) for cell in cells for row in cell["results"]])


def _cells(store: Store, names: Sequence[str]) -> list[Cell]:
    paths = [store.cells / f"{name}.json" for name in names]
    return [read_json(path) for path in paths if path.exists()]


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, numbers[:-1])), str(numbers[-1])]))
