"""The page's figures as files for a paper: PNG and SVG, drawn without a browser."""

import textwrap
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np

from fedgen.report.evaluations import confusion_figure
from fedgen.report.figures import Line, line_figure, save_figure
from fedgen.report.partitions import bubbles
from fedgen.report.parts import Chart, Page


def save_charts(page: Page, folder: Path) -> list[Path]:
    """Each figure of the page; where there is a choice (of a row, of a metric) one for each."""
    return [
        path
        for section in page.sections
        for chart in section.charts
        for path in (chart.save(folder) if chart.save else _SAVE[chart.kind](chart, section.title, folder))
    ]


def _lines(chart: Chart, about: str, folder: Path) -> list[Path]:
    data, paths = chart.data, []
    axis = next(iter(data["x"]))
    first = data["first"] if data["first"] in data["y"] else next(iter(data["y"]))
    for (choice, named), (ending, metric) in product(data["y"].items(), data["metrics"].items()):
        shown = choice + ending
        lines = [
            Line(s["name"], s["points"].get(shown, ()), s["style"], s.get("published", {}).get(shown, ()))
            for s in data["series"]
        ]
        what = f"{chart.title}, {named['title']}" if len(data["y"]) > 1 else chart.title
        what += f", {metric}" if ending else ""
        figure = line_figure(
            lines,
            x_title=data["x"][axis],
            y_title=named["axis"],
            title="\n".join(textwrap.wrap(f"{about}: {what}", 75)),
            markers=data.get("markers", False),
            scatter=data.get("scatter", False),
            log=data.get("log", False),
        )
        name = chart.name if choice == first else f"{chart.name}.{choice}"
        paths += save_figure(figure, folder, name + ending.replace("/", "."))
    return paths


def _bubbles(chart: Chart, about: str, folder: Path) -> list[Path]:
    panels = {title: np.array(panel["counts"]) for title, panel in chart.data["panels"].items()}
    return bubbles(panels, folder, chart.name, chart.data["names"])


def _matrices(chart: Chart, about: str, folder: Path) -> list[Path]:
    paths = []
    for number, (title, confusion) in enumerate(chart.data["panels"].items()):
        figure = confusion_figure(confusion, chart.data["names"], "\n".join(textwrap.wrap(f"{about}: {title}", 60)))
        paths += save_figure(figure, folder, chart.name if number == 0 else f"{chart.name}.{number}")
    return paths


_SAVE: dict[str, Callable[[Chart, str, Path], list[Path]]] = {
    "lines": _lines,
    "bubbles": _bubbles,
    "matrix": _matrices,
}
