"""Each neighbour of FedAvg against PyTorch: two rounds of two users, followed with the same draws from its paper."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as tf

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.fedavg import Upload
from fedgen.core.client import train_client
from fedgen.core.contract import Federation, Model, Params, Round, Task
from fedgen.core.recipe import Shard, draw_batches
from fedgen.core.trees import stack
from fedgen.simulator.run import run
from helpers import small_setup

RATE, STEPS, BATCH, SAMPLES, CLASSES = 0.2, 3, 6, 14, 3
COHORTS = [(0, 1), (1, 2), (0, 1)]  # users 0 and 1 come back
KEY = jax.random.key(5)
rng = np.random.default_rng(2)
X = rng.normal(size=(3, SAMPLES, 2)).astype(np.float32)
Y = rng.integers(0, CLASSES, (3, SAMPLES)).astype(np.int32)
Y[0][Y[0] == 2] = 1  # user 0 lacks a label

MODEL = Model(
    init=lambda key: (Params(0.5 * jax.random.normal(key, (2, 4)), jax.random.normal(key, (4, CLASSES))), ()),
    extract=lambda weights, statistics, x, train: (jnp.tanh(x @ weights), statistics),
    predict=lambda weights, z: z @ weights,
)
TASK = Task(MODEL, CLASSES, jax.ShapeDtypeStruct((2,), jnp.float32), lambda x: x)
Weights = list[torch.Tensor]  # extractor, predictor


def _copy(weights: Weights, train: bool = True) -> Weights:
    return [w.detach().clone().requires_grad_(train) for w in weights]


def _forward(weights: Weights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.tanh(x @ weights[0])
    return z, z @ weights[1]


class Reference:
    """FedAvg in PyTorch; an algorithm changes what differs."""

    def __init__(self, start: Weights) -> None:
        self.theta = start
        self.of_user: dict[int, Any] = {}

    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return tf.cross_entropy(_forward(weights, x)[1], y)

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        return list(torch.autograd.grad(self.loss(user, weights, x, y), weights))

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        weights = _copy(self.theta)
        for x, y in batches:
            step = self.gradient(user, weights, x, y)
            with torch.no_grad():
                weights = _copy([w - RATE * g for w, g in zip(weights, step, strict=True)])
        self.finished(user, weights)
        return weights

    def finished(self, user: int, weights: Weights) -> None:
        pass

    def server(self, mean: Weights, active: int) -> Weights:
        return mean


class Moon(Reference):
    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z, logits = _forward(weights, x)
        last = self.of_user.get(user, self.first)
        with torch.no_grad():
            received, before = _forward(self.theta, x)[0], _forward(last, x)[0]
        near = torch.stack([tf.cosine_similarity(z, received), tf.cosine_similarity(z, before)], dim=1) / 0.5
        return tf.cross_entropy(logits, y) + 2.0 * tf.cross_entropy(near, torch.zeros(len(y), dtype=torch.long))

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.first = _copy(start)

    def finished(self, user: int, weights: Weights) -> None:
        self.of_user[user] = _copy(weights)


class FedNTD(Reference):
    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits, taught = _forward(weights, x)[1], _forward(self.theta, x)[1].detach()
        rest = torch.ones_like(logits).scatter_(1, y[:, None], 0.0).bool()  # all labels but the true one
        ours, theirs = (g[rest].reshape(len(y), CLASSES - 1) / 1.5 for g in (logits, taught))
        distilled = tf.kl_div(tf.log_softmax(ours, 1), tf.softmax(theirs, 1), reduction="batchmean")
        return tf.cross_entropy(logits, y) + 0.7 * 1.5**2 * distilled


class FedLC(Reference):
    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        counts = torch.tensor(np.bincount(Y[user], minlength=CLASSES), dtype=torch.float32).clamp_min(1e-8)
        return tf.cross_entropy(_forward(weights, x)[1] - 0.8 * counts**-0.25, y)


class FedSAM(Reference):
    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        first = super().gradient(user, weights, x, y)
        length = torch.sqrt(sum(torch.sum(g**2) for g in first))
        worst = _copy([w + 0.3 * g / length for w, g in zip(weights, first, strict=True)])
        return super().gradient(user, worst, x, y)


class FedDyn(Reference):
    """The paper's two lines for the user and two for the server, with mu = 0.3."""

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.h = [torch.zeros_like(w) for w in start]

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        drift = self.of_user.get(user, [torch.zeros_like(w) for w in weights])
        inner = sum(torch.sum(d * w) for d, w in zip(drift, weights, strict=True))
        near = sum(torch.sum((w - t) ** 2) for w, t in zip(weights, self.theta, strict=True))
        return list(torch.autograd.grad(self.loss(user, weights, x, y) - inner + 0.15 * near, weights))

    def finished(self, user: int, weights: Weights) -> None:
        drift = self.of_user.get(user, [torch.zeros_like(w) for w in weights])
        moved = [w - t for w, t in zip(_copy(weights, False), self.theta, strict=True)]
        self.of_user[user] = [d - 0.3 * m for d, m in zip(drift, moved, strict=True)]

    def server(self, mean: Weights, active: int) -> Weights:
        self.h = [h - 0.3 * active / 3 * (m - t) for h, m, t in zip(self.h, mean, self.theta, strict=True)]
        return [m - h / 0.3 for m, h in zip(mean, self.h, strict=True)]


class FedOpt(Reference):
    """PyTorch's optimiser at the server."""

    def __init__(self, start: Weights, optimizer: Callable[[Weights], torch.optim.Optimizer]) -> None:
        super().__init__(start)
        self.optimizer = optimizer(self.theta)

    def server(self, mean: Weights, active: int) -> Weights:
        for w, m in zip(self.theta, mean, strict=True):
            w.grad = w.detach() - m
        self.optimizer.step()
        return self.theta


def _check(name: str, options: dict[str, Any], reference: Callable[[Weights], Reference]) -> Any:
    federation = Federation(users=3, local_steps=STEPS, batch_size=BATCH, lr=RATE)
    algorithm, federation = build(ALGORITHMS[name], TASK, federation, options)
    shards = [
        Shard(
            jnp.asarray(X[k]), jnp.asarray(Y[k]), jnp.arange(SAMPLES), jnp.int32(0), jnp.int32(SAMPLES),
            jnp.bincount(Y[k], length=CLASSES),
        )
        for k in range(3)
    ]  # fmt: skip
    train = jax.jit(
        lambda received, client, shard, round, user: train_client(
            algorithm, TASK, federation, received, client, shard, round, user, KEY, largest=SAMPLES
        )
    )
    server = algorithm.server_init(KEY)
    clients = [algorithm.client_init(KEY) for _ in range(3)]
    theirs = reference([torch.tensor(np.asarray(w), requires_grad=True) for w in MODEL.init(KEY)[0]])
    for number, cohort in enumerate(COHORTS):
        uploads, models = [], []
        for k in cohort:
            trained = train(
                algorithm.broadcast(server, jnp.int32(number)), clients[k], shards[k], jnp.int32(number), jnp.int32(k)
            )
            clients[k] = trained.client
            uploads.append(trained.upload)
            rows = np.asarray(draw_batches(federation, shards[k], jnp.int32(number), jnp.int32(k), KEY, SAMPLES).rows)
            models.append(theirs.local(k, [(torch.tensor(X[k][r]), torch.tensor(Y[k][r]).long()) for r in rows]))
        context = Round(jnp.int32(number), jnp.array(cohort), KEY, lambda key, n: None)
        server, _ = algorithm.server_update(server, stack(uploads), context)
        mean = [torch.stack([m[i].detach() for m in models]).mean(0) for i in (0, 1)]
        theirs.theta = theirs.server(mean, len(cohort))
        params = server.params if hasattr(server, "params") else server.base.params
        for ours, other in zip(params, theirs.theta, strict=True):
            np.testing.assert_allclose(ours, other.detach().numpy(), rtol=2e-4, atol=2e-5)
    return algorithm, server, clients, theirs


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("fedavg", {}, Reference),
        ("moon", {"mu": 2.0, "temperature": 0.5}, Moon),
        ("fedntd", {"beta": 0.7, "temperature": 1.5}, FedNTD),
        ("fedlc", {"tau": 0.8}, FedLC),
        ("fedsam", {"rho": 0.3}, FedSAM),
        ("feddyn", {"mu": 0.3}, FedDyn),
        (
            "fedopt",
            {"server": "sgd", "server_lr": 0.8, "server_momentum": 0.5},
            lambda start: FedOpt(start, lambda w: torch.optim.SGD(w, lr=0.8, momentum=0.5)),
        ),
        (
            "fedopt",
            {"server": "adam", "server_lr": 0.1, "server_momentum": 0.9, "second_moment": 0.99, "tau": 1e-3},
            lambda start: FedOpt(start, lambda w: torch.optim.Adam(w, lr=0.1, betas=(0.9, 0.99), eps=1e-3)),
        ),
    ],
)
def test_three_rounds_are_pytorchs(name: str, options: dict[str, Any], reference: Callable[..., Reference]) -> None:
    _check(name, options, reference)


def test_yogi_is_the_papers() -> None:
    """v <- v - (1 - b2) sign(v - g^2) g^2, theta <- theta - rate * m / (sqrt(v) + tau), with Optax's start of v."""
    federation = Federation(users=3)
    options = {"server": "yogi", "server_lr": 0.1, "server_momentum": 0.9, "second_moment": 0.99, "tau": 1e-3}
    fedyogi, _ = build(ALGORITHMS["fedopt"], TASK, federation, options)
    plain, _ = build(ALGORITHMS["fedavg"], TASK, federation, {})
    server = fedyogi.server_init(KEY)
    theta = np.asarray(server.base.params.predictor, np.float64)
    m, v = np.zeros_like(theta), np.full_like(theta, 1e-6)
    for number in range(3):
        uploads = stack([plain.server_init(jax.random.key(number + i)) for i in (10, 20)])
        sent = Upload(uploads.params, uploads.statistics, None)
        gradient = theta - np.asarray(uploads.params.predictor, np.float64).mean(axis=0)
        context = Round(jnp.int32(number), jnp.arange(2), KEY, lambda key, n: None)
        server, _ = fedyogi.server_update(server, sent, context)
        m = 0.9 * m + 0.1 * gradient
        v = v - 0.01 * np.sign(v - gradient**2) * gradient**2
        unbiased = m / (1 - 0.9 ** (number + 1)), v / (1 - 0.99 ** (number + 1))
        theta = theta - 0.1 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-3)
        np.testing.assert_allclose(server.base.params.predictor, theta, rtol=1e-4, atol=1e-5)


def test_dittos_own_models_are_pytorchs_and_the_shared_one_is_fedavgs() -> None:
    algorithm, _, clients, theirs = _check("ditto", {"lam": 0.4, "own_lr": 0.1}, Ditto)
    for user in (0, 1, 2):
        for ours, other in zip(clients[user].own.params, theirs.of_user[user], strict=True):
            np.testing.assert_allclose(ours, other.detach().numpy(), rtol=2e-4, atol=2e-5)
    assert algorithm.headline_of() == "users"
    assert algorithm.headline_of("global") == "global"


class Ditto(Reference):
    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.first = _copy(start)

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        own = _copy(self.of_user.get(user, self.first))
        for x, y in batches:
            near = sum(torch.sum((w - t.detach()) ** 2) for w, t in zip(own, self.theta, strict=True))
            step = torch.autograd.grad(self.loss(user, own, x, y) + 0.2 * near, own)
            own = _copy([w - 0.1 * g for w, g in zip(own, step, strict=True)])
        self.of_user[user] = own
        return super().local(user, batches)


def test_what_ditto_is_judged_by() -> None:
    """The users' own models, though there is a global one; unless the user says otherwise."""
    by_users = run(small_setup("ditto"))
    (row,) = by_users["results"]
    assert row["headline"] == "accuracy_users"
    assert row["accuracy"] is not None
    assert row["curve"][-1][1] != pytest.approx(row["accuracy"]) or row["accuracy"] == row["accuracy_users"]
    assert by_users["table"][0]["mean"] == pytest.approx(row["accuracy_users"])
    by_global = run(small_setup("ditto", headline="global"))
    assert "headline" not in by_global["results"][0]
    assert by_global["table"][0]["mean"] == pytest.approx(row["accuracy"])
