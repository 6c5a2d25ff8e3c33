"""Each neighbour of FedAvg against PyTorch: three rounds of two users, followed with the same draws from its paper."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as tf
from rounds_in_torch import (
    CLASSES,
    KEY,
    TASK,
    FedDyn,
    Reference,
    Scaffold,
    Weights,
    Y,
    copy,
    follow,
    forward,
    moved,
    same_weights,
    shown,
)

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.fedavg import Upload
from fedgen.algorithms.wrap import innermost
from fedgen.core.contract import Federation, Round
from fedgen.core.trees import stack
from fedgen.simulator.run import run
from helpers import small_setup


class Moon(Reference):
    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z, logits = forward(weights, x, train=True)
        last = self.models.get(user, self.first)
        with torch.no_grad():
            received, before = forward(self.theta, x)[0], forward(last, x)[0]
        near = torch.stack([tf.cosine_similarity(z, received), tf.cosine_similarity(z, before)], dim=1) / 0.5
        return tf.cross_entropy(logits, y) + 2.0 * tf.cross_entropy(near, torch.zeros(len(y), dtype=torch.long))


class FedNTD(Reference):
    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits, taught = forward(weights, x, train=True)[1], forward(self.theta, x)[1].detach()
        rest = torch.ones_like(logits).scatter_(1, y[:, None], 0.0).bool()  # all labels but the true one
        ours, theirs = (g[rest].reshape(len(y), CLASSES - 1) / 1.5 for g in (logits, taught))
        distilled = tf.kl_div(tf.log_softmax(ours, 1), tf.softmax(theirs, 1), reduction="batchmean")
        return tf.cross_entropy(logits, y) + 0.7 * 1.5**2 * distilled


class FedLC(Reference):
    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        counts = torch.tensor(np.bincount(Y[user], minlength=CLASSES), dtype=torch.float32).clamp_min(1e-8)
        return tf.cross_entropy(forward(weights, x, train=True)[1] - 0.8 * counts**-0.25, y)


class FedSAM(Reference):
    """The statistics are those of the second pass: the first one's are thrown away."""

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        first = super().gradient(user, copy(weights), x, y)
        length = torch.sqrt(sum(torch.sum(g**2) for g in first))
        worst = [w + 0.3 * g / length for w, g in zip(weights, first, strict=False)]
        return super().gradient(user, [*worst, *weights[2:]], x, y)


class FedOpt(Reference):
    """PyTorch's optimiser at the server."""

    def __init__(self, start: Weights, optimizer: Callable[[Weights], torch.optim.Optimizer]) -> None:
        super().__init__(start)
        self.optimizer = optimizer(self.theta[:2])

    def server(self, mean: Weights, active: int) -> Weights:
        for w, m in zip(self.theta[:2], mean, strict=False):
            w.grad = w.detach() - m
        self.optimizer.step()
        return [*self.theta[:2], *mean[2:]]


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [
        ("fedavg", {}, Reference),
        ("moon", {"mu": 2.0, "temperature": 0.5}, Moon),
        ("fedntd", {"beta": 0.7, "temperature": 1.5}, FedNTD),
        ("fedlc", {"tau": 0.8}, FedLC),
        ("fedsam", {"rho": 0.3}, FedSAM),
        ("feddyn", {"mu": 0.3}, FedDyn),
        ("feddyn", {"mu": 0.3, "share": "predictor"}, FedDyn),
        ("scaffold", {}, Scaffold),
        ("scaffold", {"share": "predictor"}, Scaffold),
        (
            "fedopt",
            {"server": "sgd", "server_lr": 0.8, "server_momentum": 0.5},
            lambda start: FedOpt(start, lambda w: torch.optim.SGD(w, lr=0.8, momentum=0.5)),
        ),
        (
            "fedopt",
            {"server_momentum": 0.5},  # SGD at its default rate
            lambda start: FedOpt(start, lambda w: torch.optim.SGD(w, lr=1.0, momentum=0.5)),
        ),
        (
            "fedopt",
            {"server": "adam", "server_momentum": 0.9, "second_moment": 0.99, "tau": 1e-3},  # at its default rate
            lambda start: FedOpt(start, lambda w: torch.optim.Adam(w, lr=0.01, betas=(0.9, 0.99), eps=1e-3)),
        ),
    ],
)
def test_three_rounds_are_pytorchs(name: str, options: dict[str, Any], reference: Callable[..., Reference]) -> None:
    """What the server sends, and what users keep of the model."""
    _, _, clients, theirs = follow(name, options, reference)
    if theirs.share == "predictor":
        for user in (0, 1, 2):
            kept = innermost(clients[user])
            same_weights(shown(kept), [theirs.models[user][i] for i in (0, 2, 3)])


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
    algorithm, _, clients, theirs = follow("ditto", {"lam": 0.4, "own_lr": 0.1, "lr_decay": 0.5}, Ditto)
    for user in (0, 1, 2):
        same_weights(shown(clients[user].own), theirs.of_user[user])
    assert algorithm.headline_of() == "users"
    assert algorithm.headline_of("global") == "global"


class Ditto(Reference):
    """The own model's rate is half of the shared one's, and falls with it."""

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        own = copy(self.of_user.get(user, self.first))
        for x, y in batches:
            near = sum(torch.sum((own[i] - self.theta[i].detach()) ** 2) for i in (0, 1))
            step = torch.autograd.grad(self.loss(user, own, x, y) + 0.2 * near, own[:2])
            own = moved(own, step, self.rate / 2)
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
