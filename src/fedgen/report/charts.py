"""The page's figures, from numbers to what its script draws."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedgen.data.describe import describe
from fedgen.report.partitions import MOST_USERS
from fedgen.report.parts import Chart
from fedgen.report.styles import Style

Points = Sequence[Sequence[float]]  # each x, mean, lowest, highest


def series(
    name: str,
    style: Style,
    points: Mapping[str, Points],
    *,
    scale: Mapping[str, float] | None = None,
    published: Mapping[str, Points] | None = None,
) -> dict[str, Any]:
    """A curve for each thing that can be shown; `scale` turns its x into that of each axis."""
    kept = {key: [[x, *map(_short, rest)] for x, *rest in curve] for key, curve in points.items() if len(curve)}
    return {
        "name": name,
        "style": list(style),
        "scale": dict(scale or {"x": 1}),
        "points": kept,
        "published": {key: [list(point) for point in curve] for key, curve in (published or {}).items() if curve},
    }


def lines(
    name: str,
    title: str,
    caption: str,
    curves: Sequence[Mapping[str, Any]],
    *,
    x: Mapping[str, str],
    y: Mapping[str, Mapping[str, str]],
    metrics: Mapping[str, str] | None = None,
    first: str = "",
    log: bool = False,
    markers: bool = False,
    scatter: bool = False,
) -> Chart:
    """Curves to choose from: by `y` (a metric, a setting) and over one of `x`.

    Where each of `y` is there by several `metrics`, these are the endings of its name and their titles. With `scatter`
    points are not joined.
    """
    data = {
        "x": dict(x),
        "y": dict(y),
        "metrics": dict(metrics or {"": ""}),
        "first": first,
        "log": log,
        "markers": markers,
        "scatter": scatter,
        "series": list(curves),
    }
    return Chart(name, "lines", title, caption, data)


def bubbles(
    name: str,
    title: str,
    caption: str,
    panels: Mapping[str, Sequence[Sequence[int]]],
    class_names: Sequence[str] = (),
) -> Chart:
    """Who holds how many samples of each label, in one or several partitions: counts [user, label] by title."""
    shown = {}
    for panel, counts in panels.items():
        held = np.array(counts)
        users = describe(held)
        shown[panel] = {
            "counts": held[:MOST_USERS].tolist(),
            "caption": f"A user holds {users.samples.min():,} to {users.samples.max():,} samples of"
            f" {users.labels.min()} to {users.labels.max()} labels; as many as"
            f" {users.effective.mean():.1f} equally frequent ones, on average.",
        }
    return Chart(name, "bubbles", title, caption, {"panels": shown, "names": list(class_names)})


def _short(value: float) -> float:
    return float(f"{value:.7g}")  # more than a figure can show
