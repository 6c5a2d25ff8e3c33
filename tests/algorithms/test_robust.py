"""Two of ten users send minus twenty times the model they should: what uses models one by one must bear it too."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms.wrap import With
from fedgen.core.contract import Algorithm, Round, Tree
from fedgen.core.losses import infer
from fedgen.models.generator import draw_noise, generate
from fedgen.simulator.setup import Setup
from helpers import built, local_of

KEY = jax.random.key(5)
USERS, BAD = 10, 2
ROBUST = [{"aggregation": "median"}, {"aggregation": "trimmed", "trim": 0.2}]


def _built(name: str, **settings: Any) -> tuple[Setup, Algorithm]:
    return built(name, users=USERS, active=USERS, **settings)


def _poisoned(params: Tree) -> Tree:
    """Ten users' models, alike but for a little noise; the first two are the model negated."""

    def of(number: int, a: jax.Array) -> jax.Array:
        noise = 0.01 * jax.random.normal(jax.random.fold_in(KEY, number), (USERS, *a.shape))
        return (a + noise).at[:BAD].set(-20 * a)

    leaves, form = jax.tree.flatten(params)
    return jax.tree.unflatten(form, [of(number, a) for number, a in enumerate(leaves)])


def _updated(algorithm: Algorithm, setup: Setup, server: Any) -> Any:
    """The server after a round with the poison."""

    def proxy(key: jax.Array, samples: int) -> jax.Array:
        return setup.task.prepare(setup.data.x[jax.random.randint(key, (samples,), 0, len(setup.data.x))])

    round = Round(jnp.int32(0), jnp.arange(USERS), KEY, proxy)
    return jax.jit(lambda s, u: algorithm.server_update(s, u, round)[0])(server, _uploads(algorithm, setup, server))


def _uploads(algorithm: Algorithm, setup: Setup, server: Any) -> Any:
    """What ten users that have just started would send, with the poison put in."""
    received = algorithm.broadcast(server, jnp.int32(0))
    local = local_of(setup.task, received, algorithm.client_init(KEY), round=0, samples=30)
    params, memo = algorithm.local_start(local)
    sent, _ = algorithm.local_finish(params, memo, local)
    stacked = jax.tree.map(lambda a: jnp.broadcast_to(a, (USERS, *jnp.shape(a))), sent)
    if not isinstance(stacked, With):
        return stacked._replace(params=_poisoned(params))
    counts = jnp.full_like(stacked.own.counts, 6)
    return With(stacked.base._replace(params=_poisoned(params)), stacked.own._replace(counts=counts))


def _generated_right(name: dict[str, Any], teacher: str) -> float:
    """How often an honest predictor recognises what the generator made for a label."""
    steps = {"fedgen__generator_steps": 200, "fedgen__generator_lr": 0.01, "fedgen__eta": 0.0, "fedgen__hidden": 32}
    setup, algorithm = _built("fedgen", **steps, fedgen__teacher=teacher, **name)
    server = algorithm.server_init(KEY)
    after = _updated(algorithm, setup, server)
    labels = jnp.arange(200) % setup.task.classes
    eps = draw_noise(KEY, (200, 4), "normal")
    z, _ = generate(after.own.generator, eps, labels, setup.task.classes, False)
    honest = setup.task.model.predict(server.base.params.predictor, z)
    return float(jnp.mean(jnp.argmax(honest, axis=1) == labels))


@pytest.mark.slow
def test_fedgens_generator_learns_from_the_many() -> None:
    median, trimmed = ROBUST
    assert _generated_right({"max_update": 0.0}, "logits") < 0.5, "with the mean it learns the opposite"
    assert _generated_right(median, "logits") > 0.9
    assert _generated_right(trimmed, "losses") > 0.9


@pytest.mark.slow
def test_feddfusions_teachers_are_the_many() -> None:
    def distance(**robust: Any) -> float:
        """How far the distilled model's answers are from an honest one's: 0 to 1, in total variation."""
        setup, algorithm = _built("feddfusion", feddfusion__steps=20, feddfusion__distill_lr=0.01, **robust)
        server = algorithm.server_init(KEY)
        after = _updated(algorithm, setup, server)
        x = setup.task.prepare(setup.data.x[:100])
        honest, found = (infer(setup.task.model, s.params, s.statistics, x) for s in (server, after))
        return float(jnp.mean(jnp.sum(jnp.abs(jax.nn.softmax(found) - jax.nn.softmax(honest)), axis=1)) / 2)

    assert distance(max_update=0.0) > 0.3
    assert distance(**ROBUST[1]) < 0.1


def test_fedensemble_predicts_with_the_many() -> None:
    def agreement(**robust: Any) -> float:
        setup, algorithm = _built("fedensemble", **robust)
        server = algorithm.server_init(KEY)
        after = _updated(algorithm, setup, server)
        x = setup.task.prepare(setup.data.x[:100])
        assert algorithm.predict_global is not None
        honest = infer(setup.task.model, server.base.params, server.base.statistics, x)
        found = algorithm.predict_global(after, x)
        assert np.isfinite(found).all()
        return float(jnp.mean(jnp.argmax(found, axis=1) == jnp.argmax(honest, axis=1)))

    assert agreement(max_update=0.0) < 0.6
    assert agreement() > 0.9, "by default their updates are shortened"
    for robust in ROBUST:
        assert agreement(**robust) > 0.9


def test_users_that_were_never_heard_of_are_no_members_of_the_ensemble() -> None:
    setup, algorithm = _built("fedensemble", aggregation="median")
    server = algorithm.server_init(KEY)
    after = _updated(algorithm, setup, server)
    three = With(after.base, after.own._replace(member=jnp.zeros(USERS).at[jnp.array([4, 5, 6])].set(1.0)))
    x = setup.task.prepare(setup.data.x[:20])
    each = jax.vmap(lambda params, statistics: infer(setup.task.model, params, statistics, x))(
        three.own.params, three.own.statistics
    )
    assert algorithm.predict_global is not None
    np.testing.assert_allclose(algorithm.predict_global(three, x), np.median(each[4:7], axis=0), atol=1e-6)
