"""Figures for a run folder, drawn without a screen."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedgen.data.partition import PARTITIONERS
from fedgen.files import replacing
from fedgen.registry import options_of
from fedgen.report.curves import HEADLINE, TITLES, curve_of, shown_first, spread
from fedgen.report.runs import read_records
from fedgen.report.styles import DASHES, LIGHT, Style, style_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_curves(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """The score over rounds of each algorithm (mean and range over seeds), as PNG and SVG."""
    return save_figure(curves_figure(summary, read_records(folder)), folder, "curves")


def curves_figure(summary: Mapping[str, Any], records: Sequence[dict[str, Any]]) -> "Figure":
    """The same as a figure."""
    config = summary["config"]
    metric = shown_first(config["score"], records)
    curves: dict[str, list[list[list[float]]]] = {}
    for row in summary["results"]:
        own = [r for r in records if (r["algorithm"], r["seed"]) == (row["algorithm"], row["seed"])]
        if curve := curve_of(own, metric):
            curves.setdefault(row["algorithm"], []).append(curve)
    seeds = f"{config['seeds']} seeds" if config["seeds"] > 1 else f"seed {config['seed']}"
    return line_figure(
        [Line(name, spread(runs), style_of(name)) for name, runs in curves.items()],
        x_title="round",
        y_title="test accuracy, %" if config["evaluate_on"] == "test" else "validation accuracy, %",
        title=f"{heading(config)}, {seeds}" + ("" if metric == HEADLINE else f"\n{TITLES[metric]}"),
    )


class Line(NamedTuple):
    """A curve of a figure."""

    name: str
    points: Sequence[Sequence[float]]  # x, mean, lowest, highest
    style: Style
    published: Sequence[Sequence[float]] = ()  # x, mean


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches; what is put into it does not overlap."""
    # Imported only where something is drawn: 25 MB, which a run would else hold while it compiles.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def line_figure(
    lines: Sequence[Line],
    *,
    x_title: str,
    y_title: str,
    title: str,
    markers: bool = False,
    log: bool = False,
    scatter: bool = False,
) -> "Figure":
    """Curves with their ranges, and beside them the last value of each; hollow: published values.

    With `markers` they go through single points, of which the last means nothing; with `scatter` these are not joined.
    """
    figure = new_figure(8, 4.2)
    axes = figure.add_subplot()
    drawn = [line for line in lines if len(line.points)]
    for line in drawn:
        x, mean, low, high = np.array(line.points).T
        colour, dash = LIGHT[line.style[0]], DASHES[line.style[1]]
        marker = "o" if markers or len(x) == 1 else None
        label = line.name if markers else f"{line.name}  {mean[-1]:.1f}"
        (curve,) = axes.plot(x, mean, label=label, color=colour, marker=marker, linestyle="" if scatter else "-")
        if dash and not scatter:
            curve.set_dashes(dash)
        if np.any(low < high):
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
        if line.published:
            axes.plot(*np.array(line.published).T, ls="", marker="o", mfc="none", color=colour)
    axes.set(xlabel=x_title, ylabel=y_title, title=title, xscale="log" if log else "linear")
    axes.grid(alpha=0.3)
    if drawn:
        figure.legend(loc="outside right center", frameon=False, title=None if markers else "last value")
    return figure


def heading(config: Mapping[str, Any]) -> str:
    """What a run is about, in a line."""
    partition = config["partition"]
    if "alpha" in options_of(PARTITIONERS[partition]):
        partition += f" α = {config['alpha']:g}"
    return f"{config['dataset']}, {partition}, preset {config['preset']}"


def save_figure(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """A figure as PNG and SVG, each written whole or not at all; the same figure gives the same bytes."""
    from matplotlib import rc_context

    metadata = {"png": {}, "svg": {"Date": None}}
    paths = [folder / f"{name}.{form}" for form in metadata]
    for path, said in zip(paths, metadata.values(), strict=True):
        with replacing(path) as temporary, rc_context({"svg.hashsalt": name}):
            figure.savefig(temporary, dpi=150, format=path.suffix[1:], metadata=said)
    return paths
