"""The paper's figure of label distributions: users by labels, a bubble for each, its area the number of samples."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.report.figures import new_figure, save_figure

MOST_USERS = 50  # with more the bubbles overlap
_NAMED = 40  # with more the names of labels overlap
_LARGEST = 200.0  # points², the area of the largest bubble


def bubbles(
    panels: Mapping[str, NDArray[np.int64]], folder: Path, name: str, class_names: Sequence[str] = ()
) -> list[Path]:
    """Counts [user, label] by title, side by side, as PNG and SVG; of many users the first ones."""
    users = max(min(len(counts), MOST_USERS) for counts in panels.values())
    labels = max(counts.shape[1] for counts in panels.values())
    figure = new_figure(1.2 + len(panels) * (0.6 + 0.16 * users), 1.2 + 0.2 * max(labels, 10))
    all_axes: Any = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    largest = max(int(counts[:MOST_USERS].max()) for counts in panels.values())
    for axes, (title, counts) in zip(all_axes, panels.items(), strict=True):
        user, label = np.nonzero(counts[:MOST_USERS])
        axes.scatter(user, label, s=_LARGEST * counts[user, label] / largest, color="tab:red", linewidths=0)
        axes.set(xlabel=_axis(len(counts)), title=title, xlim=(-1, users), ylim=(-1, labels))
        axes.set(xticks=_ticks(users), yticks=_ticks(labels))
        axes.grid(alpha=0.2)
        axes.set_axisbelow(True)
    all_axes[0].set_ylabel("label")
    if class_names and labels <= _NAMED:
        all_axes[0].set_yticks(range(labels), [textwrap.shorten(text, 24, placeholder="…") for text in class_names])
    figure.suptitle(f"area: samples; the largest bubble is {largest:,}", fontsize="small")
    return save_figure(figure, folder, name)


def _ticks(count: int) -> range:
    """At most ten of the numbers 0 to count - 1: there is no user 2.5, and no label beyond the last."""
    step = next(s for s in (factor * 10**power for power in range(9) for factor in (1, 2, 5)) if count <= 10 * s)
    return range(0, count, step)


def _axis(users: int) -> str:
    return "user" if users <= MOST_USERS else f"user (the first {MOST_USERS} of {users:,})"
