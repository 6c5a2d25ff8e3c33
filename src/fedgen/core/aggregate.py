"""How the server aggregates models: the mean, or a robust alternative that a few bad updates cannot move far.

Coordinate-wise median and trimmed mean: Yin et al. 2018, "Byzantine-Robust Distributed Learning". Bounding the
length of each update: Sun et al. 2019, "Can You Really Backdoor Federated Learning?".
"""

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Federation, Scalar, Tree
from fedgen.core.trees import is_off, mean
from fedgen.errors import FedgenError


def check_aggregation(federation: Federation) -> None:
    """Refuse settings that contradict each other."""
    if federation.aggregation != "mean" and federation.weighting != "uniform":
        raise FedgenError(
            f"aggregation '{federation.aggregation}' counts each user once; leave out weighting by samples"
        )
    if not 0 <= federation.trim < 0.5:
        raise FedgenError(f"trim is {federation.trim}; it is a share of each side, from 0 to less than 0.5")


def combine(stacked: Tree, weights: Array | None, federation: Federation) -> Tree:
    """Aggregate the trees along the leading axis to one."""
    if federation.aggregation == "median":
        return jax.tree.map(lambda a: jnp.median(a, axis=0), stacked)
    if federation.aggregation == "trimmed":
        return jax.tree.map(lambda a: _trimmed_mean(a, federation.trim), stacked)
    return mean(stacked, weights)


def combine_given(values: Array, given: Array, federation: Federation) -> Array:
    """Aggregate each row over the users that have a value for it: values [user, row, ...], given [user, row].

    A row without any value becomes 0.
    """
    users = jnp.sum(given, axis=0)  # [row]
    if federation.aggregation == "mean":
        total = jnp.einsum("kl,klc->lc", given.astype(values.dtype), values)
        return total / jnp.maximum(users, 1)[:, None]
    # The median is what is left when all but the middle one or two are trimmed.
    most = range(values.shape[0] + 1)
    median = federation.aggregation == "median"
    cut = jnp.array([max(n - 1, 0) // 2 if median else _trimmed(n, federation.trim) for n in most])[users]
    ordered = jnp.sort(jnp.where(given[..., None], values, jnp.inf), axis=0)
    place = jnp.arange(values.shape[0])[:, None]
    kept = (place >= cut) & (place < users - cut)  # [user, row]
    total = jnp.sum(jnp.where(kept[..., None], ordered, 0.0), axis=0)
    return total / jnp.maximum(jnp.sum(kept, axis=0), 1)[:, None]


def bounded(stacked: Tree, start: Tree, longest: Scalar) -> Tree:
    """Norm clipping: each tree's distance from `start` is scaled down to `longest` where it is larger."""
    if is_off(longest) or not jax.tree.leaves(stacked):
        return stacked
    update = jax.tree.map(lambda a, b: a - b, stacked, start)
    squares = [jnp.sum(a.reshape(a.shape[0], -1) ** 2, axis=1) for a in jax.tree.leaves(update)]
    length = jnp.sqrt(jnp.sum(jnp.stack(squares), axis=0))  # [user]
    # An update that is not finite becomes none at all: 0 * NaN would still be NaN.
    sound = jnp.isfinite(length)
    factor = jnp.minimum(1.0, longest / jnp.maximum(length, 1e-12))

    def shortened(a: Array, b: Array) -> Array:
        along = (-1,) + (1,) * (a.ndim - 1)
        return b + jnp.where(sound.reshape(along), factor.reshape(along) * a, 0.0)

    return jax.tree.map(shortened, update, start)


def _trimmed_mean(a: Array, trim: float) -> Array:
    """The mean of each coordinate without its largest and smallest values, `trim` of them on each side."""
    cut = _trimmed(a.shape[0], trim)
    return jnp.mean(jnp.sort(a, axis=0)[cut : a.shape[0] - cut], axis=0)


def _trimmed(users: int, trim: float) -> int:
    """How many values go on each side: at least one where that leaves any, or few users would not be protected."""
    return max(int(trim * users), 1 if trim > 0 and users >= 3 else 0)
