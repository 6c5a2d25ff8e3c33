"""One, two or three of ten users attack: what does it cost, under each way to aggregate?

    python examples/attacks.py [--algorithm fedgen] [--alpha 1 0.1] [--seeds 3] [--rounds 40 200] [--json FILE]

prints tables of accuracies, and with `--folder` draws attacks.svg there (see docs/attacks.md). What is in FILE already
is not computed again. Attackers change what they upload, knowing what all others send. Those of `label flip` also train
on wrong labels, as do those of `wrong labels`, who send what comes out. Those of `ascent` raise the loss of the model
that will result. A GPU computes all attacks, seeds and values of alpha at once.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedgen
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.feddyn import feddyn
from fedgen.algorithms.fedgen import Upload as LabelCounts
from fedgen.algorithms.fedgen import fedgen as fedgen_algorithm
from fedgen.algorithms.fedmoments import fedmoments
from fedgen.algorithms.fedopt import fedopt
from fedgen.algorithms.scaffold import Control, scaffold
from fedgen.algorithms.wrap import With, innermost, with_innermost
from fedgen.config import resolve
from fedgen.core.losses import cross_entropy, infer
from fedgen.core.trees import is_off
from fedgen.presets import tuned
from fedgen.registry import options_of
from fedgen.report.figures import Line, line_figure, save_figure
from fedgen.runs.division import load_dataset
from fedgen.simulator.engine import Inputs
from fedgen.simulator.setup import Setup, prepare_together
from fedgen.simulator.sharding import place

USERS = 10
BOUND, AGAINST = 2.0, 2.0  # `max_update` and `max_against` that attackers keep to where there is no bound
SAMPLES, STEPS = 1000, 25  # images by which an ascent measures harm, and its steps in a round
WRONG_ENOUGH = 4.0  # the loss of one image up to which an ascent raises it: then it raises that of others
AGGREGATIONS: dict[str, dict[str, Any]] = {
    "mean, no bound": {"max_update": 0.0},
    "mean, length only": {"max_against": 0.0},
    "mean, length only, 1": {"max_against": 0.0, "max_update": 1.0},
    "mean (default)": {},
    "mean, against 1": {"max_against": 1.0},
    "mean, against 1.5": {"max_against": 1.5},
    "mean, length 1": {"max_update": 1.0},
    "clip": {"clip": 1.0},
    "median": {"aggregation": "median"},
    "trimmed": {"aggregation": "trimmed"},
    "centred-clip": {"aggregation": "centred-clip"},
    "multi-krum": {"aggregation": "multi-krum"},
}
Loss = Callable[[Any], jax.Array]  # of a model's parameters


class Known(NamedTuple):
    """What attackers know: what the honest users send, the received model, and a loss to raise."""

    mean: Any
    deviation: Any  # the standard deviation of each number
    longest: jax.Array  # the longest update that the server does not shorten
    against: jax.Array  # how far it may go against their mean, as that of an update as long
    hidden: jax.Array  # how many deviations from the mean are no farther from any honest update than these are apart
    start: Any  # the received model
    share: jax.Array  # of attackers among all users
    loss: Loss | None  # on samples of theirs; None: they have none


def known(
    updates: Any, honest: jax.Array, start: Any, bound: Any = BOUND, most: Any = AGAINST, loss: Loss | None = None
) -> Known:
    """The knowledge in updates [user, ...] of the model `start`, of which those that are `honest` [user] count."""
    part = honest / jnp.sum(honest)
    mean = jax.tree.map(lambda a: jnp.tensordot(part, a, axes=1), updates)
    square = jax.tree.map(lambda a, m: jnp.tensordot(part, (a - m) ** 2, axes=1), updates, mean)
    lengths = jax.vmap(_length)(updates)
    median = jnp.nanmedian(jnp.where(honest > 0, lengths, jnp.nan))
    longest = bound * median
    # How far each honest one goes along the mean of the other honest ones, or against it
    total = jax.tree.map(lambda a: jnp.tensordot(honest, a, axes=1), updates)
    rest = jax.tree.map(lambda a, b: b - a, updates, total)
    along = jnp.abs(jax.vmap(_product)(updates, rest)) / jnp.maximum(jax.vmap(_length)(rest), 1e-12)
    farthest = most * jnp.max(jnp.where(honest > 0, along, 0.0))
    deviation = jax.tree.map(jnp.sqrt, square)
    against = jnp.minimum(0.99 * farthest, longest)
    hidden, share = _hidden(updates, honest, deviation), 1 - jnp.mean(honest)
    return Known(mean, deviation, longest, against, hidden, start, share, loss)


def _hidden(updates: Any, honest: jax.Array, deviation: Any) -> jax.Array:
    """The largest t with |mean - t * deviation - u| at most the distance of two honest updates, for each honest u."""
    rows = jnp.concatenate([a.reshape(len(honest), -1) for a in jax.tree.leaves(updates)], axis=1)
    along = jnp.concatenate([a.reshape(-1) for a in jax.tree.leaves(deviation)])
    away = honest @ rows / jnp.sum(honest) - rows
    pairs = (honest[:, None] * honest) > 0
    squares = jnp.sum(away**2, axis=1)
    apart = jnp.max(jnp.where(pairs, squares[:, None] + squares - 2 * away @ away.T, 0.0))
    b, c = away @ along, jnp.maximum(along @ along, 1e-12)  # squares - 2 b t + c t^2 = apart
    most = (b + jnp.sqrt(jnp.maximum(b**2 - c * (squares - apart), 0.0))) / c
    return jnp.min(jnp.where(honest > 0, most, jnp.inf))


def _product(a: Any, b: Any) -> jax.Array:
    return sum(jnp.sum(x * y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _length(tree: Any) -> jax.Array:
    return jnp.sqrt(sum(jnp.sum(a**2) for a in jax.tree.leaves(tree)))


def _reversal(mine: Any, others: Known) -> Any:
    """The honest mean, negated, as long as may be."""
    factor = others.longest / jnp.maximum(_length(others.mean), 1e-12)
    return jax.tree.map(lambda m: -factor * m, others.mean)


def _outwards(mine: Any, others: Known) -> Any:
    """Along the received model, as long as may be: against nobody's update, and the same way in each round."""
    factor = others.longest / jnp.maximum(_length(others.start), 1e-12)
    return jax.tree.map(lambda a: factor * a, others.start)


def _within(harm: Any, others: Known) -> Any:
    """As far against the honest mean as the server lets pass, and the rest of the length along `harm`, across it."""
    length = jnp.maximum(_length(others.mean), 1e-12)
    share = _product(harm, others.mean) / length**2
    across = jax.tree.map(lambda h, m: h - share * m, harm, others.mean)
    rest = jnp.sqrt(others.longest**2 - others.against**2) / jnp.maximum(_length(across), 1e-12)
    return jax.tree.map(lambda a, m: rest * a - others.against / length * m, across, others.mean)


def _half(mine: Any, others: Known) -> Any:
    """Within the rules: against the mean in every second number, along it in the others."""
    return _within(jax.tree.map(lambda m: -m * (jnp.arange(m.size) % 2).reshape(m.shape), others.mean), others)


def _layer(mine: Any, others: Known) -> Any:
    """Within the rules: against the mean in the predictor, along it in the extractor."""
    extractor = jax.tree.map(jnp.zeros_like, others.mean.extractor)
    return _within(jax.tree.map(jnp.negative, others.mean)._replace(extractor=extractor), others)


def _ascent(first: Any, others: Known, reach: jax.Array, nearest: Callable[[Any], Any]) -> Any:
    """Projected gradient ascent on the loss of the model that comes of the others' mean and this update."""

    def harm(update: Any) -> jax.Array:
        assert others.loss is not None, "an ascent needs samples"
        each = (others.start, others.mean, update)
        return others.loss(jax.tree.map(lambda s, m, a: s + (1 - others.share) * m + others.share * a, *each))

    def step(_: Any, update: Any) -> Any:
        slope = jax.grad(harm)(update)
        size = 0.25 * reach / jnp.maximum(_length(slope), 1e-12)
        return nearest(jax.tree.map(lambda a, b: a + size * b, update, slope))

    return jax.lax.fori_loop(0, STEPS, step, nearest(first))


def within_rules(update: Any, others: Known) -> Any:
    """The nearest update that is not too long and goes not too far against the others' mean."""
    length = jnp.maximum(_length(others.mean), 1e-12)
    along = _product(update, others.mean) / length
    across = jax.tree.map(lambda a, m: a - along / length * m, update, others.mean)
    short = jnp.minimum(1.0, others.longest / jnp.maximum(_length(update), 1e-12))
    room = jnp.sqrt(others.longest**2 - others.against**2)
    narrow = jnp.minimum(1.0, room / jnp.maximum(_length(across), 1e-12))
    fair = short * along >= -others.against
    share = jnp.where(fair, short, narrow)
    far = jnp.where(fair, short * along, -others.against) / length
    return jax.tree.map(lambda a, m: share * a + far * m, across, others.mean)


def _ascent_within_rules(mine: Any, others: Known) -> Any:
    return _ascent(_reversal(mine, others), others, others.longest, lambda update: within_rules(update, others))


def _ascent_near(mine: Any, others: Known) -> Any:
    radius = others.hidden * _length(others.deviation)

    def nearest(update: Any) -> Any:
        away = jax.tree.map(lambda a, m: a - m, update, others.mean)
        factor = jnp.minimum(1.0, radius / jnp.maximum(_length(away), 1e-12))
        return jax.tree.map(lambda a, m: m + factor * a, away, others.mean)

    return _ascent(others.mean, others, radius, nearest)


# What an attacker sends in place of its own update, in the order of the table.
ATTACKS: dict[str, Callable[[Any, Known], Any]] = {
    "sign flip": lambda mine, others: jax.tree.map(lambda a: -a, mine),
    "reversal at the bound": _reversal,
    "label flip × 10": lambda mine, others: jax.tree.map(lambda a: 10 * a, mine),
    "one late shot": _reversal,
    "lying counts": _reversal,
    # Baruch et al. 2019, "A Little Is Enough": within what honest users send, on one side of it
    "ALIE, z = 1.5": lambda mine, others: jax.tree.map(lambda m, s: m - 1.5 * s, others.mean, others.deviation),
    # Within all rules of the server, which it knows: what cannot go against the mean goes elsewhere
    "within the rules, half": _half,
    "within the rules, predictor": _layer,
    # Shejwalkar and Houmansadr 2021, "Manipulating the Byzantine" (min-max): made to pass where distances are judged
    "min-max": lambda mine, others: jax.tree.map(lambda m, s: m - others.hidden * s, others.mean, others.deviation),
    # These optimise: within the rules of the mean, and as near to the others' mean as min-max is
    "ascent": _ascent_within_rules,
    "ascent, near": _ascent_near,
    # Within all rules, too: it is long, but across the others' updates; what adds up over the rounds, this makes large
    "steady push": _outwards,
    # Keeps to every rule: trains as all do, on wrong labels
    "wrong labels": lambda mine, others: mine,
    # No attack: the mean is as if the user were not there, which is what its data is worth to the others
    "absent": lambda mine, others: others.mean,
}
NAMES = list(ATTACKS)
LATE, COUNTS, ABSENT, STEADY = map(NAMES.index, ("one late shot", "lying counts", "absent", "steady push"))
ON_WRONG_LABELS = {NAMES.index(name) for name in ("label flip × 10", "wrong labels")}


def lying(counts: jax.Array) -> jax.Array:
    """Label counts [..., label] with all mass on the first label."""
    return jnp.zeros_like(counts).at[..., 0].set(jnp.sum(counts, axis=-1))


def under_attack(builder: Callable[..., fedgen.Algorithm], x: Any, y: Any) -> Callable[..., fedgen.Algorithm]:
    """The algorithm with the first `attackers` users attacking in the way of number `attack`; both may vary by run.

    All of them have the samples x, as stored, with the labels y.
    """

    def attacked(task: Any, federation: Any, *, attack: float = 1.0, attackers: float = 1.0) -> fedgen.Algorithm:
        base = builder(task, federation)

        def server_update(server: Any, uploads: Any, round: fedgen.Round) -> tuple[Any, dict[str, jax.Array]]:
            bad = round.cohort < attackers
            bad &= (attack != LATE) | (round.number == federation.rounds - 1)
            sent, start = innermost(uploads), innermost(server).params
            updates = jax.tree.map(lambda a, b: a - b, sent.params, start)
            bound = BOUND if is_off(federation.max_update) else federation.max_update
            most = AGAINST if is_off(federation.max_against) else federation.max_against

            def loss(params: Any) -> jax.Array:
                logits = infer(task.model, params, innermost(server).statistics, task.prepare(x))
                return jnp.mean(jnp.minimum(cross_entropy(logits, y), WRONG_ENOUGH))

            others = known(updates, 1.0 - bad, start, bound, most, loss)
            ways = [jax.vmap(lambda mine, f=f: f(mine, others)) for f in ATTACKS.values()]
            forged = jax.lax.switch(jnp.int32(attack), ways, updates)

            def chosen(a: jax.Array, b: jax.Array, poison: jax.Array) -> jax.Array:
                return jnp.where(bad.reshape(-1, *[1] * b.ndim), poison + b, a)

            params = jax.tree.map(chosen, sent.params, start, forged)
            uploads = with_innermost(uploads, sent._replace(params=params))
            if isinstance(uploads, With) and isinstance(uploads.own, Control):  # what users correct their steps by
                moved = jax.tree.map(lambda a, b: a - b, uploads.own.control, server.own.control)
                others = known(moved, 1.0 - bad, server.own.control, bound, most)
                push = jax.tree.map(lambda a, b: a + b, server.own.control, _outwards(None, others))
                pushes = bad & (attack == STEADY)
                control = jax.tree.map(
                    lambda a, p: jnp.where(pushes.reshape(-1, *[1] * p.ndim), p, a), uploads.own.control, push
                )
                uploads = With(uploads.base, Control(control))
            if isinstance(uploads, With) and isinstance(uploads.own, LabelCounts):
                honest = uploads.own.counts
                counts = jnp.where((bad & (attack == COUNTS))[:, None], lying(honest), honest)
                counts = jnp.where((bad & (attack == ABSENT))[:, None], jnp.zeros_like(honest), counts)
                uploads = With(uploads.base, uploads.own._replace(counts=counts))
            return base.server_update(server, uploads, round)

        return base._replace(server_update=server_update)

    return attacked


BUILDERS: dict[str, Callable[..., fedgen.Algorithm]] = {
    "fedavg": fedavg,
    "fedgen": partial(fedgen_algorithm, generator_steps=20),
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fedopt": fedopt,
    "fedmoments": fedmoments,
}


def with_wrong_labels(setup: Setup) -> Setup:
    """The same with all samples a second time, under wrong labels, which nobody holds yet."""
    data, classes = setup.data, setup.task.classes
    x, y = jnp.concatenate([data.x, data.x]), jnp.concatenate([data.y, classes - 1 - data.y])
    return dataclasses.replace(setup, data=data._replace(x=x, y=y))


def holding_wrong_labels(rows: np.ndarray, size: np.ndarray, samples: int, users: int) -> np.ndarray:
    """The rows of all users in turn, of which the first users hold those with the wrong labels."""
    return np.where(np.arange(len(rows)) < size[:users].sum(), rows + samples, rows)


class Case(NamedTuple):
    """One run."""

    alpha: float
    seed: int
    attack: int
    attackers: int


def chosen_by(preset: str, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a preset chose for an algorithm on MNIST: settings, and the algorithm's own options."""
    chosen = tuned("mnist") if preset == "tuned" else {}
    values = {key.partition(".")[2]: value for key, value in chosen.items() if key.partition(".")[0] == algorithm}
    own = {key: values.pop(key) for key in list(values) if key in options_of(BUILDERS[algorithm])}
    return values, own


class Federations:
    """One algorithm and one way to aggregate, compiled once for all cases."""

    def __init__(
        self, algorithm: str, rounds: int, cases: Sequence[Case], *, preset: str = "paper", **settings: Any
    ) -> None:
        name = f"{algorithm}-under-attack"
        values, own = chosen_by(preset, algorithm)
        dataset = load_dataset(resolve({}))
        x, y = jnp.asarray(dataset.x_train[:SAMPLES]), jnp.asarray(dataset.y_train[:SAMPLES])
        fedgen.ALGORITHMS[name] = under_attack(partial(BUILDERS[algorithm], **own), x, y)
        common = {"users": USERS, "active": USERS, "rounds": rounds, "lr": 0.1, "model": "mlp", "score_users": 1}
        options = {f"{name}.attack": 1.0, f"{name}.attackers": 1.0}
        alphas = list(dict.fromkeys(case.alpha for case in cases))
        seeds = {"seed": 0, "seeds": 1 + max(case.seed for case in cases)}
        fixed = {"algorithms": [name], **common, **values, **options, **seeds, **settings}
        configs = [resolve({**fixed, "alpha": a}) for a in alphas]
        self.setups = dict(zip(alphas, prepare_together(configs, dataset), strict=True))
        plain = self.setups[alphas[0]]  # all have the same samples
        self.samples = len(plain.data.y)
        self.name, self.cases = name, cases
        self.batched = jax.default_backend() != "cpu"  # a GPU computes all at once, a CPU one after the other
        inputs = self._inputs(cases if self.batched else cases[:1])
        self.program = with_wrong_labels(plain).program(name, inputs, self.batched)

    def accuracies(self, rounds: Sequence[int]) -> dict[Case, list[float]]:
        """The accuracies of all cases after these numbers of rounds, in percent."""
        groups = [self.cases] if self.batched else [[case] for case in self.cases]
        return {case: scores for group in groups for case, scores in self._accuracies(group, rounds).items()}

    def _accuracies(self, cases: Sequence[Case], rounds: Sequence[int]) -> dict[Case, list[float]]:
        inputs, before = self._inputs(cases), 0
        state = self.program.init(inputs)
        found: dict[Case, list[float]] = {case: [] for case in cases}
        for number in rounds:
            state, before = self.program.advance(inputs, state, before, number), number
            correct = np.sum(np.asarray(self.program.evaluate(inputs, state, number).global_model), axis=1)
            for case, right in zip(cases, correct, strict=True):
                found[case].append(100 * float(right) / int(self.setups[case.alpha].totals(case.seed).sum()))
        return found

    def _inputs(self, cases: Sequence[Case]) -> Inputs:
        parts = [self._input(case) for case in cases]
        return place(jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts))

    def _input(self, case: Case) -> Inputs:
        inputs = self.setups[case.alpha].inputs(self.name, [case.seed])
        how = {"attack": jnp.full(1, float(case.attack)), "attackers": jnp.full(1, float(case.attackers))}
        wrong = case.attackers if case.attack in ON_WRONG_LABELS else 0
        rows, size = np.asarray(inputs.rows[0]), np.asarray(inputs.size[0])
        held = holding_wrong_labels(rows, size, self.samples, wrong)
        return inputs._replace(hyper={**inputs.hyper, **how}, rows=jnp.asarray(held)[None])


Row = dict[str, list[float]]  # by attack: the accuracy with 1, 2 and 3 attackers; "none": without any
NONE = (0, 0)


def all_cases(algorithm: str, alphas: Sequence[float], seeds: int, chosen: Sequence[str], users: int) -> list[Case]:
    """The chosen attacks by one user and by up to so many, and none."""
    attacks = [(NAMES.index(name), number) for name in chosen for number in range(1, users + 1)]
    ways = [NONE, *(way for way in attacks if way[0] != COUNTS or algorithm == "fedgen")]
    return [Case(alpha, seed, *way) for alpha in alphas for seed in range(seeds) for way in ways]


def named(aggregation: str, settings: Mapping[str, Any]) -> str:
    """The name of a row: the aggregation, and where they are said the preset, the rate and what clips gradients."""
    said = {"clip_gradient": ", gradients to {:g}", "lr": ", rate {:g}", "preset": ", {}"}
    return aggregation + "".join(text.format(settings[key]) for key, text in said.items() if key in settings)


def measure(
    algorithm: str,
    aggregation: str,
    alphas: Sequence[float],
    seeds: int,
    rounds: Sequence[int],
    *,
    chosen: Sequence[str] = NAMES,
    users: int = 3,
    **settings: Any,
) -> list[dict[str, Any]]:
    """What came out of all cases, a record for each."""
    cases = all_cases(algorithm, alphas, seeds, chosen, users)
    federations = Federations(algorithm, rounds[-1], cases, **{**AGGREGATIONS[aggregation], **settings})
    about = {"algorithm": algorithm, "aggregation": named(aggregation, settings), "rounds": list(rounds)}
    return [
        {**about, **case._asdict(), "attack": NAMES[case.attack] if case.attackers else "none", "accuracy": scores}
        for case, scores in federations.accuracies(rounds).items()
    ]


def missing(
    records: Sequence[Mapping[str, Any]], algorithm: str, name: str, rounds: Sequence[int], cases: Sequence[Case]
) -> set[Case]:
    """The cases of a row that the records do not have."""
    known = [r for r in records if (r["algorithm"], r["aggregation"], r["rounds"]) == (algorithm, name, list(rounds))]
    number = {"none": 0, **{attack: i for i, attack in enumerate(NAMES)}}
    return set(cases) - {Case(r["alpha"], r["seed"], number[r["attack"]], r["attackers"]) for r in known}


def table(records: Sequence[Mapping[str, Any]], alpha: float, number: int) -> dict[str, Row]:
    """By aggregation and attack: the mean accuracy over seeds after the rounds of this number."""
    scores: dict[tuple[str, str, int], list[float]] = {}
    for r in records:
        if r["alpha"] == alpha:
            scores.setdefault((r["aggregation"], r["attack"], r["attackers"]), []).append(r["accuracy"][number])
    found: dict[str, Row] = {}
    for (aggregation, attack, _), of_seeds in sorted(scores.items(), key=lambda item: item[0][2]):
        found.setdefault(aggregation, {}).setdefault(attack, []).append(float(np.mean(of_seeds)))
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
        attacked = [row[attack] for attack in row if attack not in ("none", "absent")]
        worst = [min(scores) for scores in zip(*attacked, strict=True)]
        lines.append(Line(name, [[x, y, y, y] for x, y in enumerate(row["none"] + worst)], (number, 0)))
    title = "FedAvg on MNIST: the worst of the attacks"
    labels = {"x_title": "attackers among 10 users", "y_title": "test accuracy, %"}
    figure = line_figure(lines, **labels, title=title, markers=True)
    save_figure(figure, folder, "attacks")


def main() -> None:
    """Read the options, compute what is missing, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", nargs="+", default=["fedavg", "fedgen"], choices=list(BUILDERS))
    parser.add_argument("--aggregation", nargs="+", default=list(AGGREGATIONS), choices=list(AGGREGATIONS))
    parser.add_argument("--attack", nargs="+", default=NAMES, choices=NAMES)
    parser.add_argument("--attackers", type=int, default=3, choices=(1, 2, 3), help="up to so many")
    parser.add_argument("--alpha", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rounds", nargs="+", type=int, default=[40], help="after which accuracy is computed")
    parser.add_argument("--clip-gradient", nargs="+", type=float, help="norms to try (default: the settings' own)")
    parser.add_argument("--lr", type=float, help="users' rate (default: 0.1)")
    parser.add_argument(
        "--preset", choices=("paper", "tuned"), default="paper", help="tuned: as `federate init` has it"
    )
    parser.add_argument("--json", type=Path, help="all results; what is there already is not computed again")
    parser.add_argument("--folder", type=Path, help="where attacks.svg is drawn, for the first algorithm and alpha")
    chosen = parser.parse_args()
    fedgen.use_machine_well()
    kept = json.loads(chosen.json.read_text()) if chosen.json and chosen.json.exists() else []
    for algorithm in chosen.algorithm:
        for aggregation, clip in product(chosen.aggregation, chosen.clip_gradient or [None]):
            preset = None if chosen.preset == "paper" else chosen.preset
            said = {"clip_gradient": clip, "lr": chosen.lr, "preset": preset}
            settings = {key: value for key, value in said.items() if value is not None}
            asked = all_cases(algorithm, chosen.alpha, chosen.seeds, chosen.attack, chosen.attackers)
            if not missing(kept, algorithm, named(aggregation, settings), sorted(chosen.rounds), asked):
                continue
            kept = [r for r in kept if (r["algorithm"], r["aggregation"]) != (algorithm, named(aggregation, settings))]
            which = {"chosen": chosen.attack, "users": chosen.attackers, **settings}
            kept += measure(algorithm, aggregation, chosen.alpha, chosen.seeds, sorted(chosen.rounds), **which)
            if chosen.json:
                chosen.json.write_text(json.dumps(kept))
        own = [record for record in kept if record["algorithm"] == algorithm]
        for alpha in chosen.alpha:
            for number, rounds in enumerate(sorted(chosen.rounds)):
                show(f"{algorithm}, α = {alpha:g}, {rounds} rounds", table(own, alpha, number))
        if chosen.folder and algorithm == chosen.algorithm[0]:
            draw(chosen.folder, table(own, chosen.alpha[0], -1))


if __name__ == "__main__":
    main()
