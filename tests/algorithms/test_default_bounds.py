"""The server's bound on what is no model: a seventh user sends fifty times what the others do, and moves little."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms import class_means, gaussians
from fedgen.algorithms.fedavg import Upload
from fedgen.algorithms.scaffold import Control
from fedgen.algorithms.wrap import With
from fedgen.core.contract import Array, Federation, Round, Tree
from fedgen.core.trees import squared_distance, stack
from helpers import built

USERS, SAMPLES, LATENT, FAR = 7, 40, 4, 50.0
DEFAULT, UNBOUNDED = Federation(), Federation(max_update=0.0)
KEY = jax.random.key(3)
HONEST = jax.random.normal(KEY, (USERS, SAMPLES, LATENT))
LABELS = jax.nn.one_hot(jnp.arange(SAMPLES) % 2, 2)


def _gaussian_means(users: list[Array], federation: Federation, claimed: float) -> Array:
    """The means of class moments and CCVR; the last user claims to have so many times its samples."""
    uploads = [gaussians.packed(gaussians.sums_of(z, LABELS)) for z in users]
    uploads[-1] = jax.tree.map(lambda a: claimed * a, uploads[-1])
    before = gaussians.packed(gaussians.no_sums(2, LATENT))
    return gaussians.gaussians_of(gaussians.remembered(before, stack(uploads), 0.5, federation)).mean


def _class_means(users: list[Array], federation: Federation, claimed: float, *, counted: bool = True) -> Array:
    """The means of FedDistill and FedProto."""
    uploads = [class_means.sums_of(z, LABELS) for z in users]
    uploads[-1] = jax.tree.map(lambda a: claimed * a, uploads[-1])
    uploads = uploads if counted else [class_means.each_once(sums) for sums in uploads]
    return class_means.pooled(stack(uploads), federation, counted=counted)[0]


def _uncounted(users: list[Array], federation: Federation, claimed: float) -> Array:
    return _class_means(users, federation, claimed, counted=False)


def _far(means: Array) -> float:
    """How far the means are from the honest ones, which are about 0."""
    return float(jnp.max(jnp.abs(means)))


@pytest.mark.parametrize("means", [_gaussian_means, _class_means, _uncounted])
def test_one_users_features_are_no_longer_than_the_others(means: Any) -> None:
    users = [*HONEST[:-1], HONEST[-1] + FAR]
    assert _far(means(users, UNBOUNDED, 1.0)) > 6.0
    assert _far(means(users, DEFAULT, 1.0)) < 1.0


@pytest.mark.parametrize("means", [_gaussian_means, _class_means])
def test_one_users_samples_count_no_more_than_the_others(means: Any) -> None:
    east, north = 3.0 * jnp.eye(LATENT)[:2]  # of one length, so that no feature is too long
    users = [*(HONEST[:-1] + east), HONEST[-1] + north]
    assert float(jnp.min(means(users, UNBOUNDED, 1000.0)[:, 1])) > 2.5
    assert float(jnp.max(means(users, DEFAULT, 1000.0)[:, 1])) < 1.2


def test_scaffolds_control_variates_are_bounded_as_models_are() -> None:
    def length(**settings: Any) -> float:
        """Of the server's control variates after a round, the users' being of length 1 and the last one's of 50."""
        _, algorithm = built("scaffold", users=USERS, active=USERS, **settings)
        server = algorithm.server_init(KEY)
        same = Upload(*stack([server.base] * USERS), None)
        sent = stack([_of_length(server.own.control, 1.0)] * (USERS - 1) + [_of_length(server.own.control, FAR)])
        round = Round(jnp.int32(0), jnp.arange(USERS), KEY, lambda key, samples: None)
        after, _ = algorithm.server_update(server, With(same, Control(sent)), round)
        return float(np.sqrt(squared_distance(after.own, server.own)))

    assert length(max_update=0.0) == pytest.approx((USERS - 1 + FAR) / USERS, rel=1e-5)
    assert length() == pytest.approx((USERS - 1 + 2.0) / USERS, rel=1e-5)
    assert length(max_update=0.0, clip=0.5) == pytest.approx(0.5, rel=1e-5)


def _of_length(like: Tree, length: float) -> Tree:
    """A tree of that form and length, all of its numbers alike."""
    numbers = sum(a.size for a in jax.tree.leaves(like))
    return jax.tree.map(lambda a: jnp.full_like(a, length / numbers**0.5), like)
