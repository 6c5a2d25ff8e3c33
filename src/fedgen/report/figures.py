"""Figures for a run folder, drawn without a screen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedgen.algorithms import options_of
from fedgen.data.partition import PARTITIONERS
from fedgen.files import replacing


def learning_curves(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """The accuracy over rounds of each algorithm (mean and range over seeds), as PNG and SVG."""
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
        title=f"{heading(config)}, {seeds}",
    )
    axes.grid(alpha=0.3)
    if curves:
        figure.legend(loc="outside right center", frameon=False, title="last evaluation")
    return save_figure(figure, folder, "curves")


def heading(config: Mapping[str, Any]) -> str:
    """What a run is about, in a line."""
    partition = config["partition"]
    if "alpha" in options_of(PARTITIONERS[partition]):
        partition += f" α = {config['alpha']:g}"
    return f"{config['dataset']}, {partition}, preset {config['preset']}"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """A figure as PNG and SVG, each written whole or not at all."""
    paths = [folder / f"{name}.{form}" for form in ("png", "svg")]
    for path in paths:
        with replacing(path) as temporary:
            figure.savefig(temporary, dpi=150, format=path.suffix[1:])
    return paths
