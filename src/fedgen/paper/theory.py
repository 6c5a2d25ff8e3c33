"""The quantities of the paper's Theorem 1 and Corollary 1, measured between rounds.

The theorem bounds the risk on the global distribution D by the risk on a user's D_k and the divergence of their latent
images, d(D_k, D). The corollary mixes generated features D_A in: D_k' = (D_k + D_A) / 2, and d(D_k', D) is at most
d(D_k, D) / 2 + d(D_A, D) / 2. Here d is the proxy-A distance (Ben-David et al. 2007), 2 (1 - 2 error) of a linear
classifier that tells two sets of features apart: 0 where it cannot, 2 where it always can.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.algorithms import gaussians as moments
from fedgen.algorithms.fedgen import Server
from fedgen.algorithms.gaussians import Gaussians
from fedgen.algorithms.wrap import With, innermost
from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Array, Task, Tree
from fedgen.core.losses import cross_entropy
from fedgen.data.dataset import Dataset
from fedgen.data.federated import Division
from fedgen.errors import FedgenError
from fedgen.models.generator import draw_labels, draw_noise, generate
from fedgen.paper.spec import NAMES
from fedgen.simulator.devices import in_float32
from fedgen.simulator.run import program_of
from fedgen.simulator.setup import Setup, prepare

ROUNDS = (1, 2, 5, 10, 20, 40, 60)
MOST, LEAST = 1000, 100  # samples of a user that are compared; of users with fewer nothing could be said
CHUNK = 1000  # samples of one forward pass

Features = NDArray[np.float32]  # [sample, latent]
Curves = dict[str, list[Any]]  # what was measured, after each of the rounds: a number, or one of each user


def proxy_distance(a: Features, b: Features, rng: np.random.Generator) -> float:
    """The proxy-A distance of two sets of equally many samples: a half of each trains, the other half is held out."""
    halves = len(a) // 2
    a, b = a[rng.permutation(len(a))].astype(float), b[rng.permutation(len(b))].astype(float)
    train, test = np.concatenate([a[:halves], b[:halves]]), np.concatenate([a[halves:], b[halves:]])
    mean, deviation = train.mean(axis=0), train.std(axis=0) + 1e-6
    weights = _logistic_regression((train - mean) / deviation, np.repeat([1.0, 0.0], halves))
    says_a = _with_one((test - mean) / deviation) @ weights > 0
    error = np.mean(says_a != np.repeat([True, False], [len(a) - halves, len(b) - halves]))
    return float(2 * (1 - 2 * error))


def _logistic_regression(x: NDArray[np.float64], y: NDArray[np.float64], steps: int = 12) -> NDArray[np.float64]:
    """The weights (the last is the constant's) after Newton's steps; a ridge of one sample's size keeps them finite."""
    x = _with_one(x)
    ridge, weights = np.eye(x.shape[1]), np.zeros(x.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + ridge
        weights = weights + np.linalg.solve(curvature, x.T @ (y - p) - weights)
    return weights


def _with_one(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([x, np.ones((len(x), 1))], axis=1)


@in_float32
def theory(config: RunConfig, dataset: Dataset | None = None) -> dict[str, Any]:
    """Train the configured algorithms and measure after some of the rounds; all numbers by algorithm and seed."""
    setup = prepare(config, dataset)
    if not all(_compared(division) for division in setup.divisions.values()):
        raise FedgenError(f"no user has {LEAST} samples, which it takes to compare features; use more data")
    rounds = [number for number in ROUNDS if number <= config.rounds]
    measured = {name: _measured(setup, name, rounds) for name in config.algorithms}
    return {
        "rounds": rounds,
        "seeds": list(config.run_seeds),
        "columns": [{"name": n, "algorithm": n, "label": NAMES.get(n, n)} for n in config.algorithms],
        "users": {str(seed): _compared(division) for seed, division in setup.divisions.items()},
        "measured": measured,
    }


def _compared(division: Division) -> list[int]:
    """The users that have samples enough."""
    return [user for user, size in enumerate(division.size.tolist()) if size >= LEAST]


def _measured(setup: Setup, name: str, rounds: list[int]) -> list[Curves]:
    """For each seed what is measured after these rounds."""
    program = program_of([setup], name)
    seen = _Seen(setup, program.algorithm)
    every: list[Curves] = []
    for seed in setup.config.run_seeds:
        inputs = setup.inputs(name, [seed])
        state, before, curves = program.init(inputs), 0, Curves()
        for number in rounds:
            state = program.advance(inputs, state, before, number)
            if diverged := int(state.diverged[0]):
                raise FedgenError(f"{name} diverged with seed {seed} in round {diverged}; try a smaller rate")
            server = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[0]), state.server)
            for key, value in seen.after(server, number, seed).items():
                curves.setdefault(key, []).append(value)
            before = number
        every.append(curves)
    return every


class _Seen:
    """Looks at the models of one algorithm."""

    def __init__(self, setup: Setup, algorithm: Algorithm) -> None:
        self._setup, self._algorithm, self._task = setup, algorithm, setup.task
        self._through = jax.jit(self._pass)
        self._predicted = jax.jit(self._prediction)
        # Always as many, so that one program serves users of any size.
        self._generated = jax.jit(lambda received, key: generate_features(received, setup.task, key, MOST))

    def after(self, server: Tree, number: int, seed: int) -> dict[str, Any]:
        """Distances and risks after this round."""
        setup, division, rng = self._setup, self._setup.divisions[seed], np.random.default_rng([seed, number])
        received = self._algorithm.broadcast(server, jnp.int32(number))
        data, users, sent, tested = setup.data, _compared(division), innermost(received), setup.score_rows[seed]
        z, risk = self._over(self._through, sent, data.x, data.y, division.index)
        _, test_risk = self._over(self._through, sent, data.x_score, data.y_score, tested)
        _, global_risk = self._over(self._predicted, server, data.x_score, data.y_score, tested)
        rows = [division.offset[user] + np.arange(division.size[user]) for user in users]
        found: dict[str, Any] = {
            "risk": [_short(risk[mine].mean()) for mine in rows],
            "test_risk": _short(test_risk.mean()),
            "global_risk": _short(global_risk.mean()),
        }

        def generated() -> Features | None:
            drawn = self._generated(received, jax.random.key(int(rng.integers(2**31))))
            return None if drawn is None else np.asarray(drawn)

        distances: list[dict[str, float]] = [_distances(z, mine, generated, rng) for mine in rows]
        found |= {key: [one[key] for one in distances] for key in distances[0]}
        if (made := generated()) is not None:
            found["generated"] = _short(proxy_distance(made, z[rng.permutation(len(z))[:MOST]], rng))
        return found

    def _pass(self, parts: Any, x: Array, y: Array) -> tuple[Array, Array]:
        z, _ = self._task.model.extract(parts.params.extractor, parts.statistics, self._task.prepare(x), False)
        return z, cross_entropy(self._task.model.predict(parts.params.predictor, z), y)

    def _prediction(self, server: Tree, x: Array, y: Array) -> tuple[Array, Array]:
        assert self._algorithm.predict_global is not None
        logits = self._algorithm.predict_global(server, self._task.prepare(x))
        return logits, cross_entropy(logits, y)

    def _over(
        self, f: Callable[..., tuple[Array, Array]], model: Tree, x: Array, y: Array, rows: NDArray[np.int32]
    ) -> tuple[Features, Features]:
        """`f` of these rows, some at a time; the last are filled up, so that one program serves any number."""
        size = min(CHUNK, len(rows))
        filled = np.resize(rows, -(-len(rows) // size) * size).reshape(-1, size)
        parts = [f(model, x[some], y[some]) for some in filled]
        z, risk = (np.concatenate([np.asarray(part[place]) for part in parts])[: len(rows)] for place in (0, 1))
        return z, risk


def _distances(
    z: Features, mine: NDArray[np.int64], generated: Callable[[], Features | None], rng: np.random.Generator
) -> dict[str, float]:
    """A user's distances to all: as it is, half and half with generated features, and so with others of all."""
    number = min(len(mine), MOST) // 2 * 2
    own, half = z[rng.permutation(mine)[:number]], number // 2

    def to_all(features: Features) -> float:
        return _short(proxy_distance(features, z[rng.permutation(len(z))[:number]], rng))

    made, ideal = generated(), z[rng.permutation(len(z))[:half]]
    augmented = {} if made is None else {"augmented": to_all(np.concatenate([own[:half], made[:half]]))}
    return {"own": to_all(own), **augmented, "ideal": to_all(np.concatenate([own[:half], ideal]))}


def generate_features(received: Tree, task: Task, key: Array, samples: int) -> Array | None:
    """Features from the generator that users receive, with the labels that it draws; None where there is none."""
    own = received.own if isinstance(received, With) else None
    if isinstance(own, Gaussians):
        return moments.draw(own, moments.factors(own), key, samples)[0]
    if isinstance(own, Server):  # as the preset has it: normal noise, labels by the prior
        size = own.generator.params["hidden"]["weight"].shape[0] - task.classes
        labels = draw_labels(key, samples, own.prior)
        noise = draw_noise(key, (samples, size), "normal")
        return generate(own.generator, noise, labels, task.classes, False)[0]
    return None


def _short(value: Any) -> float:
    return round(float(value), 4)


def over_users(result: Mapping[str, Any], column: str, key: str) -> NDArray[np.float64] | None:
    """What was measured of an algorithm, [seed, round]: the mean over users where each has its own; None: nothing."""
    runs = result["measured"][column]
    if key not in runs[0]:
        return None
    return np.array([[np.mean(value) for value in run[key]] for run in runs])
