"""The figure of the prototype: decision regions before and after distillation, and where the generator's points lie."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgen.report.figures import new_figure, save_figure
from fedgen.report.styles import LABEL_COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = ("o", "s", "D", "^", "v")
_TINT = 0.3  # share of the colour in a region, the rest is white
_INK, _QUIET = "#222222", "#6B6B6B"


def prototype_figure(result: Mapping[str, Any], folder: Path, name: str = "prototype") -> list[Path]:
    """The experiment's picture as PNG and SVG: the models above, the generator below, the accuracies beside."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.patches import Rectangle

    pictures = result["pictures"]
    extent, users, regions, accuracy = (pictures[key] for key in ("extent", "users", "regions", "accuracy"))
    all_points = {key: [value for user in users for value in user[key]] for key in ("x", "y")}
    figure = new_figure(13.2, 9.4)
    figure.set_layout_engine(ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.06))
    cells = figure.add_gridspec(3, 5, width_ratios=[1, 1, 1, 1, 1.3])
    for row, when in enumerate(("before", "after")):
        for user, held in enumerate(result["settings"]["labels_of_users"]):
            axes = figure.add_subplot(cells[row, user])
            _draw(axes, regions[when][user], extent, users[user])
            _name(axes, f"User {user + 1} {when}: {accuracy[when][user]:.1f} %", _lacking(held))
    for row, (model, title, subtitle) in enumerate(
        (("average", "Average", "of the users' models before"), ("oracle", "Oracle", "trained on all users' data"))
    ):
        axes = figure.add_subplot(cells[row, 3])
        _draw(axes, regions[model][0], extent, all_points)
        _name(axes, f"{title}: {accuracy[model]:.1f} %", subtitle)
    for column, stage in enumerate(pictures["samples"]):
        axes = figure.add_subplot(cells[2, column])
        beyond = column == cells.ncols - 1  # later than the paper shows, and so far out that it takes a wider view
        if beyond:
            _draw(axes, pictures["wide_regions"]["oracle"][0], pictures["wide_extent"], stage)
            axes.add_patch(
                Rectangle((extent[0], extent[2]), extent[1] - extent[0], extent[3] - extent[2],
                          fill=False, linestyle="--", edgecolor=_INK)
            )  # fmt: skip
        else:
            _draw(axes, regions["oracle"][0], extent, stage)
        subtitle = f"{stage['recognised']:.0f} % recognised by the oracle"
        if beyond:
            subtitle = "beyond the paper's last; dashed: the other views"
        _name(axes, f"Generator after {stage['steps']} steps", subtitle)
    _compare(figure.add_subplot(cells[:2, 4]), result)
    shown = f"pictures: seed {pictures['seed']}" + ("; a quick run" if result["quick"] else "")
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(LABEL_COLOURS), frameon=False
    )
    figure.suptitle(f"Distillation in the plane: users' decision regions, and what the generator learned ({shown})")
    return save_figure(figure, folder, name)


def _lacking(held: Sequence[int]) -> str:
    missing = [str(label + 1) for label in range(len(LABEL_COLOURS)) if label not in held]
    return f"its data lack label {' and '.join(missing)}" if missing else "its data have all labels"


def _name(axes: "Axes", title: str, subtitle: str) -> None:
    axes.set_title(title, fontsize=10.5, color=_INK, pad=18)
    axes.annotate(
        subtitle, (0.5, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", ha="center",
        fontsize=8.5, color=_QUIET,
    )  # fmt: skip


def _draw(axes: "Axes", regions: Sequence[str], extent: Sequence[float], points: Mapping[str, Any]) -> None:
    """Points over the regions in which a model predicts each label."""
    from matplotlib.colors import ListedColormap, to_rgb

    tints = [tuple(1 - _TINT * (1 - part) for part in to_rgb(colour)) for colour in LABEL_COLOURS]
    left, right, bottom, top = extent
    shown = np.array([[int(label) for label in row] for row in regions])
    axes.imshow(
        shown, cmap=ListedColormap(tints), vmin=-0.5, vmax=len(tints) - 0.5,
        origin="lower", extent=(left, right, bottom, top), interpolation="nearest",
    )  # fmt: skip
    x, y = np.array(points["x"]), np.array(points["y"])
    columns, rows = (
        np.linspace(low, high, 2 * number + 1)[1::2]  # the middles of the squares
        for low, high, number in ((left, right, shown.shape[1]), (bottom, top, shown.shape[0]))
    )
    for label, (colour, marker) in enumerate(zip(LABEL_COLOURS, _MARKERS, strict=True)):
        if label in shown:
            axes.contour(columns, rows, shown == label, levels=[0.5], colors="white", linewidths=1.8)
        chosen = x[y == label]
        axes.scatter(
            chosen[:, 0], chosen[:, 1], s=14, marker=marker, color=colour, edgecolors="white", linewidths=0.4,
            label=f"label {label + 1}", zorder=3,
        )  # fmt: skip
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[])
    axes.spines[:].set_color("#BBBBBB")


def _compare(axes: "Axes", result: Mapping[str, Any]) -> None:
    """All accuracies, with their standard deviations over seeds, and the published ones below each."""
    accuracy, published = result["accuracy"], result["published"]
    users = len(accuracy["before"]["mean"])
    rows = np.arange(users)
    whole = ("average", "ensemble", "oracle")
    series: list[tuple[str, Any, dict[str, Any]]] = [
        ("before", rows, {"marker": "o", "markerfacecolor": "white", "label": "before"}),
        # Set off: where further steps alone change nothing it would hide "before".
        ("control", rows + 0.12, {"marker": "x", "label": "control: no generator"}),
        ("after", rows, {"marker": "o", "label": "after"}),
        *((name, users + place, {"marker": "D", "label": None}) for place, name in enumerate(whole)),
    ]
    for name, places, style in series:
        mean, std = accuracy[name]["mean"], accuracy[name]["std"]
        axes.errorbar(
            mean, places, xerr=std, linestyle="none", color=LABEL_COLOURS[0], markersize=6, capsize=2, **style
        )
        if name in published:
            below = {**style, "label": None, "linestyle": "none", "color": _QUIET, "markersize": 4.5}
            axes.plot(published[name], places + 0.28, **below)
    axes.errorbar([], [], linestyle="none", marker="o", color=_QUIET, markersize=4.5, label="grey: published")
    lowest = min(np.min(numbers) for numbers in (accuracy["before"]["mean"], accuracy["average"]["mean"]))
    names = [*(f"user {user + 1}" for user in range(users)), *whole]
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(lowest - 3, 100), ylim=(len(names) - 0.4, -0.5), xlabel="accuracy on all labels, %")
    seeds = len(result["seeds"])
    _name(axes, "Accuracy", f"mean ± std over {seeds} seeds" if seeds > 1 else f"seed {result['seeds'][0]} alone")
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.legend(loc="lower left", frameon=False, fontsize=8.5, handletextpad=0.3)
