"""One, two or three of ten users attack: what does it cost, under each way to aggregate?

    python examples/attacks.py [FOLDER [ROUNDS]]

prints a table of accuracies for FedAvg and FedGen, and with FOLDER draws attacks.svg there (see docs/attacks.md).
Attackers change what they upload, knowing what all others send. Those of `label flip` also train on wrong labels.
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedgen
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.fedgen import fedgen as fedgen_algorithm
from fedgen.algorithms.wrap import With, innermost, with_innermost
from fedgen.config import resolve
from fedgen.report.figures import Line, line_figure, save_figure
from fedgen.simulator.engine import Inputs
from fedgen.simulator.setup import Setup, prepare

USERS = 10
BOUND = 2.0  # times the median length: the default of max_update, which attackers know
AGGREGATIONS: dict[str, dict[str, Any]] = {
    "mean, no bound": {"max_update": 0.0},
    "mean (default)": {},
    "clip": {"clip": 1.0},
    "median": {"aggregation": "median"},
    "trimmed": {"aggregation": "trimmed"},
    "centred-clip": {"aggregation": "centred-clip"},
    "multi-krum": {"aggregation": "multi-krum"},
}


class Known(NamedTuple):
    """What attackers know of the honest users' updates."""

    mean: Any
    deviation: Any  # the standard deviation of each number
    length: jax.Array  # the median length of an update


def known(updates: Any, honest: jax.Array) -> Known:
    """The knowledge in updates [user, ...], of which those that are `honest` [user] count."""
    part = honest / jnp.sum(honest)
    mean = jax.tree.map(lambda a: jnp.tensordot(part, a, axes=1), updates)
    square = jax.tree.map(lambda a, m: jnp.tensordot(part, (a - m) ** 2, axes=1), updates, mean)
    lengths = jax.vmap(_length)(updates)
    return Known(mean, jax.tree.map(jnp.sqrt, square), jnp.nanmedian(jnp.where(honest > 0, lengths, jnp.nan)))


def _length(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(tree)))


def _reversal(mine: Any, others: Known) -> Any:
    """The honest mean, negated, as long as may be."""
    factor = BOUND * others.length / jnp.maximum(_length(others.mean), 1e-12)
    return jax.tree.map(lambda m: -factor * m, others.mean)


# What an attacker sends in place of its own update, in the order of the table.
ATTACKS: dict[str, Callable[[Any, Known], Any]] = {
    "sign flip": lambda mine, others: jax.tree.map(lambda a: -a, mine),
    "reversal at the bound": _reversal,
    "label flip × 10": lambda mine, others: jax.tree.map(lambda a: 10 * a, mine),
    "one late shot": _reversal,
    "lying counts": _reversal,
    # Baruch et al. 2019, "A Little Is Enough": within what honest users send, on one side of it
    "ALIE, z = 1.5": lambda mine, others: jax.tree.map(lambda m, s: m - 1.5 * s, others.mean, others.deviation),
}
NAMES = list(ATTACKS)
LABEL_FLIP, LATE, COUNTS = (NAMES.index(name) for name in ("label flip × 10", "one late shot", "lying counts"))


def lying(counts: jax.Array) -> jax.Array:
    """Label counts [..., label] with all mass on the first label."""
    return jnp.zeros_like(counts).at[..., 0].set(jnp.sum(counts, axis=-1))


def under_attack(builder: Callable[..., fedgen.Algorithm]) -> Callable[..., fedgen.Algorithm]:
    """The algorithm with the first `attackers` users attacking in the way of number `attack`; both may vary by run."""

    def attacked(task: Any, federation: Any, *, attack: float = 1.0, attackers: float = 1.0) -> fedgen.Algorithm:
        base = builder(task, federation)

        def server_update(server: Any, uploads: Any, round: fedgen.Round) -> tuple[Any, dict[str, jax.Array]]:
            bad = round.cohort < attackers
            bad &= (attack != LATE) | (round.number == federation.rounds - 1)
            sent, start = innermost(uploads), innermost(server).params
            updates = jax.tree.map(lambda a, b: a - b, sent.params, start)
            others = known(updates, 1.0 - bad)
            forged = [jax.vmap(lambda mine, f=f: f(mine, others))(updates) for f in ATTACKS.values()]

            def chosen(a: jax.Array, b: jax.Array, *ways: jax.Array) -> jax.Array:
                poison = jnp.stack(ways)[jnp.int32(attack)] + b
                return jnp.where(bad.reshape(-1, *[1] * b.ndim), poison, a)

            params = jax.tree.map(chosen, sent.params, start, *forged)
            uploads = with_innermost(uploads, sent._replace(params=params))
            if isinstance(uploads, With):
                lie = (bad & (attack == COUNTS))[:, None]
                counts = jnp.where(lie, lying(uploads.own.counts), uploads.own.counts)
                uploads = With(uploads.base, uploads.own._replace(counts=counts))
            return base.server_update(server, uploads, round)

        return base._replace(server_update=server_update)

    return attacked


BUILDERS = {
    "fedavg": under_attack(fedavg),
    "fedgen": under_attack(lambda task, federation: fedgen_algorithm(task, federation, generator_steps=20)),
}


def with_wrong_labels(setup: Setup) -> Setup:
    """The same with all samples a second time, under wrong labels, which nobody holds yet."""
    data, classes = setup.data, setup.task.classes
    x, y = jnp.concatenate([data.x, data.x]), jnp.concatenate([data.y, classes - 1 - data.y])
    return dataclasses.replace(setup, data=data._replace(x=x, y=y))


def holding_wrong_labels(rows: np.ndarray, size: np.ndarray, samples: int, users: int) -> np.ndarray:
    """The rows of all users in turn, of which the first users hold those with the wrong labels."""
    return np.where(np.arange(len(rows)) < size[:users].sum(), rows + samples, rows)


class Federation:
    """One algorithm and one way to aggregate, compiled once for all attacks."""

    def __init__(self, algorithm: str, rounds: int, **settings: Any) -> None:
        name = f"{algorithm}-under-attack"
        fedgen.ALGORITHMS[name] = BUILDERS[algorithm]
        common = {"users": USERS, "active": USERS, "rounds": rounds, "alpha": 1.0, "lr": 0.1, "model": "mlp"}
        options = {f"{name}.attack": 1.0, f"{name}.attackers": 1.0}
        config = resolve({"algorithms": [name], **common, **options, **settings})
        plain = prepare(config)
        self.samples = len(plain.data.y)
        setup = with_wrong_labels(plain)
        self.inputs = setup.inputs(name, [config.seed])
        self.program = setup.program(name, self.inputs, batched=False)
        self.rounds, self.total = rounds, int(setup.totals(config.seed).sum())

    def accuracy(self, attack: int, attackers: int) -> float:
        """The accuracy at the end, in percent."""
        inputs = self._inputs(attack, attackers)
        state = self.program.advance(inputs, self.program.init(inputs), 0, self.rounds)
        return 100 * float(np.sum(self.program.evaluate(inputs, state, self.rounds).global_model)) / self.total

    def _inputs(self, attack: int, attackers: int) -> Inputs:
        inputs = self.inputs
        hyper = {**inputs.hyper, "attack": jnp.full(1, float(attack)), "attackers": jnp.full(1, float(attackers))}
        wrong = attackers if attack == LABEL_FLIP else 0
        rows, size = np.asarray(inputs.rows[0]), np.asarray(inputs.size[0])
        held = holding_wrong_labels(rows, size, self.samples, wrong)
        return inputs._replace(hyper=hyper, rows=jnp.asarray(held)[None])


def table(algorithm: str, rounds: int, **settings: Any) -> dict[str, dict[str, list[float]]]:
    """By aggregation and attack: the accuracy with 1, 2 and 3 attackers, or with none."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, options in AGGREGATIONS.items():
        federation = Federation(algorithm, rounds, **{**settings, **options})
        found[name] = {"none": [federation.accuracy(0, 0)]}
        for number, attack in enumerate(ATTACKS):
            if number != COUNTS or algorithm == "fedgen":
                found[name][attack] = [federation.accuracy(number, attackers) for attackers in (1, 2, 3)]
    return found


def show(algorithm: str, found: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Print the table as Markdown."""
    attacks = list(next(iter(found.values())))
    print(f"| {algorithm} | {' | '.join(attacks)} |\n|{'---|' * (len(attacks) + 1)}")
    for name, row in found.items():
        print(f"| {name} | {' | '.join(' '.join(f'{a:.1f}' for a in row[attack]) for attack in attacks)} |")
    print(flush=True)


def draw(folder: Path, found: Mapping[str, Mapping[str, list[float]]]) -> None:
    """Draw the accuracy under the worst of the attacks against the number of attackers."""
    lines = []
    for number, (name, row) in enumerate(found.items()):
        worst = [min(scores) for scores in zip(*(row[name] for name in row if name != "none"), strict=True)]
        lines.append(Line(name, [[x, y, y, y] for x, y in enumerate(row["none"] + worst)], (number, 0)))
    title = "FedAvg on MNIST: the worst of the attacks"
    labels = {"x_title": "attackers among 10 users", "y_title": "test accuracy, %"}
    figure = line_figure(lines, **labels, title=title, markers=True)
    save_figure(figure, folder, "attacks")


if __name__ == "__main__":
    fedgen.use_machine_well()
    length = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    for algorithm in BUILDERS:
        scores = table(algorithm, length)
        show(algorithm, scores)
        if len(sys.argv) > 1 and algorithm == "fedavg":
            draw(Path(sys.argv[1]), scores)
