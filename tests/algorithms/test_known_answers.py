"""The algorithms where the answer is known beforehand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms.fedgen import Upload
from fedgen.algorithms.wrap import With
from fedgen.core.contract import Algorithm, Batch, Round
from fedgen.core.losses import infer
from fedgen.core.trees import stack
from fedgen.models.generator import generate
from fedgen.simulator.setup import Setup
from helpers import built, local_of, play, same_bits, small_setup, step_of, training_program

KEY = jax.random.key(3)


def _gradient(setup: Setup, algorithm: Algorithm, params: object, broadcast: object) -> object:
    batch, local = _batch(setup), local_of(setup.task, broadcast, algorithm.client_init(KEY))
    _, memo = algorithm.local_start(local)
    step = step_of(algorithm, batch, local, KEY)
    return jax.grad(lambda p: algorithm.local_loss(p, memo, batch, local, step).value)(params)


def _batch(setup: Setup) -> Batch:
    return Batch(setup.task.prepare(setup.data.x[:16]), setup.data.y[:16])


CNN = pytest.param("cnn", "all", marks=[pytest.mark.slow, pytest.mark.optimised])


@pytest.mark.parametrize(("model", "share"), [CNN, ("mlp", "predictor")])
@pytest.mark.parametrize(
    ("algorithm", "off"),
    [
        ("fedgen", {"fedgen__w": 0.0, "fedgen__beta": 0.0}),
        ("fedprox", {"fedprox__mu": 0.0}),
        pytest.param("feddistill+", {"feddistill+__gamma": 0.0}, marks=pytest.mark.slow),
        pytest.param("feddfusion", {"feddfusion__steps": 0}, marks=pytest.mark.slow),
    ],
)
def test_switched_off_it_is_fedavg_to_the_bit(algorithm: str, off: dict, model: str, share: str) -> None:
    common = {"model": model, "share": share}
    if model == "cnn":
        common["model__channels"] = [2, 3]
    setups = {name: small_setup(name, **common, **options) for name, options in ((algorithm, off), ("fedavg", {}))}
    other, plain = (play(setup, 3) for setup in setups.values())
    server = getattr(other.server, "base", other.server)
    clients = getattr(other.clients, "base", other.clients)
    if algorithm == "feddfusion" and share == "predictor":  # the server also averages what it is sent
        server = server._replace(params=server.params._replace(extractor=None), statistics=None)
    assert same_bits(server, plain.server)
    assert same_bits(clients, plain.clients)
    assert other.loss == plain.loss


@pytest.mark.parametrize("zero", ["fedgen.w", "fedprox.mu", "feddistill+.gamma"])
def test_a_zero_that_is_an_argument_changes_nothing_either(zero: str) -> None:
    """A term that is computed and weighted by 0 leaves every draw and every gradient as it was."""
    algorithm, key = zero.rsplit(".", 1)
    setup = small_setup(algorithm)
    inputs = setup.inputs(algorithm, [0])
    assert key in inputs.hyper
    inputs.hyper[key] = jnp.zeros_like(inputs.hyper[key])
    program = training_program(setup, algorithm, inputs)
    state = program.advance(inputs, program.init(inputs), 0, 3)
    server = jax.tree.map(lambda a: np.asarray(a)[0], getattr(state.server, "base", state.server))
    plain = play(small_setup("fedavg"), 3)
    for ours, theirs in zip(jax.tree.leaves(server), jax.tree.leaves(plain.server), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_generated_samples_move_the_predictor_and_never_the_extractor() -> None:
    setup, fedgen = built("fedgen")
    _, plain = built("fedavg")
    server = fedgen.server_init(KEY)
    broadcast = fedgen.broadcast(server, jnp.int32(1))
    with_term = _gradient(setup, fedgen, server.base.params, broadcast)
    without = _gradient(setup, plain, server.base.params, broadcast.base)
    assert same_bits(with_term.extractor, without.extractor)
    assert not same_bits(with_term.predictor, without.predictor)


def test_the_authors_matching_term_does_move_the_extractor() -> None:
    setup, fedgen = built("fedgen", fedgen__beta=1.0)
    _, plain = built("fedavg")
    server = fedgen.server_init(KEY)
    broadcast = fedgen.broadcast(server, jnp.int32(1))
    with_term = _gradient(setup, fedgen, server.base.params, broadcast)
    without = _gradient(setup, plain, server.base.params, broadcast.base)
    assert not same_bits(with_term.extractor, without.extractor)


def test_fedprox_adds_mu_times_the_distance_to_the_gradient() -> None:
    setup, prox = built("fedprox", fedprox__mu=0.7)
    _, plain = built("fedavg")
    broadcast = prox.broadcast(prox.server_init(KEY), jnp.int32(0))
    params = jax.tree.map(lambda a: a + 0.1 * jnp.arange(a.size).reshape(a.shape) / a.size, broadcast.params)
    difference = jax.tree.map(
        lambda a, b: a - b,
        _gradient(setup, prox, params, broadcast),
        _gradient(setup, plain, params, broadcast),
    )
    expected = jax.tree.map(lambda now, then: 0.7 * (now - then), params, broadcast.params)
    for a, b in zip(jax.tree.leaves(difference), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


@pytest.mark.parametrize("members", ["all", "active"])
def test_an_ensemble_of_identical_users_is_the_single_model(members: str) -> None:
    setup, ensemble = built("fedensemble", fedensemble__members=members)
    server = ensemble.server_init(KEY)
    params, statistics = setup.task.model.init(jax.random.key(9))
    _, plain = built("fedavg")
    upload, _ = plain.local_finish(params, statistics, local_of(setup.task))
    uploads = stack([upload] * 3)
    round = Round(jnp.int32(0), jnp.array([4, 0, 2]), KEY, lambda key, n: None)
    server, _ = ensemble.server_update(server, uploads, round)
    x = _batch(setup).x
    expected = infer(setup.task.model, params, statistics, x)
    np.testing.assert_allclose(ensemble.predict_global(server, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("members", ["all", "active"])
def test_an_ensemble_is_the_mean_of_the_logits_of_all_users_heard_of_or_of_the_last_cohort(members: str) -> None:
    setup, ensemble = built("fedensemble", fedensemble__members=members)
    _, plain = built("fedavg")
    models = [setup.task.model.init(jax.random.key(i)) for i in range(3)]
    uploads = [plain.local_finish(*m, local_of(setup.task))[0] for m in models]
    server = ensemble.server_init(KEY)
    for number, cohort in enumerate(([5, 1], [1, 3])):  # user 1 is replaced, user 5 stays
        sent = stack([uploads[0], uploads[1]] if number == 0 else [uploads[2], uploads[1]])
        round = Round(jnp.int32(number), jnp.array(cohort), KEY, lambda key, n: None)
        server, _ = ensemble.server_update(server, sent, round)
    x = _batch(setup).x
    last = [models[2], models[1]] + [models[0]] * (members == "all")  # of users 1 and 3; and 5
    expected = sum(infer(setup.task.model, *m, x) for m in last) / len(last)
    np.testing.assert_allclose(ensemble.predict_global(server, x), expected, rtol=1e-4, atol=1e-5)


def test_feddistill_averages_a_label_over_the_users_that_saw_it() -> None:
    setup, distill = built("feddistill+")
    server = distill.server_init(KEY)
    local = local_of(setup.task, distill.broadcast(server, jnp.int32(0)), distill.client_init(KEY), round=0)
    upload, _ = distill.local_finish(*distill.local_start(local), local)
    # user 0 saw labels 0 and 1, user 1 label 0 only; labels 2 and 3 nobody
    logits = jnp.zeros((2, 4, 4)).at[0, 0].set(2.0).at[1, 0].set(4.0).at[0, 1].set(6.0).at[1, 1].set(99.0)
    seen = jnp.array([[True, True, False, False], [True, False, False, False]])
    both = stack([upload, upload])
    sent = With(both.base, both.own._replace(logits=logits, seen=seen))
    round = Round(jnp.int32(0), jnp.array([0, 1]), KEY, lambda key, n: None)
    after, _ = distill.server_update(server, sent, round)
    np.testing.assert_allclose(after.own.logits[:, 0], [3.0, 6.0, 0.0, 0.0])
    np.testing.assert_array_equal(after.own.known, [1, 1, 0, 0])
    # what nobody sends later is remembered
    later, _ = distill.server_update(after, With(both.base, sent.own._replace(seen=jnp.zeros((2, 4), bool))), round)
    np.testing.assert_allclose(later.own.logits[:, 0], [3.0, 6.0, 0.0, 0.0])


def test_feddistills_tally_is_the_mean_logit_of_each_label() -> None:
    setup, distill = built("feddistill")
    server, client = distill.server_init(KEY), distill.client_init(KEY)
    local = local_of(setup.task, distill.broadcast(server, jnp.int32(0)), client, round=0)
    params, memo = distill.local_start(local)
    batch = _batch(setup)
    memo = distill.local_loss(params, memo, batch, local, step_of(distill, batch, local, KEY)).memo
    upload, _ = distill.local_finish(params, memo, local)
    z, _ = setup.task.model.extract(params.extractor, client.base.statistics, batch.x, True)
    logits = setup.task.model.predict(params.predictor, z)
    for label in range(4):
        here = np.asarray(batch.y) == label
        assert bool(upload.own.seen[label]) == here.any()
        if here.any():
            np.testing.assert_allclose(
                upload.own.logits[label], np.asarray(logits)[here].mean(axis=0), rtol=1e-4, atol=1e-5
            )
    assert not jax.tree.leaves(upload.base.params), "feddistill sends no parameters"


def test_feddfusion_pulls_the_average_towards_the_ensemble() -> None:
    setup, fusion = built("feddfusion", feddfusion__steps=60, feddfusion__distill_lr=0.01)
    server = fusion.server_init(KEY)
    models = [setup.task.model.init(jax.random.key(i)) for i in range(2)]
    uploads = stack([fusion.local_finish(*m, local_of(setup.task))[0] for m in models])
    x = setup.task.prepare(setup.data.x[:200])
    round = Round(jnp.int32(0), jnp.array([0, 1]), KEY, lambda key, n: x[:n])
    teacher = sum(infer(setup.task.model, *m, x) for m in models) / 2
    average, _ = built("fedavg")[1].server_update(server, uploads, round)
    distilled, metrics = fusion.server_update(server, uploads, round)

    def gap(model: object) -> float:
        p, q = jax.nn.log_softmax(teacher), jax.nn.log_softmax(infer(setup.task.model, *model, x))
        return float(jnp.mean(jnp.sum(jnp.exp(p) * (p - q), axis=1)))

    assert gap(distilled) < 0.5 * gap(average)
    assert float(metrics["distillation_loss"]) > 0


def test_the_generator_learns_what_the_users_predictors_recognise() -> None:
    setup, fedgen = built("fedgen", fedgen__generator_steps=300, fedgen__generator_lr=0.01, fedgen__generator_batch=64)
    server = fedgen.server_init(KEY)
    _, plain = built("fedavg")
    uploads = []
    for i in range(3):
        params, statistics = setup.task.model.init(jax.random.key(i))
        sent, _ = plain.local_finish(params, statistics, local_of(setup.task))
        uploads.append(sent)
    counts = jnp.array([[5, 5, 0, 0], [0, 5, 0, 5], [5, 0, 0, 5]])  # label 2: nobody
    round = Round(jnp.int32(0), jnp.array([0, 1, 2]), KEY, lambda key, n: None)
    after, metrics = fedgen.server_update(server, With(stack(uploads), Upload(counts)), round)
    np.testing.assert_allclose(after.own.prior, [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6)
    assert bool(jnp.isfinite(metrics["generator_loss"]))
    y = jnp.array([0, 1, 3] * 20)
    z, _ = generate(after.own.generator, jax.random.normal(KEY, (60, 4)), y, 4, False)
    lam = counts[:, y] / counts.sum(axis=0)[y]
    logits = jnp.stack([setup.task.model.predict(u.params.predictor, z) for u in uploads])
    mixed = jnp.einsum("ks,ksc->sc", lam, logits)
    assert float(jnp.mean(jnp.argmax(mixed, axis=1) == y)) > 0.9
