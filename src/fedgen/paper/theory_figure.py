"""The figure of the measured theorem: distances and risks over rounds, as files and on the page."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgen.paper.theory import over_users
from fedgen.report.charts import lines, series
from fedgen.report.figures import new_figure, save_figure
from fedgen.report.parts import Chart
from fedgen.report.styles import DASHES, LIGHT, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DISTANCE = "proxy-A distance (0: alike, 2: told apart)"
_RISK = "cross-entropy"
_INK = "#222222"  # of what is no algorithm's
# What is measured: its name, the axis.
SHOWN = {
    "own": ("user's features to all users'", _DISTANCE),
    "augmented": ("half and half with generated ones", _DISTANCE),
    "ideal": ("half and half with others of all users", _DISTANCE),
    "generated": ("generated features to all users'", _DISTANCE),
    "risk": ("on the user's own training data", _RISK),
    "test_risk": ("on the test set", _RISK),
    "global_risk": ("on the test set, of the model that the server predicts with", _RISK),
}
_PANELS = {
    "Users' latent features": ("own", "augmented", "ideal"),
    "The generator's features": ("generated",),
    "Risk of the broadcast model": ("risk", "test_risk"),
}


def theory_figure(result: Mapping[str, Any], folder: Path, name: str = "theory") -> list[Path]:
    """The experiment's picture as PNG and SVG: means over users; the bands are the range of the seeds."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = new_figure(16, 4.6)
    figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12))
    all_axes: Any = figure.subplots(1, len(_PANELS) + 1)
    colours = {key: LIGHT[colour] for key, (colour, _) in styles_of(result["columns"]).items()}
    for axes, (title, keys) in zip(all_axes, _PANELS.items(), strict=False):
        _over_rounds(axes, result, keys, colours)
        axes.set(title=title, xlabel="round", ylabel=SHOWN[keys[0]][1], xscale="log")
        axes.set_xticks(result["rounds"], result["rounds"])
        axes.minorticks_off()
        if SHOWN[keys[0]][1] == _DISTANCE:
            axes.set_ylim(0, 2.05)
    all_axes[2].set_yscale("log")
    _users(all_axes[-1], result, colours)
    handles = [all_axes[0].plot([], [], color=colours[c["name"]], lw=2)[0] for c in result["columns"]]
    figure.legend(
        handles, [c["label"] for c in result["columns"]], loc="outside lower center", ncols=len(handles), frameon=False
    )
    return save_figure(figure, folder, name)


def _over_rounds(axes: "Axes", result: Mapping[str, Any], keys: tuple[str, ...], colours: Mapping[str, str]) -> None:
    for place, key in enumerate(keys):
        axes.plot([], [], color=_INK, dashes=DASHES[place] or (None, None), lw=1.3, label=SHOWN[key][0])
        for column, colour in colours.items():
            if (values := over_users(result, column, key)) is None:
                continue
            (line,) = axes.plot(result["rounds"], values.mean(axis=0), marker="o", ms=3.5, lw=1.3, color=colour)
            if DASHES[place]:
                line.set_dashes(DASHES[place])
            axes.fill_between(result["rounds"], values.min(axis=0), values.max(axis=0), color=colour, alpha=0.12, lw=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8, loc="best")


def _users(axes: "Axes", result: Mapping[str, Any], colours: Mapping[str, str]) -> None:
    """Each user's risk over its distance after the last round, of all seeds."""
    for column, colour in colours.items():
        x, y = (np.concatenate([run[key][-1] for run in result["measured"][column]]) for key in ("own", "risk"))
        axes.plot(x, y, ls="", marker="o", ms=3.5, alpha=0.7, mew=0, color=colour)
    axes.set(
        title=f"Each user, round {result['rounds'][-1]}", xlabel="user's distance to all users",
        ylabel="cross-entropy on its own data", yscale="log",
    )  # fmt: skip
    axes.grid(alpha=0.3)


def theory_chart(result: Mapping[str, Any], name: str) -> Chart:
    """The curves on the page, one quantity at a time."""
    styles = styles_of(result["columns"])
    curves = []
    for column in result["columns"]:
        found = {key: over_users(result, column["name"], key) for key in SHOWN}
        points = {
            key: list(zip(result["rounds"], v.mean(axis=0), v.min(axis=0), v.max(axis=0), strict=True))
            for key, v in found.items()
            if v is not None
        }
        curves.append(series(column["label"], styles[column["name"]], points))
    chart = lines(
        f"{name}.curves", "Distances and risks", "Mean over users and seeds; the band is the range of the seeds.",
        curves, x={"x": "round"}, y={key: {"title": title, "axis": axis} for key, (title, axis) in SHOWN.items()},
        log=True, markers=True,
    )  # fmt: skip
    return Chart(chart.name, chart.kind, chart.title, chart.caption, chart.data, partial(theory_figure, result))
