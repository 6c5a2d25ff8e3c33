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
from fedgen.models import layers

RATE, STEPS, BATCH, SAMPLES, CLASSES = 0.2, 4, 6, 14, 3
COHORTS = [(0, 1), (1, 2), (0, 1)]  # users 0 and 1 come back
PARTS = {"all": (0, 1, 2, 3), "extractor": (0, 2, 3), "predictor": (1,), "nothing": ()}  # places in `Weights`
KEY = jax.random.key(5)
rng = np.random.default_rng(2)
X = rng.normal(size=(3, SAMPLES, 2)).astype(np.float32)
Y = rng.integers(0, CLASSES, (3, SAMPLES)).astype(np.int32)
Y[0][Y[0] == 2] = 1  # user 0 lacks a label

Weights = list[torch.Tensor]  # extractor, predictor; mean and variance of the BatchNorm between


def _extract(weights: Any, statistics: Any, x: Any, train: bool) -> tuple[Any, Any]:
    unscaled = {"scale": jnp.ones(4), "shift": jnp.zeros(4)}
    h, statistics = layers.batch_norm(unscaled, statistics, x @ weights, train, channel=1)
    return jnp.tanh(h), statistics


MODEL = Model(
    init=lambda key: (
        Params(0.5 * jax.random.normal(key, (2, 4)), jax.random.normal(key, (4, CLASSES))),
        layers.batch_norm_init(4)[1],
    ),
    extract=_extract,
    predict=lambda weights, z: z @ weights,
)
TASK = Task(MODEL, CLASSES, jax.ShapeDtypeStruct((2,), jnp.float32), lambda x: x)


def copy(weights: Weights, train: bool = True) -> Weights:
    return [w.detach().clone().requires_grad_(train and i < 2) for i, w in enumerate(weights)]


def moved(weights: Weights, gradient: Weights, rate: float) -> Weights:
    """After a step of SGD."""
    return copy([*(w - rate * g for w, g in zip(weights, gradient, strict=False)), *weights[2:]])


def first_weights() -> Weights:
    """What everybody starts with."""
    (extractor, predictor), statistics = MODEL.init(KEY)
    numbers = extractor, predictor, statistics["mean"], statistics["variance"]
    return copy([torch.tensor(np.asarray(a)) for a in numbers])


def forward(weights: Weights, x: torch.Tensor, train: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Features and logits; in training the BatchNorm changes its statistics in place, as PyTorch's does."""
    z = torch.tanh(tf.batch_norm(x @ weights[0], weights[2], weights[3], training=train))
    return z, z @ weights[1]


class Reference:
    """FedAvg in PyTorch, of the whole model or a part; an algorithm changes what differs."""

    share = "all"

    def __init__(self, start: Weights) -> None:
        self.theta, self.first = copy(start), copy(start)
        self.rate = RATE
        self.models: dict[int, Weights] = {}  # of each user after its last round
        self.of_user: dict[int, Any] = {}

    def parts(self) -> tuple[int, ...]:
        """The trained parts that are shared."""
        return tuple(i for i in PARTS[self.share] if i < 2)

    def zeros(self) -> Weights:
        return [torch.zeros_like(w) for w in self.first[:2]]

    def begin(self, user: int) -> Weights:
        own, shared = self.models.get(user, self.first), PARTS[self.share]
        return copy([t if i in shared else w for i, (t, w) in enumerate(zip(self.theta, own, strict=True))])

    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return tf.cross_entropy(forward(weights, x, train=True)[1], y)

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        return list(torch.autograd.grad(self.loss(user, weights, x, y), weights[:2]))

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        weights = self.begin(user)
        for x, y in batches:
            weights = moved(weights, self.gradient(user, weights, x, y), self.rate)
        self.finished(user, weights)
        self.models[user] = copy(weights)
        return weights

    def finished(self, user: int, weights: Weights) -> None:
        pass

    def server(self, mean: Weights, active: int) -> Weights:
        return mean

    def sent(self) -> Weights:
        """What the server sends of the model."""
        return [self.theta[i] for i in PARTS[self.share]]


class FedDyn(Reference):
    """The paper's two lines for the user and two for the server, with mu = 0.3, for what is shared."""

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.h = self.zeros()

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        drift, value = self.of_user.get(user, self.zeros()), self.loss(user, weights, x, y)
        for i in self.parts():
            value = value - torch.sum(drift[i] * weights[i]) + 0.15 * torch.sum((weights[i] - self.theta[i]) ** 2)
        return list(torch.autograd.grad(value, weights[:2]))

    def finished(self, user: int, weights: Weights) -> None:
        drift = self.of_user.get(user, self.zeros())
        for i in self.parts():
            drift[i] = drift[i] - 0.3 * (weights[i] - self.theta[i]).detach()
        self.of_user[user] = drift

    def server(self, mean: Weights, active: int) -> Weights:
        for i in self.parts():
            self.h[i] = self.h[i] - 0.3 * active / 3 * (mean[i] - self.theta[i]).detach()
        return [mean[i] - self.h[i] / 0.3 if i in self.parts() else mean[i] for i in range(4)]


class Scaffold(Reference):
    """The paper's algorithm 1 with option II, for what is shared."""

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.c = self.zeros()
        self.changes: list[Weights] = []

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        plain, own = super().gradient(user, weights, x, y), self.of_user.get(user, self.zeros())
        return [g - own[i] + self.c[i] if i in self.parts() else g for i, g in enumerate(plain)]

    def finished(self, user: int, weights: Weights) -> None:
        own, way = self.of_user.get(user, self.zeros()), STEPS * self.rate
        change = [((t - w) / way - c).detach() for t, w, c in zip(self.theta, weights, self.c, strict=False)]
        self.of_user[user] = [c + d for c, d in zip(own, change, strict=True)]
        self.changes.append(change)

    def server(self, mean: Weights, active: int) -> Weights:
        self.c = [c + sum(part) / 3 for c, part in zip(self.c, zip(*self.changes, strict=True), strict=True)]
        self.changes = []
        return mean


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


def shown(model: Any) -> list[Any]:
    """The arrays of a model, or of a part of one, in the order of `Weights`."""
    statistics = model.statistics or {}
    return [*(w for w in model.params if w is not None), *(statistics[key] for key in sorted(statistics))]


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
    theirs = reference(first_weights())
    theirs.share = options.get("share", theirs.share)
    for number, cohort in enumerate(COHORTS):
        uploads, models = [], []
        theirs.rate = RATE * options.get("lr_decay", 1.0) ** number
        for k in cohort:
            trained = train(
                algorithm.broadcast(server, jnp.int32(number)), clients[k], data[k], jnp.int32(number), jnp.int32(k)
            )
            clients[k] = trained.client
            uploads.append(trained.upload)
            models.append(theirs.local(k, drawn(federation, k, number)))
        key = jax.random.fold_in(KEY, number)
        server, _ = update(server, stack(uploads), jnp.int32(number), jnp.array(cohort), key)
        mean = [torch.stack([m[i].detach() for m in models]).mean(0) for i in range(4)]
        theirs.theta = theirs.server(mean, len(cohort))
        same_weights(shown(innermost(server)), theirs.sent())
        if after is not None:
            after(algorithm, server, theirs)
    return Followed(algorithm, server, clients, theirs)
