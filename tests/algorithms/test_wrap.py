"""An algorithm around an algorithm around an algorithm: each has its own parts, and sees no other's."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import CLASSES, KEY, SAMPLE, TASK, round_of

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import With, wrap
from fedgen.core.client import Trained, train_client
from fedgen.core.contract import Algorithm, Batch, Federation, Local, Loss, Model, Needs, Round, Step, Task, Tree
from fedgen.core.recipe import Shard
from fedgen.core.trees import named, stack
from fedgen.core.wires import shapes
from helpers import built, same_bits

RATE, STEPS, SAMPLES = 0.25, 3, 5
NUMBER = Task(Model(None, None, None), CLASSES, jax.ShapeDtypeStruct((1,), jnp.float32), lambda x: x)
FEDERATION = Federation(users=2, local_steps=STEPS, batch_size=2, lr=RATE)


def number() -> Algorithm:
    """The smallest algorithm: users move one number towards 0, whose gradient is the number itself."""

    def local_loss(params: Tree, memo: Tree, batch: Batch, local: Local, step: Step) -> Loss:
        z = jnp.broadcast_to(params, (len(batch.y), 1))
        return Loss(0.5 * params**2, memo, z, z)

    return Algorithm(
        server_init=lambda key: jnp.float32(8),
        client_init=lambda key: jnp.float32(0),
        broadcast=lambda server, round: server,
        local_start=lambda local: (local.received, jnp.int32(0)),
        local_loss=local_loss,
        local_finish=lambda params, memo, local: (params, local.client),
        server_update=lambda server, uploads, round: (jnp.mean(uploads), {"mean": jnp.mean(uploads)}),
        predict_global=lambda server, x: server * x,
        predict_local=lambda received, client, x: (received + client) * x,
    )


class Own(NamedTuple):
    """A number with a name."""

    value: jax.Array


def layer(base: Algorithm, k: float) -> Algorithm:
    """Something of everything, all of it multiples of k."""

    def before(params: Tree, memo: With, batch: Batch, local: Local) -> Own:
        return Own(memo.own.value + k * jnp.sum(batch.weight))

    def ahead(batch: Batch, local: Local, step: Step) -> Own:
        return Own(local.before.value + k * step.number)

    def local_loss(loss: Loss, params: Tree, batch: Batch, local: Local, step: Step) -> Loss:
        return loss._replace(value=loss.value + k, memo=Own(loss.memo.value + step.ahead.value))

    def local_gradient(gradient: Tree, params: Tree, local: Local, step: Step) -> Tree:
        return 2 * gradient + local.received.own.value + step.ahead.value

    def after(params: Tree, memo: With, batch: Batch, local: Local) -> Own:
        return Own(memo.own.value + local.before.value + k * jnp.sum(batch.weight * batch.y))

    def local_finish(params: Tree, memo: Own, local: Local) -> tuple[Own, Own]:
        return Own(memo.value + local.after.value), Own(local.client.own.value + local.before.value)

    def server_update(server: With, new: Tree, uploads: With, round: Round) -> tuple[With, dict[str, jax.Array]]:
        return With(new, Own(server.own.value + jnp.sum(uploads.own.value))), {f"layer {k}": uploads.own.value[0]}

    return wrap(
        base,
        server_init=lambda key: Own(jnp.float32(k)),
        client_init=lambda key: Own(jnp.float32(10 * k)),
        broadcast=lambda own, round: Own(own.value + k * round),
        local_start=lambda local: Own(100 * k + local.received.own.value + local.client.own.value),
        local_loss=local_loss,
        local_gradient=local_gradient,
        local_finish=local_finish,
        server_update=server_update,
        add_noise=lambda own, key: Own(own.value + k * jax.random.uniform(key)),
        check_upload=lambda sent: {f"layer {k}": sent.value < 0},
        ahead=ahead,
        before=before,
        after=after,
    )


INNER, OUTER = 1.0, 16.0
LABELS = np.array([0, 1, 2, 1, 1])


def _trained(algorithm: Algorithm, received: Tree, client: Tree, round: int) -> Trained:
    counts = np.bincount(LABELS, minlength=CLASSES)
    shard = Shard(
        *map(jnp.asarray, (np.zeros((SAMPLES, 1), np.float32), LABELS, np.arange(SAMPLES), 0, SAMPLES, counts))
    )
    train = jax.jit(
        lambda b, c: train_client(
            algorithm, NUMBER, FEDERATION, b, c, shard, jnp.int32(round), jnp.int32(0), KEY, largest=SAMPLES
        )
    )
    return train(received, client)


class Expected(NamedTuple):
    """A layer's own numbers in a user's round."""

    received: float
    ahead: list[float]
    client: float
    upload: float


def _expected(k: float, received: float, client: float) -> Expected:
    start = 100 * k + received + client
    before = start + SAMPLES * k
    ahead = [before + k * step for step in range(STEPS)]
    memo = start + sum(ahead)
    after = memo + before + k * LABELS.sum()
    return Expected(received, ahead, client + before, memo + after)


def test_two_layers_each_have_their_own() -> None:
    """State, messages, memo, what was computed ahead, both passes and the gradient, in a user's third round."""
    algorithm = layer(layer(number(), INNER), OUTER)
    server, client = algorithm.server_init(KEY), algorithm.client_init(KEY)
    received = algorithm.broadcast(server, jnp.int32(2))
    trained = _trained(algorithm, received, client, 2)
    inner, outer = (_expected(k, 3 * k, 10 * k) for k in (INNER, OUTER))
    assert float(received.base.own.value) == inner.received
    assert float(received.own.value) == outer.received
    sent = float(trained.upload.base.own.value), float(trained.upload.own.value)
    noise = [(got - clean.upload) / k for got, clean, k in zip(sent, (inner, outer), (INNER, OUTER), strict=True)]
    assert all(0 < one < 1 for one in noise)
    assert abs(noise[0] - noise[1]) > 0.01, "each layer draws for itself"
    assert float(trained.client.base.own.value) == inner.client
    assert float(trained.client.own.value) == outer.client
    # The gradient is corrected by the inner layer first; the loss has both constants and is otherwise the base's.
    value, losses = 8.0, []
    for step in range(STEPS):
        losses.append(0.5 * value**2 + INNER + OUTER)
        gradient = 2 * value + inner.received + inner.ahead[step]
        value -= RATE * (2 * gradient + outer.received + outer.ahead[step])
    assert float(trained.upload.base.base) == pytest.approx(value, rel=1e-5)
    assert float(trained.loss) == pytest.approx(np.mean(losses), rel=1e-5)
    assert float(trained.client.base.base) == 0


def test_two_layers_at_the_server() -> None:
    algorithm = layer(layer(number(), INNER), OUTER)
    sent = [With(With(jnp.float32(u), Own(jnp.float32(10 + u))), Own(jnp.float32(100 + u))) for u in (1, 3)]
    after, metrics = algorithm.server_update(algorithm.server_init(KEY), stack(sent), round_of(0, 2))
    found = jax.tree.map(float, (after.base.base, after.base.own.value, after.own.value))
    assert found == (2, INNER + 11 + 13, OUTER + 101 + 103)
    assert jax.tree.map(float, metrics) == {"mean": 2, "layer 1.0": 11, "layer 16.0": 101}
    assert algorithm.check_upload is not None
    bad = With(sent[0].base, Own(jnp.float32(-1)))
    assert jax.tree.map(bool, algorithm.check_upload(bad)) == {"layer 1.0": False, "layer 16.0": True}
    assert algorithm.predict_global is not None
    assert algorithm.predict_local is not None
    x = jnp.ones(1)
    np.testing.assert_array_equal(algorithm.predict_global(after, x), [2])
    received, client = algorithm.broadcast(after, jnp.int32(1)), algorithm.client_init(KEY)
    np.testing.assert_array_equal(algorithm.predict_local(received, client, x), [2])


def test_names_say_how_deep_a_part_lies() -> None:
    forms = shapes(layer(layer(number(), INNER), OUTER), NUMBER)
    for tree in forms:
        assert list(named(tree)) == [".base.base", ".base.value", ".value"]


def test_a_layer_sees_nothing_of_what_only_its_base_computes() -> None:
    """Ahead and both passes are the base's alone; own functions find None there, and the base what it needs."""
    seen: list[Any] = []

    def local_loss(loss: Loss, params: Tree, batch: Batch, local: Local, step: Step) -> Loss:
        seen.extend([loss.memo, local.before, local.after, step.ahead])
        return loss

    def local_gradient(gradient: Tree, params: Tree, local: Local, step: Step) -> Tree:
        seen.extend([local.before, step.ahead])
        return gradient

    def local_finish(params: Tree, memo: Tree, local: Local) -> tuple[Own, None]:
        seen.extend([local.before, local.after])
        return Own(jnp.float32(0)), None

    plain = layer(layer(number(), INNER), OUTER)
    watching = wrap(plain, local_loss=local_loss, local_gradient=local_gradient, local_finish=local_finish)
    client = plain.client_init(KEY)
    received = plain.broadcast(plain.server_init(KEY), jnp.int32(0))
    trained = _trained(watching, With(received, None), client, 0)
    assert len(seen) >= 8
    assert all(part is None for part in seen)
    assert same_bits(trained._replace(upload=trained.upload.base), _trained(plain, received, client, 0))


def test_a_layer_over_a_base_without_any_has_its_own() -> None:
    """The base computes nothing ahead and passes over nothing: what the layer computes is for the layer."""
    algorithm = layer(number(), INNER)
    client = algorithm.client_init(KEY)
    received = algorithm.broadcast(algorithm.server_init(KEY), jnp.int32(0))
    trained = _trained(algorithm, received, client, 0)
    expected = _expected(INNER, INNER, 10 * INNER)
    assert 0 < float(trained.upload.own.value) - expected.upload < INNER, "its noise"
    assert float(trained.client.own.value) == expected.client


@pytest.mark.parametrize("share", ["all", "predictor"])
def test_an_empty_wrap_is_its_base_to_the_bit(share: str) -> None:
    """Two rounds of two users, with BatchNorm; with partial sharing users have states, too."""
    federation = Federation(users=2, local_steps=2, batch_size=4, lr=0.1, share=share)
    base = fedavg(TASK, federation)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, SAMPLE)).astype(np.float32), rng.integers(0, CLASSES, 12)
    shards = [
        Shard(*map(jnp.asarray, (x, y, np.arange(12), 6 * u, 6, np.bincount(y[6 * u : 6 * u + 6], minlength=CLASSES))))
        for u in (0, 1)
    ]

    def after_two_rounds(algorithm: Algorithm) -> Tree:
        server, clients = algorithm.server_init(KEY), [algorithm.client_init(KEY)] * 2

        @jax.jit
        def play(server: Tree, clients: list[Tree], round: jax.Array) -> Tree:
            received = algorithm.broadcast(server, round)
            trained = [
                train_client(
                    algorithm, TASK, federation, received, clients[u], shards[u], round, jnp.int32(u), KEY, largest=6
                )
                for u in (0, 1)
            ]
            server, metrics = algorithm.server_update(server, stack([t.upload for t in trained]), round_of(0, 2))
            return server, [t.client for t in trained], metrics, [t.loss for t in trained]

        for number in (0, 1):
            server, clients, *rest = play(server, clients, jnp.int32(number))
        return server, clients, rest

    assert same_bits(after_two_rounds(wrap(base)), after_two_rounds(base))
    assert wrap(base).needs == base.needs


def test_what_a_layer_needs_is_added_to_what_its_base_needs() -> None:
    _, base = built("feddfusion")
    layer = wrap(base, needs=Needs(whole_uploads=True))
    assert layer.needs == Needs(proxy=True, whole_uploads=True, individual_uploads=True)
    assert wrap(layer, needs=Needs(accumulates=True)).needs == Needs(True, True, True, True)
    assert wrap(base).needs == base.needs
