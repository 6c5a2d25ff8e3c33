"""SCAFFOLD against its paper's equations, followed step by step in NumPy with the draws that the users made."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.wrap import With
from fedgen.core.client import train_client
from fedgen.core.contract import Federation, Model, Params, Round, Task
from fedgen.core.recipe import Shard, draw_batches
from fedgen.core.trees import all_finite, squared_distance, stack
from helpers import play, small_setup

RATE, STEPS, BATCH, USERS = 0.1, 4, 5, 3
KEY = jax.random.key(7)


def _softmax(g: np.ndarray) -> np.ndarray:
    e = np.exp(g - g.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def _gradient(theta: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean cross-entropy of softmax(x theta): x^T (h - onehot(y)) / n."""
    return x.T @ (_softmax(x @ theta) - np.eye(3)[y]) / len(y)


def _linear() -> Task:
    """z = x, logits = z theta: everything that is trained is in the predictor."""
    model = Model(
        init=lambda key: (Params((), 0.3 * jax.random.normal(key, (2, 3))), ()),
        extract=lambda weights, statistics, x, train: (x, statistics),
        predict=lambda weights, z: z @ weights,
    )
    return Task(model, 3, jax.ShapeDtypeStruct((2,), jnp.float32), lambda x: x)


def test_two_rounds_are_the_papers_equations() -> None:
    task = _linear()
    federation = Federation(users=USERS, local_steps=STEPS, batch_size=BATCH, lr=RATE)
    scaffold, _ = build(ALGORITHMS["scaffold"], task, federation, {})
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(USERS, 12, 2)).astype(np.float32), rng.integers(0, 3, (USERS, 12)).astype(np.int32)
    shards = [
        Shard(
            jnp.asarray(x[k]),
            jnp.asarray(y[k]),
            jnp.arange(12),
            jnp.int32(0),
            jnp.int32(12),
            jnp.bincount(y[k], length=3),
        )
        for k in range(USERS)
    ]
    server: With = scaffold.server_init(KEY)
    clients = [scaffold.client_init(KEY) for _ in range(USERS)]
    theta = np.asarray(server.base.params.predictor, np.float64)
    c, c_k = np.zeros((2, 3)), np.zeros((USERS, 2, 3))
    for number, cohort in enumerate([(0, 2), (2, 1)]):  # user 2 comes back with a control variate of its own
        round = jnp.int32(number)
        uploads, models, changes = [], [], []
        for k in cohort:
            trained = train_client(
                scaffold, task, federation, scaffold.broadcast(server, round), clients[k], shards[k], round,
                jnp.int32(k), KEY, largest=12,
            )  # fmt: skip
            uploads.append(trained.upload)
            clients[k] = trained.client
            rows = np.asarray(draw_batches(federation, shards[k], round, jnp.int32(k), KEY, 12).rows)
            local, losses = theta.copy(), []
            for batch in rows:
                losses.append(-np.mean(np.log(_softmax(x[k][batch] @ local)[np.arange(BATCH), y[k][batch]])))
                local -= RATE * (_gradient(local, x[k][batch], y[k][batch]) - c_k[k] + c)
            new = c_k[k] - c + (theta - local) / (STEPS * RATE)
            # The correction is in the gradient, so that the loss that is reported is that of the data alone.
            np.testing.assert_allclose(trained.loss, np.mean(losses), rtol=1e-5)
            models.append(local)
            changes.append(new - c_k[k])
            # What travels is c plus the change of c_k.
            np.testing.assert_allclose(trained.upload.own.control.predictor, new - c_k[k] + c, rtol=1e-4, atol=1e-5)
            c_k[k] = new
        context = Round(round, jnp.array(cohort), KEY, lambda key, n: None)
        server, _ = scaffold.server_update(server, stack(uploads), context)
        theta = np.mean(models, axis=0)
        c = c + len(cohort) / USERS * np.mean(changes, axis=0)
        np.testing.assert_allclose(server.base.params.predictor, theta, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(server.own.control.predictor, c, rtol=1e-4, atol=1e-5)
        for k in cohort:
            np.testing.assert_allclose(clients[k].own.control.predictor, c_k[k], rtol=1e-4, atol=1e-5)


def test_a_round_at_rate_0_leaves_everything_as_it_was() -> None:
    """The last round of a cosine."""
    before, after = (play(small_setup("scaffold", lr_schedule="cosine", rounds=3), n).server for n in (2, 3))
    assert bool(all_finite(after))
    for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_privacy_bounds_the_control_variates_as_any_update() -> None:
    """With a bound that bites in each round and hardly any noise, they stay bounded, too."""
    setup = small_setup("scaffold", lr=0.1, local_steps=10, dp_clip=0.05, dp_noise=1e-6, rounds=30)
    state = play(setup, 30)
    assert bool(all_finite((state.server, state.clients)))
    assert float(squared_distance(state.server.own, jax.tree.map(np.zeros_like, state.server.own))) < 4.0
