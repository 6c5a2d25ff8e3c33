"""Rounds of a few users, followed in PyTorch with the same draws: an algorithm's paper beside our functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as tf

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.wrap import innermost
from fedgen.core.client import train_client
from fedgen.core.contract import Algorithm, Federation, Model, Params, Round, Task
from fedgen.core.recipe import Shard, draw_batches
from fedgen.core.trees import stack

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


def copy(weights: Weights, train: bool = True) -> Weights:
    return [w.detach().clone().requires_grad_(train) for w in weights]


def forward(weights: Weights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = torch.tanh(x @ weights[0])
    return z, z @ weights[1]


class Reference:
    """FedAvg in PyTorch; an algorithm changes what differs."""

    def __init__(self, start: Weights) -> None:
        self.theta = start
        self.of_user: dict[int, Any] = {}

    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return tf.cross_entropy(forward(weights, x)[1], y)

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        return list(torch.autograd.grad(self.loss(user, weights, x, y), weights))

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        weights = copy(self.theta)
        for x, y in batches:
            step = self.gradient(user, weights, x, y)
            with torch.no_grad():
                weights = copy([w - RATE * g for w, g in zip(weights, step, strict=True)])
        self.finished(user, weights)
        return weights

    def finished(self, user: int, weights: Weights) -> None:
        pass

    def server(self, mean: Weights, active: int) -> Weights:
        return mean

    def sent(self) -> Weights:
        """What the server sends of the model."""
        return self.theta


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
        moved = [w - t for w, t in zip(copy(weights, False), self.theta, strict=True)]
        self.of_user[user] = [d - 0.3 * m for d, m in zip(drift, moved, strict=True)]

    def server(self, mean: Weights, active: int) -> Weights:
        self.h = [h - 0.3 * active / 3 * (m - t) for h, m, t in zip(self.h, mean, self.theta, strict=True)]
        return [m - h / 0.3 for m, h in zip(mean, self.h, strict=True)]


class Followed(NamedTuple):
    """Where three rounds led to."""

    algorithm: Algorithm
    server: Any
    clients: list[Any]
    theirs: Any


def shards() -> list[Shard]:
    """The users' data."""
    return [
        Shard(
            jnp.asarray(X[k]), jnp.asarray(Y[k]), jnp.arange(SAMPLES), jnp.int32(0), jnp.int32(SAMPLES),
            jnp.bincount(Y[k], length=CLASSES),
        )
        for k in range(3)
    ]  # fmt: skip


def drawn(federation: Federation, user: int, round: int, key: Any = KEY) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """A user's mini-batches."""
    rows = np.asarray(draw_batches(federation, shards()[user], jnp.int32(round), jnp.int32(user), key, SAMPLES).rows)
    return [(torch.tensor(X[user][r]), torch.tensor(Y[user][r]).long()) for r in rows]


def same_weights(ours: Any, theirs: Weights) -> None:
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their.detach().numpy(), rtol=2e-4, atol=2e-5)


def follow(
    name: str,
    options: dict[str, Any],
    reference: Callable[[Weights], Reference],
    after: Callable[..., None] | None = None,
) -> Followed:
    """Three rounds of the algorithm, and of the reference; `after(algorithm, server, theirs)` is called after each."""
    federation = Federation(users=3, local_steps=STEPS, batch_size=BATCH, lr=RATE, max_update=0.0)
    algorithm, federation = build(ALGORITHMS[name], TASK, federation, options)
    data = shards()
    train = jax.jit(
        lambda received, client, shard, round, user: train_client(
            algorithm, TASK, federation, received, client, shard, round, user, KEY, largest=SAMPLES
        )
    )
    update = jax.jit(
        lambda server, uploads, number, cohort, key: algorithm.server_update(
            server, uploads, Round(number, cohort, key, lambda key, n: None)
        )
    )
    server = algorithm.server_init(KEY)
    clients = [algorithm.client_init(KEY) for _ in range(3)]
    theirs = reference([torch.tensor(np.asarray(w), requires_grad=True) for w in MODEL.init(KEY)[0]])
    for number, cohort in enumerate(COHORTS):
        uploads, models = [], []
        for k in cohort:
            trained = train(
                algorithm.broadcast(server, jnp.int32(number)), clients[k], data[k], jnp.int32(number), jnp.int32(k)
            )
            clients[k] = trained.client
            uploads.append(trained.upload)
            models.append(theirs.local(k, drawn(federation, k, number)))
        key = jax.random.fold_in(KEY, number)
        server, _ = update(server, stack(uploads), jnp.int32(number), jnp.array(cohort), key)
        mean = [torch.stack([m[i].detach() for m in models]).mean(0) for i in (0, 1)]
        theirs.theta = theirs.server(mean, len(cohort))
        same_weights([w for w in innermost(server).params if w is not None], theirs.sent())
        if after is not None:
            after(algorithm, server, theirs)
    return Followed(algorithm, server, clients, theirs)
