"""Two of ten sites send poison: minus five times the update they should. What does each aggregation make of it?

    python examples/poisoned_sites.py [FOLDER [ROUNDS]]

prints the accuracies with and without the poison, and with FOLDER draws poisoned.svg there (it is in docs/).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import fedgen
from fedgen.algorithms.fedavg import fedavg
from fedgen.report.figures import Line, line_figure, save_figure

POISONED = 2  # of ten
AGGREGATIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "clipped mean": {"clip": 1.0},
    "median": {"aggregation": "median"},
    "trimmed mean": {"aggregation": "trimmed", "trim": 0.2},
}


def poisoned_fedavg(task: fedgen.Task, federation: fedgen.Federation) -> fedgen.Algorithm:
    """FedAvg in which the first users turn their updates around."""
    base = fedavg(task, federation)

    def server_update(server: Any, uploads: Any, round: fedgen.Round) -> tuple[Any, dict[str, jax.Array]]:
        bad = round.cohort < POISONED

        def poison(sent: jax.Array, start: jax.Array) -> jax.Array:
            return jnp.where(bad.reshape(-1, *[1] * start.ndim), start - 5 * (sent - start), sent)

        params = jax.tree.map(poison, uploads.params, server.params)
        return base.server_update(server, uploads._replace(params=params), round)

    return base._replace(server_update=server_update)


def accuracies(
    algorithms: Sequence[str] = ("fedavg", "poisoned"), rounds: int = 40, **settings: Any
) -> dict[str, dict[str, list[list[float]]]]:
    """The learning curve of each aggregation, honest and poisoned."""
    fedgen.ALGORITHMS["poisoned"] = poisoned_fedavg
    try:
        curves: dict[str, dict[str, list[list[float]]]] = {}
        for name, options in AGGREGATIONS.items():
            common = {"users": 10, "active": 10, "rounds": rounds, "alpha": 1.0, "lr": 0.1, **settings}
            summary = fedgen.simulate(algorithms, **common, **options, eval_every=2)
            curves[name] = {row["algorithm"]: row["curve"] for row in summary["results"]}
        return curves
    finally:
        del fedgen.ALGORITHMS["poisoned"]


if __name__ == "__main__":
    fedgen.use_machine_well()
    found = accuracies(rounds=int(sys.argv[2]) if len(sys.argv) > 2 else 40)
    for name, curves in found.items():
        honest, poisoned = (curves[algorithm][-1][1] for algorithm in ("fedavg", "poisoned"))
        print(f"{name:14} honest {honest:6.2f} %   2 of 10 poisoned {poisoned:6.2f} %")
    if len(sys.argv) > 1:
        lines = [
            Line(name, [[x, y, y, y] for x, y in curves["poisoned"]], (number, 0))
            for number, (name, curves) in enumerate(found.items())
        ]
        title = "MNIST, α = 1, 2 of 10 sites send −5 times their update"
        figure = line_figure(lines, x_title="round", y_title="test accuracy, %", title=title)
        save_figure(figure, Path(sys.argv[1]), "poisoned")
