"""Each switch of the presets does what it says, by numbers worked out beside it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import log_softmax, softmax

from fedgen.algorithms.fedavg import Upload as AverageUpload
from fedgen.algorithms.fedgen import Upload
from fedgen.algorithms.wrap import With
from fedgen.core.contract import Algorithm, Batch, Federation, Params, Round
from fedgen.core.recipe import client_optimizer, learning_rate
from fedgen.core.streams import stream
from fedgen.core.trees import stack
from fedgen.models.generator import draw_noise, generate
from fedgen.simulator.setup import Setup
from helpers import built, local_of, same_bits, step_of

KEY = jax.random.key(5)
CNN = {"model": "cnn", "model__channels": [2, 3]}


def _round(number: int = 0, users: int = 2) -> Round:
    return Round(jnp.int32(number), jnp.arange(users), KEY, lambda key, n: None)


def _loss(setup: Setup, algorithm: Algorithm, broadcast: Any, round: int = 1, step: int = 0) -> tuple[float, Any]:
    batch, local = _batch(setup), local_of(setup.task, broadcast, algorithm.client_init(KEY), round=round)
    params, memo = algorithm.local_start(local)
    loss = algorithm.local_loss(params, memo, batch, local, step_of(algorithm, batch, local, KEY, step))
    return float(loss.value), loss.memo


def _batch(setup: Setup) -> Batch:
    return Batch(setup.task.prepare(setup.data.x[:16]), setup.data.y[:16])


# BatchNorm statistics and aggregation


def _two_models(setup: Setup) -> list[tuple[Params, Any]]:
    models = []
    for i in (1, 2):
        params, statistics = setup.task.model.init(jax.random.key(i))
        models.append((params, jax.tree.map(lambda a, i=i: a + i, statistics)))
    return models


@pytest.mark.parametrize(("weighting", "shares"), [("uniform", (0.5, 0.5)), ("samples", (0.25, 0.75))])
def test_parameters_and_statistics_are_averaged_alike(weighting: str, shares: tuple[float, float]) -> None:
    setup, fedavg = built("fedavg", weighting=weighting, **CNN)
    models = _two_models(setup)
    uploads = stack([
        fedavg.local_finish(*model, local_of(setup.task, samples=samples))[0]
        for model, samples in zip(models, (10, 30), strict=True)
    ])  # fmt: skip
    assert (uploads.samples is None) == (weighting == "uniform")
    server, _ = fedavg.server_update(fedavg.server_init(KEY), uploads, _round())
    expected = jax.tree.map(lambda a, b: shares[0] * a + shares[1] * b, *models)
    for a, b in zip(jax.tree.leaves(tuple(server)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_averaged_statistics_go_down_and_local_ones_stay() -> None:
    setup, averaged = built("fedavg", **CNN)
    _, local = built("fedavg", statistics="local", **CNN)
    (params, statistics), _ = _two_models(setup)
    for fedavg, travels in ((averaged, True), (local, False)):
        sent, kept = fedavg.local_finish(params, statistics, local_of(setup.task, client=fedavg.client_init(KEY)))
        assert same_bits(sent.statistics, statistics), "the server's own model needs them"
        server, _ = fedavg.server_update(fedavg.server_init(KEY), stack([sent, sent]), _round())
        broadcast = fedavg.broadcast(server, jnp.int32(1))
        _, start = fedavg.local_start(local_of(setup.task, broadcast, kept))
        assert (broadcast.statistics is not None) == travels
        assert (kept.statistics is not None) == (not travels)
        assert same_bits(start, statistics)
        newcomer = fedavg.local_start(local_of(setup.task, broadcast, fedavg.client_init(KEY)))[1]
        assert same_bits(newcomer, statistics) == travels
        assert fedavg.personal == (not travels)


def test_training_updates_the_statistics() -> None:
    setup, fedavg = built("fedavg", **CNN)
    broadcast = fedavg.broadcast(fedavg.server_init(KEY), jnp.int32(0))
    _, memo = _loss(setup, fedavg, broadcast)
    assert not same_bits(memo, broadcast.statistics)


def test_private_extractors_keep_their_statistics() -> None:
    setup, fedavg = built("fedavg", share="predictor", **CNN)
    (params, statistics), _ = _two_models(setup)
    sent, kept = fedavg.local_finish(params, statistics, local_of(setup.task, client=fedavg.client_init(KEY)))
    assert sent == AverageUpload(Params(None, params.predictor), None, None)
    assert same_bits(kept.params, Params(params.extractor, None))
    assert same_bits(kept.statistics, statistics)


def test_the_users_rate_decays_by_round_and_weights_decay() -> None:
    # -0.1 * 0.5^3 * (gradient 2 + 0.01 * weight 4)
    federation = Federation(users=1, lr=0.1, lr_decay=0.5, weight_decay=0.01)
    optimizer = client_optimizer(federation, learning_rate(federation, jnp.int32(3)))
    weight = {"a": jnp.array([4.0])}
    updates, _ = optimizer.update({"a": jnp.array([2.0])}, optimizer.init(weight), weight)
    np.testing.assert_allclose(optax.apply_updates(weight, updates)["a"], [4 - 0.1 * 0.125 * 2.04], rtol=1e-6)


# FedGen's client


def _terms(round: int = 1, step: int = 0, prior: Any = None, **settings: Any) -> float:
    """What FedGen adds to the loss of FedAvg."""
    setup, fedgen = built("fedgen", **settings)
    _, plain = built("fedavg")
    server = fedgen.server_init(KEY)
    if prior is not None:
        server = With(server.base, server.own._replace(prior=jnp.array(prior)))
    broadcast = fedgen.broadcast(server, jnp.int32(round))
    return _loss(setup, fedgen, broadcast, round, step)[0] - _loss(setup, plain, broadcast.base, round, step)[0]


def test_weights_scale_and_decay() -> None:
    one = _terms()
    assert one > 0.5  # the cross-entropy of four classes before any training is about log 4
    assert _terms(fedgen__w=3.0) == pytest.approx(3 * one, rel=1e-4)
    assert _terms(round=2, fedgen__w_decay=0.5) == pytest.approx(0.25 * _terms(round=2), rel=1e-4)
    only_beta = {"fedgen__w": 0.0, "fedgen__beta": 100.0}
    matched = _terms(round=2, **only_beta)
    assert matched > 0
    assert _terms(round=2, fedgen__beta_decay=0.5, **only_beta) == pytest.approx(0.25 * matched, rel=1e-2)


def test_the_generator_may_rest_in_the_first_round_and_after_some_steps() -> None:
    for terms in ({}, {"fedgen__w": 0.0, "fedgen__beta": 100.0}):
        assert _terms(round=0, fedgen__skip_first_round=True, **terms) == pytest.approx(0, abs=1e-6)
        assert _terms(round=1, fedgen__skip_first_round=True, **terms) > 0
        assert _terms(round=0, **terms) > 0
        assert _terms(step=2, fedgen__stop_after=3, **terms) > 0
        assert _terms(step=3, fedgen__stop_after=3, **terms) == pytest.approx(0, abs=1e-6)
        assert _terms(step=30, **terms) > 0


def test_labels_follow_the_prior_or_not() -> None:
    skewed = [1.0, 0.0, 0.0, 0.0]
    assert _terms(prior=skewed) != pytest.approx(_terms(), rel=1e-3)
    assert _terms(prior=skewed, fedgen__labels="uniform") == pytest.approx(_terms(), rel=1e-6)


def test_noise_of_the_named_kind_is_used() -> None:
    assert _terms(fedgen__noise="uniform") != pytest.approx(_terms(), rel=1e-4)


def test_the_matching_term_is_kl_from_the_generated_to_the_real() -> None:
    setup, fedgen = built("fedgen", fedgen__w=0.0, fedgen__beta=1.0)
    server = fedgen.server_init(KEY)
    broadcast = fedgen.broadcast(server, jnp.int32(1))
    batch, model, params = _batch(setup), setup.task.model, server.base.params
    noise = draw_noise(stream(KEY, "matched"), (16, 4), "normal")
    z, _ = generate(server.own.generator, noise, batch.y, 4, False)
    target = np.asarray(model.predict(params.predictor, z))
    real = np.asarray(model.predict(params.predictor, model.extract(params.extractor, (), batch.x, True)[0]))
    expected = np.mean(np.sum(softmax(target, 1) * (log_softmax(target, 1) - log_softmax(real, 1)), axis=1))
    assert _terms(fedgen__w=0.0, fedgen__beta=1.0) == pytest.approx(expected, rel=1e-3)
    assert broadcast.own.prior.shape == (4,)


@pytest.mark.parametrize("start", [0, 1])
def test_counts_are_the_labels_drawn(start: int) -> None:
    setup, fedgen = built("fedgen", fedgen__counts_start=start)
    broadcast = fedgen.broadcast(fedgen.server_init(KEY), jnp.int32(0))
    _, memo = _loss(setup, fedgen, broadcast)
    local = local_of(setup.task, broadcast, fedgen.client_init(KEY))
    upload, _ = fedgen.local_finish(fedgen.local_start(local)[0], memo, local)
    np.testing.assert_array_equal(upload.own.counts, np.bincount(_batch(setup).y, minlength=4) + start)


# FedGen's server


def _generator_after(number: int = 0, counts: Any = ((9, 1, 3, 3), (1, 9, 3, 3)), **settings: Any) -> tuple[Any, Any]:
    """The generator before and after a server update."""
    setup, fedgen = built("fedgen", fedgen__generator_steps=1, **settings)
    sent = [AverageUpload(setup.task.model.init(jax.random.key(i))[0], (), None)._replace(samples=None) for i in (1, 2)]
    server = fedgen.server_init(KEY)
    after, _ = fedgen.server_update(server, With(stack(sent), Upload(jnp.array(counts))), _round(number))
    return server.own.generator, after.own.generator


def _moved(pair: tuple[Any, Any]) -> np.ndarray:
    before, after = pair
    return np.asarray(after.params["output"]["weight"] - before.params["output"]["weight"])


def test_the_generators_rate_and_its_decay() -> None:
    # Adam's first step moves a weight by its rate, whatever the gradient.
    assert np.abs(_moved(_generator_after(fedgen__generator_lr=0.01))).max() == pytest.approx(0.01, rel=1e-2)
    decayed = _generator_after(3, fedgen__generator_lr=0.01, fedgen__generator_lr_decay=0.5)
    assert np.abs(_moved(decayed)).max() == pytest.approx(0.01 / 8, rel=1e-2)


def test_the_generators_weight_decay() -> None:
    before, after = _generator_after(fedgen__generator_weight_decay=1e6)
    step = np.asarray(after.params["output"]["weight"] - before.params["output"]["weight"])
    assert np.all(np.sign(step) == -np.sign(before.params["output"]["weight"]))


@pytest.mark.parametrize(
    "switch",
    [
        {"fedgen__eta": 0.0},
        {"fedgen__diversity": "all-pairs"},
        {"fedgen__weights": "equal"},
        {"fedgen__teacher": "losses"},
        {"fedgen__teacher": "losses-broadcast"},
        {"fedgen__noise": "uniform"},
        {"fedgen__labels": "uniform"},
    ],
)
def test_each_switch_of_the_generators_training_is_connected(switch: dict) -> None:
    # counts that make the prior differ from uniform
    skewed = ((9, 1, 3, 3), (1, 2, 3, 3))
    one_step = {"fedgen__generator_lr": 0.01, "fedgen__generator_weight_decay": 0.0}
    assert not same_bits(
        _generator_after(counts=skewed, **one_step)[1], _generator_after(counts=skewed, **one_step, **switch)[1]
    )


# FedDistill


def _distilled(**settings: Any) -> tuple[Setup, Algorithm, Any, Any]:
    setup, distill = built("feddistill+", **settings)
    start = distill.server_init(KEY)
    known = start.own._replace(
        logits=jnp.array(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32),
        known=jnp.array([1.0, 1.0, 0.0, 1.0]),
    )
    server = With(start.base, known)
    return setup, distill, server, distill.broadcast(server, jnp.int32(1))


def test_distillation_is_kl_from_the_label_means_for_labels_that_are_known() -> None:
    setup, distill, server, broadcast = _distilled(**{"feddistill+__gamma": 0.7})
    _, plain = built("fedavg")
    batch, model = _batch(setup), setup.task.model
    added = _loss(setup, distill, broadcast)[0] - _loss(setup, plain, broadcast.base)[0]
    params = server.base.params
    real = np.asarray(model.predict(params.predictor, model.extract(params.extractor, (), batch.x, True)[0]))
    target = np.asarray(server.own.logits)[batch.y]
    divergence = np.sum(softmax(target, 1) * (log_softmax(target, 1) - log_softmax(real, 1)), axis=1)
    known = np.asarray(server.own.known)[batch.y]
    assert added == pytest.approx(0.7 * np.mean(divergence * known), rel=1e-3)


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("reset", [True, False])
def test_tallies_are_reset_or_go_on(reset: bool, start: int) -> None:
    setup, distill, _, broadcast = _distilled(**{"feddistill+__reset": reset, "feddistill+__counts_start": start})
    batch, client = _batch(setup), distill.client_init(KEY)
    counts = np.bincount(batch.y, minlength=4)
    for number in (1, 2):
        local = local_of(setup.task, broadcast, client)
        params, memo = distill.local_start(local)
        memo = distill.local_loss(params, memo, batch, local, step_of(distill, batch, local, KEY)).memo
        upload, client = distill.local_finish(params, memo, local)
        rounds = 1 if reset else number
        np.testing.assert_array_equal(memo.own.samples, rounds * counts + start)
        np.testing.assert_array_equal(upload.own.seen, counts > 0)
        sums = np.asarray(memo.own.logits)
        np.testing.assert_allclose(upload.own.logits, sums / np.maximum(rounds * counts + start, 1)[:, None], rtol=1e-5)
    assert (client.own is None) == reset


def test_unseen_labels_as_zeros() -> None:
    setup, distill, server, broadcast = _distilled(**{"feddistill+__unseen_as_zeros": True})
    local = local_of(setup.task, broadcast, distill.client_init(KEY))
    upload, _ = distill.local_finish(*distill.local_start(local), local)
    logits = jnp.zeros((2, 4, 4)).at[0].set(6.0)  # user 0 saw everything, user 1 nothing
    both = stack([upload, upload])
    sent = With(both.base, both.own._replace(logits=logits, seen=jnp.array([[True] * 4, [False] * 4])))
    after, _ = distill.server_update(server, sent, _round())
    np.testing.assert_allclose(after.own.logits, 3.0)
