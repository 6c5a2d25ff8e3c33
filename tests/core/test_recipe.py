"""The recipe of local training against PyTorch's optimisers, hand-computed rates and the meaning of an epoch."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from fedgen.algorithms import ALGORITHMS, build
from fedgen.core.client import train_client
from fedgen.core.contract import Batch, Federation, Local, Model, Params, Task
from fedgen.core.recipe import Shard, client_optimizer, draw_batches, learning_rate
from fedgen.errors import FedgenError
from fedgen.simulator.run import run
from fedgen.simulator.setup import prepare
from helpers import each, play, same_bits, small_config, small_data, small_setup, summing

KEY = jax.random.key(3)


def _rates(rounds: int, **settings: Any) -> list[float]:
    federation = Federation(rounds=rounds, **settings)
    return [float(learning_rate(federation, jnp.int32(r))) for r in range(rounds)]


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"lr": 0.5}, [0.5, 0.5, 0.5, 0.5, 0.5]),
        ({"lr": 0.5, "lr_decay": 0.1, "lr_schedule": "constant"}, [0.5] * 5),
        ({"lr": 0.5, "lr_decay": 0.5}, [0.5, 0.25, 0.125, 0.0625, 0.03125]),
        # half a cosine over the rounds, from 1 to lr_final: final + (1 - final) (1 + cos(pi r / 4)) / 2
        ({"lr": 1.0, "lr_schedule": "cosine"}, [1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ({"lr": 1.0, "lr_schedule": "cosine", "lr_final": 0.1}, [1.0, 0.868198, 0.55, 0.231802, 0.1]),
        (
            {"lr": 1.0, "lr_schedule": "steps", "lr_decay": 0.1, "lr_milestones": (1, 4)},
            [1.0, 0.1, 0.1, 0.1, 0.01],
        ),
        # two rounds of rising, then the schedule begins
        ({"lr": 1.0, "lr_warmup": 2, "lr_decay": 0.5}, [0.5, 1.0, 1.0, 0.5, 0.25]),
        ({"lr": 1.0, "lr_warmup": 2, "lr_schedule": "cosine"}, [0.5, 1.0, 1.0, 0.5, 0.0]),
    ],
)
def test_rates_over_the_rounds(settings: dict[str, Any], due: list[float]) -> None:
    np.testing.assert_allclose(_rates(5, **settings), due, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "theirs"),
    [
        ({}, lambda p: torch.optim.SGD(p, lr=0.1)),
        ({"momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        ({"momentum": 0.9, "nesterov": True}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
        (
            {"momentum": 0.5, "weight_decay": 0.01},
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=0.01),
        ),
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1)),
        ({"optimizer": "adam", "weight_decay": 0.01}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01)),
        ({"optimizer": "adamw", "weight_decay": 0.01}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01)),
        ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0)),
        ({"clip_gradient": 0.5}, lambda p: torch.optim.SGD(p, lr=0.1)),
    ],
)
def test_optimisers_are_pytorchs(settings: dict[str, Any], theirs: Any) -> None:
    rng = np.random.default_rng(0)
    start, target = rng.normal(size=(2, 6))
    ours = client_optimizer(Federation(**settings), jnp.float32(0.1))
    params = jnp.asarray(start, jnp.float32)
    state = ours.init(params)
    other = torch.tensor(start, dtype=torch.float32, requires_grad=True)
    optimizer = theirs([other])
    for _ in range(5):
        updates, state = ours.update(2 * (params - jnp.asarray(target, jnp.float32)), state, params)
        params = params + updates
        optimizer.zero_grad()
        torch.sum((other - torch.tensor(target, dtype=torch.float32)) ** 2).backward()
        if "clip_gradient" in settings:
            torch.nn.utils.clip_grad_norm_([other], settings["clip_gradient"])
        optimizer.step()
    np.testing.assert_allclose(params, other.detach().numpy(), rtol=2e-5, atol=1e-6)


def _shard(size: int, offset: int = 0, total: int = 40) -> Shard:
    rows = jnp.asarray(np.random.default_rng(1).permutation(total).astype(np.int32))
    y = jnp.arange(total) % 3
    x = jnp.arange(total, dtype=jnp.float32)[:, None]
    mine = np.asarray(y)[np.asarray(rows)[offset : offset + size]]
    return Shard(x, y, rows, jnp.int32(offset), jnp.int32(size), jnp.asarray(np.bincount(mine, minlength=3)))


@pytest.mark.parametrize("size", [1, 4, 7, 8, 11])
def test_an_epoch_has_each_sample_once_in_shuffled_order(size: int) -> None:
    federation = Federation(local_epochs=3, batch_size=4)
    shard = _shard(size, offset=5)
    draws = jax.tree.map(np.asarray, draw_batches(federation, shard, jnp.int32(2), jnp.int32(1), KEY, 11))
    per_epoch = -(-size // 4)
    assert draws.steps == 3 * per_epoch
    assert draws.rows.shape[0] >= draws.steps
    mine = set(np.asarray(shard.rows)[5 : 5 + size].tolist())
    orders = []
    for epoch in range(3):
        steps = slice(epoch * per_epoch, (epoch + 1) * per_epoch)
        kept = draws.weight[steps].astype(bool)
        seen = draws.rows[steps][kept].tolist()
        assert Counter(seen) == Counter(mine), "each sample once"
        assert set(draws.rows[steps].ravel().tolist()) <= mine, "what fills a mini-batch is the user's, too"
        for row, weight in zip(draws.rows[steps], kept, strict=True):
            assert set(row.tolist()) == set(row[weight].tolist()), "and of the same mini-batch"
        orders.append(tuple(seen))
    assert size < 4 or len(set(orders)) == 3, "in another order each time"


def test_the_order_does_not_depend_on_the_largest_user() -> None:
    """A site knows nothing of the others' sizes and draws what the simulator draws."""
    federation = Federation(local_epochs=2, batch_size=4)
    few, many = (draw_batches(federation, _shard(7), jnp.int32(0), jnp.int32(3), KEY, n) for n in (7, 32))
    steps = int(few.steps)
    assert steps == int(many.steps)
    np.testing.assert_array_equal(few.rows[:steps], many.rows[:steps])
    np.testing.assert_array_equal(few.weight[:steps], many.weight[:steps])


def _line() -> Task:
    """Logits that are linear in x, so that torch can follow each step."""
    model = Model(
        init=lambda key: (Params((), 0.1 * jax.random.normal(key, (1, 3))), ()),
        extract=lambda weights, statistics, x, train: (x / 10, statistics),
        predict=lambda weights, z: z @ weights,
    )
    return Task(model, 3, jax.ShapeDtypeStruct((1,), jnp.float32), lambda x: x)


@pytest.mark.parametrize("settings", [{}, {"optimizer": "adam", "lr": 0.05}, {"momentum": 0.9, "clip_gradient": 0.2}])
def test_epochs_of_partial_batches_are_pytorchs_loop(settings: dict[str, Any]) -> None:
    task, size = _line(), 7
    federation = Federation(users=1, local_epochs=2, batch_size=4, **{"lr": 0.3, **settings})
    fedavg, _ = build(ALGORITHMS["fedavg"], task, federation, {})
    shard, server = _shard(size), fedavg.server_init(KEY)
    trained = train_client(
        fedavg, task, federation, fedavg.broadcast(server, 0), fedavg.client_init(KEY), shard, jnp.int32(0),
        jnp.int32(0), KEY, largest=16,
    )  # fmt: skip
    draws = jax.tree.map(np.asarray, draw_batches(federation, shard, jnp.int32(0), jnp.int32(0), KEY, 16))
    weights = torch.tensor(np.asarray(server.params.predictor), requires_grad=True)
    rate = float(federation.lr)
    if federation.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.Adam([weights], lr=rate)
    else:
        optimizer = torch.optim.SGD([weights], lr=rate, momentum=federation.momentum)
    losses = []
    for rows, kept in zip(draws.rows[: draws.steps], draws.weight[: draws.steps].astype(bool), strict=True):
        x, y = (torch.tensor(np.asarray(a)[rows[kept]]) for a in (shard.x, shard.y))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x / 10 @ weights, y.long())
        loss.backward()
        if federation.clip_gradient:
            torch.nn.utils.clip_grad_norm_([weights], federation.clip_gradient)
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(trained.upload.params.predictor, weights.detach().numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(trained.loss, np.mean(losses), rtol=1e-5)


def test_a_kept_optimiser_goes_on_where_it_was() -> None:
    """Two rounds of one user with momentum: kept, they are one run of the optimiser; fresh, each begins at rest."""
    task = _line()
    shard = _shard(8)

    def two_rounds(how: str) -> np.ndarray:
        federation = Federation(users=1, local_steps=2, batch_size=4, lr=0.2, momentum=0.9, optimizer_state=how)
        fedavg, federation = build(ALGORITHMS["fedavg"], task, federation, {})
        server, client = fedavg.server_init(KEY), fedavg.client_init(KEY)
        for number in (0, 1):
            trained = train_client(
                fedavg, task, federation, fedavg.broadcast(server, number), client, shard, jnp.int32(number),
                jnp.int32(0), KEY, largest=8,
            )  # fmt: skip
            client = trained.client
            server = server._replace(params=trained.upload.params)
        return np.asarray(server.params.predictor)

    def expected(kept: bool) -> np.ndarray:
        federation = Federation(local_steps=2, batch_size=4)
        weights = torch.tensor(np.asarray(task.model.init(KEY)[0].predictor), requires_grad=True)
        optimizer = torch.optim.SGD([weights], lr=0.2, momentum=0.9)
        for number in (0, 1):
            if not kept:
                optimizer = torch.optim.SGD([weights], lr=0.2, momentum=0.9)
            for rows in np.asarray(draw_batches(federation, shard, jnp.int32(number), jnp.int32(0), KEY, 8).rows):
                optimizer.zero_grad()
                x, y = (torch.tensor(np.asarray(a)[rows]) for a in (shard.x, shard.y))
                torch.nn.functional.cross_entropy(x / 10 @ weights, y.long()).backward()
                optimizer.step()
        return weights.detach().numpy()

    for how, kept in (("kept", True), ("fresh", False)):
        np.testing.assert_allclose(two_rounds(how), expected(kept), rtol=1e-4, atol=1e-6)
    assert abs(expected(True) - expected(False)).max() > 1e-3


def test_passes_see_each_sample_once_before_and_after_training() -> None:
    """Class sums of x over a user's data, of which the last part is not full; and with which parameters."""
    task = _line()
    federation = Federation(users=1, local_steps=2, batch_size=4, lr=0.2)
    fedavg, _ = build(ALGORITHMS["fedavg"], task, federation, {})

    def sums(params: Params, memo: Any, batch: Batch, local: Local) -> dict[str, jax.Array]:
        labels = batch.one_hot(3)
        return {"x": labels.T @ batch.x, "n": jnp.sum(labels, axis=0), "w": jnp.sum(batch.weight) * params.predictor}

    def local_finish(params: Params, memo: Any, local: Local) -> tuple[Any, Any]:
        return (params.predictor, local.before, local.after, local.counts, local.samples, local.rate), local.client

    shard = _shard(27, offset=3)
    built = fedavg._replace(before=sums, after=sums, local_finish=local_finish)
    server = fedavg.server_init(KEY)
    trained = train_client(
        built, task, federation, fedavg.broadcast(server, 0), fedavg.client_init(KEY), shard, jnp.int32(0),
        jnp.int32(0), KEY, largest=38,
    )  # fmt: skip
    last, before, after, counts, samples, rate = trained.upload
    mine = np.asarray(shard.rows)[3:30]
    x, y = np.asarray(shard.x)[mine], np.asarray(shard.y)[mine]
    due = np.stack([x[y == label].sum(axis=0) for label in range(3)])
    for found, weights in ((before, server.params.predictor), (after, last)):
        np.testing.assert_allclose(found["x"], due)
        np.testing.assert_allclose(found["n"], np.bincount(y, minlength=3))
        np.testing.assert_allclose(found["w"], 27 * np.asarray(weights), rtol=1e-5)
    np.testing.assert_array_equal(counts, np.bincount(y, minlength=3))
    assert (int(samples), float(rate)) == (27, pytest.approx(0.2))


@pytest.mark.parametrize("algorithm", each(["fedavg", "fedgen"], quick=["fedavg"]))
def test_epochs_in_a_simulation_with_users_of_different_sizes(algorithm: str) -> None:
    setup = small_setup(algorithm, local_epochs=2, alpha=0.3)
    sizes = setup.divisions[0].size
    assert sizes.min() < sizes.max(), "users differ"
    state = play(setup, 2)
    assert np.isfinite(state.loss)
    if algorithm == "fedgen":
        assert np.isfinite(state.metrics["generator_loss"])


def test_an_epoch_of_one_whole_batch_is_a_step_of_all_samples() -> None:
    """With plain SGD, one epoch in one mini-batch is a step along the mean over the user's data."""
    task, size = _line(), 5
    federation = Federation(users=1, local_epochs=1, batch_size=8, lr=0.5)
    fedavg, _ = build(ALGORITHMS["fedavg"], task, federation, {})
    shard, server = _shard(size), fedavg.server_init(KEY)
    trained = train_client(
        fedavg, task, federation, fedavg.broadcast(server, 0), fedavg.client_init(KEY), shard, jnp.int32(0),
        jnp.int32(0), KEY, largest=5,
    )  # fmt: skip
    mine = np.asarray(shard.rows)[:size]
    z, y = np.asarray(shard.x)[mine] / 10, np.asarray(shard.y)[mine]
    weights = np.asarray(server.params.predictor, np.float64)
    g = z @ weights
    h = np.exp(g) / np.exp(g).sum(axis=1, keepdims=True)
    due = weights - 0.5 * z.T @ (h - np.eye(3)[y]) / size
    np.testing.assert_allclose(trained.upload.params.predictor, due, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_settings_reach_the_run_and_the_defaults_change_nothing() -> None:
    plain = play(small_setup("fedavg"), 2).server
    same = play(small_setup("fedavg", lr_schedule="exponential", optimizer="sgd", lr_warmup=0), 2).server
    assert same_bits(plain, same)
    for other in ({"momentum": 0.9}, {"optimizer": "adam"}, {"lr_warmup": 3}, {"clip_gradient": 0.01}):
        assert not same_bits(plain, play(small_setup("fedavg", **other), 2).server), other
    for other in ({"fedavg.momentum": 0.9}, {"fedavg.lr_schedule": "cosine", "fedavg.lr_final": 0.1}):
        config = small_config("fedavg", **other)
        assert run(prepare(config, small_data()))["results"][0]["rounds"] == 3


def test_a_private_user_does_not_count_by_epochs() -> None:
    with pytest.raises(FedgenError, match="local_steps"):
        small_setup("fedgen", local_epochs=1, dp_clip=1.0, dp_noise=0.1, dp_count_noise=0.1)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"nesterov": True}, "set momentum"),
        ({"optimizer": "adam", "momentum": 0.9}, "sgd's"),
        ({"lr_schedule": "steps"}, "go together"),
        ({"lr_milestones": (3,)}, "go together"),
        ({"lr_final": 0.1}, "cosine"),
    ],
)
def test_a_setting_that_would_count_nothing_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(FedgenError, match=reason):
        small_setup("fedavg", **settings)


@pytest.mark.parametrize("builder", [lambda: None, lambda task, federation: 3])
def test_what_is_no_algorithm_is_refused(builder: Any) -> None:
    with pytest.raises(FedgenError, match=r"an algorithm is a function of \(task, federation"):
        build(builder, _line(), Federation(), {})


@pytest.mark.slow
def test_a_wrappers_pass_sees_the_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network with BatchNorm computes features in it; class sums of all cohorts are kept at the server."""
    monkeypatch.setitem(ALGORITHMS, "summing", summing)
    state = play(small_setup("summing", model="cnn", local_epochs=1), 1)
    assert np.isfinite(state.server.own).all()
    assert state.metrics["before"] != state.metrics["after"]
