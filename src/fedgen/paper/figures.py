"""The figures of a reproduction as files: curves, accuracies over settings, partitions, the prototype, the theorem."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.paper.prototype_figure import prototype_figure
from fedgen.paper.results import Results, differs, results_name
from fedgen.paper.theory_figure import theory_figure
from fedgen.report.figures import new_figure, save_figure
from fedgen.report.partitions import bubbles
from fedgen.report.styles import DASHES, LIGHT, styles_of

_BESIDE = 4  # figures side by side
_LETTERS = 40  # below a figure, in a line
_FAR = 25.0  # points below the best: further down a curve would flatten the others
_BAND = 0.12  # how opaque a band is; half of it where more than a few overlap
_FEW = 3
_ROOM = 0.06  # above and below what is shown, of its height


def draw(results: Results, folder: Path) -> list[Path]:
    """An experiment's figures as PNG and SVG, in `figures/` of the results."""
    name = results_name(results)
    place = folder / "figures"
    if "prototype" in results:
        return prototype_figure(results["prototype"], place, name)
    if "theory" in results:
        return theory_figure(results["theory"], place, name)
    if "labels" in results:
        counts = {panel["label"]: np.array(panel["counts"]) for panel in results["labels"]}
        return bubbles(counts, place, name)
    panels = [figure for figure in results["figures"] if figure["series"]]
    return _panels(results, panels, place, name) if panels else []


def _panels(results: Results, panels: Sequence[Mapping[str, Any]], folder: Path, name: str) -> list[Path]:
    columns = min(len(panels), _BESIDE)
    places = _places([panel["kind"] for panel in panels], columns)
    rows = places[-1] // columns + 1
    figure = new_figure(3.4 * columns + 1.6, 2.9 * rows + 0.5)
    all_axes: Any = figure.subplots(rows, columns, squeeze=False)
    styles = styles_of(results["columns"])
    for place in set(range(rows * columns)) - set(places):
        all_axes.flat[place].set_visible(False)
    handles: dict[str, Any] = {}
    for place, panel in zip(places, panels, strict=True):
        axes = all_axes.flat[place]
        alpha = _BAND if len(panel["series"]) <= _FEW else _BAND / 2
        for one in panel["series"]:
            colour, dash = styles[one["name"]]
            marker = "o" if panel["kind"] == "lines" else ""
            (line,) = axes.plot(one["x"], one["y"], marker=marker, ms=3.5, lw=1.3, color=LIGHT[colour])
            if DASHES[dash]:
                line.set_dashes(DASHES[dash])
            axes.fill_between(one["x"], one["low"], one["high"], color=LIGHT[colour], alpha=alpha, lw=0)
            handles.setdefault(one["label"], line)
            if one.get("published"):
                x, y = zip(*one["published"], strict=True)
                axes.plot(x, y, ls="", marker="o", ms=5, mfc="none", mew=0.9, color=LIGHT[colour])
        axes.set(xlabel="\n".join([panel["x_label"], *_look_at_the_top(axes, panel)]), title=panel["title"])
        if panel["log"]:
            axes.set_xscale("log")
        axes.grid(alpha=0.3)
    for axes in all_axes[:, 0]:
        axes.set_ylabel(panels[0]["y_label"])
    order = [column["label"] for column in results["columns"] if column["label"] in handles]
    figure.legend([handles[label] for label in order], order, loc="outside right center", frameon=False)
    quick = "\na look, not a result" if results["quick"] else ""
    hollow = (
        "; hollow: published, by the authors' metric"
        if any(one.get("published") for panel in panels for one in panel["series"])
        else ""
    )
    shown = f"; {len(order)} of {len(results['columns'])} columns" if len(order) < len(results["columns"]) else ""
    kinds = {panel["kind"] == "lines" for panel in panels}
    bands = " and ".join([*["all seeds"][: False in kinds], *["one standard deviation"][: True in kinds]])
    title = f"{results['title']}, preset {results['preset']}{differs(results)}{shown}; bands: {bands}{hollow}"
    letters = int(11 * figure.get_figwidth())  # of this size, in a line
    figure.suptitle("\n".join(textwrap.wrap(title, letters)) + quick, fontsize="medium")
    return save_figure(figure, folder, name)


def _places(kinds: Sequence[str], columns: int) -> list[int]:
    """Where each panel stands, counted by rows: another kind begins a row of its own."""
    places: list[int] = []
    for number, kind in enumerate(kinds):
        after = places[-1] + 1 if places else 0
        new = number > 0 and kind != kinds[number - 1]
        places.append(-(-after // columns) * columns if new else after)
    return places


def _look_at_the_top(axes: Any, panel: Mapping[str, Any]) -> list[str]:
    """Leave out the first third of learning curves and what is far below, and say what lies below the frame."""
    spans = [_range(one, panel["kind"]) for one in panel["series"]]
    spans += [(y, y) for one in panel["series"] for _, y in one.get("published", ())]
    lowest, highest = zip(*spans, strict=True)
    far = 100 if panel.get("whole") else _FAR
    ends = {one["label"]: one["y"][-1] for one in panel["series"]}
    near = [low for low in lowest if low >= max(ends.values()) - far]
    top, bottom = max(highest), min(near or lowest)
    room = _ROOM * (top - bottom) + 0.1
    bottom = max(bottom - room, 0)
    axes.set_ylim(bottom, min(top + room, 100))
    below = [f"{label} {end:.0f}" for label, end in ends.items() if end < bottom]
    partly = [one["label"] for one in panel["series"] if min(one["y"]) < bottom <= one["y"][-1]]
    if panel["kind"] == "lines":
        below += [f"{label} in part" for label in partly]
    whole = [one.replace(" ", "\N{NO-BREAK SPACE}") for one in below]  # a name and its number stay in one line
    return textwrap.wrap(f"(below the frame: {', '.join(whole)})", _LETTERS) if below else []


def _range(one: Mapping[str, Any], kind: str) -> tuple[float, float]:
    """The lowest and the highest value of a curve that is worth showing: of a learning curve after its first third."""
    if kind == "lines":
        return min(one["y"]), max(one["high"])
    late = [y for x, y in zip(one["x"], one["y"], strict=True) if 3 * x >= one["x"][-1]]
    return min(late), max(late)
