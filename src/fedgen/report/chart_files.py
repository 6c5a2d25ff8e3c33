"""The page's figures as files for a paper: PNG and SVG, drawn without a browser."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedgen.report.figures import Line, line_figure, save_figure
from fedgen.report.partitions import bubbles
from fedgen.report.parts import Chart, Page
from fedgen.report.prototype import prototype_figure


def save_charts(page: Page, folder: Path) -> list[Path]:
    """Each figure of the page, as it is shown first."""
    return [path for section in page.sections for chart in section.charts for path in _SAVE[chart.kind](chart, folder)]


def _lines(chart: Chart, folder: Path) -> list[Path]:
    data = chart.data
    metric = data["first"] if data["first"] in data["y"] else next(iter(data["y"]))
    axis = next(iter(data["x"]))
    lines = [Line(s["name"], s["points"].get(metric, ()), s["style"]) for s in data["series"]]
    figure = line_figure(
        lines,
        x_title=data["x"][axis],
        y_title=data["y"][metric]["axis"],
        title=chart.title,
        markers=data.get("markers", False),
    )
    return save_figure(figure, folder, chart.name)


def _bubbles(chart: Chart, folder: Path) -> list[Path]:
    panels = {title: np.array(panel["counts"]) for title, panel in chart.data["panels"].items()}
    return bubbles(panels, folder, chart.name)


def _panels(chart: Chart, folder: Path) -> list[Path]:
    return prototype_figure(chart.origin, folder)


_SAVE: dict[str, Callable[[Chart, Path], list[Path]]] = {"lines": _lines, "bubbles": _bubbles, "panels": _panels}
