"""Figures for a run folder, drawn without a screen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def learning_curves(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """The accuracy over rounds of each algorithm (mean and range over seeds), as PNG and SVG."""
    from matplotlib.figure import Figure  # slow to import, and needed only at the end of a run

    curves: dict[str, list[list[list[float]]]] = {}
    for row in summary["results"]:
        if row["curve"]:
            curves.setdefault(row["algorithm"], []).append(row["curve"])
    figure = Figure(figsize=(8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for algorithm, runs in curves.items():
        shortest = min(len(run) for run in runs)  # a run that diverged has fewer evaluations
        values = np.array([[value for _, value in run[:shortest]] for run in runs])
        rounds = [round for round, _ in runs[0][:shortest]]
        (line,) = axes.plot(rounds, values.mean(axis=0), label=f"{algorithm}  {values[:, -1].mean():.1f}")
        if len(runs) > 1:
            axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=line.get_color(), alpha=0.2)
    config = summary["config"]
    seeds = f"{config['seeds']} seeds" if config["seeds"] > 1 else f"seed {config['seed']}"
    axes.set(
        xlabel="round",
        ylabel="test accuracy, %" if config["evaluate_on"] == "test" else "validation accuracy, %",
        title=f"{config['dataset']}, alpha = {config['alpha']:g}, preset {config['preset']}, {seeds}",
    )
    axes.grid(alpha=0.3)
    if curves:
        figure.legend(loc="outside right center", frameon=False, title="last evaluation")
    paths = [folder / "curves.png", folder / "curves.svg"]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
