"""How the server aggregates models: the mean, or a robust alternative that a few bad updates cannot move far.

Coordinate-wise median and trimmed mean: Yin et al. 2018, "Byzantine-Robust Distributed Learning". Multi-Krum: Blanchard
et al. 2017, "Machine Learning with Adversaries". Centred clipping: Karimireddy et al. 2021, "Learning from History for
Byzantine Robust Optimization". Bounding the length of each update: Sun et al. 2019, "Can You Really Backdoor Federated
Learning?". Bounding how far an update goes against the others is our own.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.core.contract import Array, Federation, Scalar, Tree
from fedgen.core.trees import is_off, mean
from fedgen.errors import FedgenError

_FARTHEST = 1e33  # a squared distance; those to a hundred thousand users can still be added up
_FEW = 5  # updates, fewer than which say too little of each other


def check_aggregation(federation: Federation) -> None:
    """Refuse settings that contradict each other."""
    if federation.aggregation != "mean" and federation.weighting != "uniform":
        raise FedgenError(f"aggregation '{federation.aggregation}' counts each user once; set weighting to uniform")
    if not 0 <= federation.trim < 0.5:
        raise FedgenError(f"trim is {federation.trim}; it is a share of each side, from 0 to less than 0.5")
    if is_off(federation.max_update) or federation.max_update >= 1:
        return
    raise FedgenError(
        f"max_update is {federation.max_update}; it is a multiple of the median length of updates, at least 1, or 0 for"
        " no limit"
    )


def combine(stacked: Tree, weights: Array | None, federation: Federation) -> Tree:
    """Aggregate the users' trees to one, as the setting `aggregation` says.

    Args:
        stacked: A tree of arrays [user, ...].
        weights: [user] of the mean; None: all count the same.
        federation: The settings.

    Returns:
        A tree of arrays [...].
    """
    if federation.aggregation == "median":
        return jax.tree.map(lambda a: jnp.median(a, axis=0), stacked)
    if federation.aggregation == "trimmed":
        return jax.tree.map(lambda a: _trimmed_mean(a, federation.trim), stacked)
    if federation.aggregation == "mean":
        return mean(stacked, weights)
    return _as_one_vector(stacked, lambda vectors: _combine_vectors(vectors, federation))


def combine_given(values: Array, given: Array, federation: Federation) -> Array:
    """Aggregate each row over the users that have a value for it: values [user, row, ...], given [user, row].

    A row without any value becomes 0.
    """
    users = jnp.sum(given, axis=0)  # [row]
    if federation.aggregation == "mean":
        total = jnp.einsum("kl,klc->lc", given.astype(values.dtype), values)
        return total / jnp.maximum(users, 1)[:, None]
    if federation.aggregation == "multi-krum":
        return _multi_krum(values, given, federation.trim)
    if federation.aggregation == "centred-clip":
        return _centred_clip(values, given, federation.centre_radius, federation.centre_steps)
    trim = None if federation.aggregation == "median" else federation.trim
    return _without_extremes(values, given, trim)


def clipped(stacked: Tree, start: Tree, longest: Scalar) -> Tree:
    """Norm clipping: each tree's distance from `start` is scaled down to `longest` where it is larger.

    Args:
        stacked: A tree of arrays [user, ...].
        start: What they began from, a tree of arrays [...].
        longest: The norm; 0: no limit.

    Returns:
        As `stacked`.
    """
    if is_off(longest) or not jax.tree.leaves(stacked):
        return stacked
    length = _lengths(stacked, start)
    return _shortened(stacked, start, length, jnp.where(length > longest, longest / jnp.maximum(length, 1e-12), 1.0))


def bounded(stacked: Tree, start: Tree, federation: Federation) -> Tree:
    """Scale down each tree's distance from `start` where it is more than `max_update` times the users' median.

    What is not longer stays the same to the bit. Where no length is finite there is nothing to compare with: the run
    has diverged, and nothing hides it.

    Args:
        stacked: A tree of arrays [user, ...].
        start: What they began from, a tree of arrays [...].
        federation: The settings; `max_update` of 0 is no limit.

    Returns:
        As `stacked`.
    """
    if is_off(federation.max_update) or not jax.tree.leaves(stacked):
        return stacked
    length = _lengths(stacked, start)
    comparable = jnp.where(jnp.any(jnp.isfinite(length)), length, 0.0)
    return _shortened(stacked, start, comparable, fair(comparable, federation))


def fair(sizes: Array, federation: Federation, counted: Array | None = None) -> Array:
    """The factors that scale sizes down to `max_update` times their median, over those `counted`; 1 where not larger.

    With one or two sizes it is always 1: of two, nobody knows which is the wrong one.
    """
    if is_off(federation.max_update):
        return jnp.ones_like(sizes)
    known = jnp.isfinite(sizes) if counted is None else jnp.isfinite(sizes) & counted
    ordered = jnp.sort(jnp.where(known, sizes, jnp.inf).ravel())
    number = jnp.sum(known)
    median = (ordered[jnp.maximum(number - 1, 0) // 2] + ordered[number // 2]) / 2
    most = federation.max_update * median
    return jnp.where((sizes > most) & (number > 2), most / jnp.maximum(sizes, 1e-12), 1.0)


def not_against(stacked: Tree, start: Tree, federation: Federation) -> Tree:
    """Scale down each tree's distance from `start` where it goes too far against the mean of the others.

    How far is measured along that mean. It is too far where it is more than `max_against` times as far as any of the
    others goes, along or against the mean of the rest without the one that is judged. What does not go too far stays
    the same to the bit. Of fewer than five updates too little is known, and nothing is done.

    Args:
        stacked: A tree of arrays [user, ...], of bounded length.
        start: What they began from, a tree of arrays [...].
        federation: The settings; `max_against` of 0 is no limit, and neither is there one without `max_update`, or for
            robust aggregation, which looks at the updates in its own way.

    Returns:
        As `stacked`.
    """
    leaves, off = jax.tree.leaves(stacked), is_off(federation.max_update) or is_off(federation.max_against)
    if off or federation.aggregation != "mean" or not leaves or leaves[0].shape[0] < _FEW:
        return stacked
    products = _products(jax.tree.map(lambda a, b: a - b, stacked, start))
    factor = _not_against(products, federation.max_against)
    return _shortened(stacked, start, jnp.zeros_like(factor), factor)


def bounds_users(federation: Federation) -> bool:
    """Whether the server looks at each upload, for its bounds or its way to aggregate."""
    bounds = (federation.clip, federation.max_update)
    return federation.aggregation != "mean" or not all(is_off(bound) for bound in bounds)


def _not_against(products: Array, most: Scalar) -> Array:
    """The factors of `not_against` [user], from the products [user, user] of the updates with each other."""
    square, of_sum = jnp.diagonal(products), jnp.sum(products, axis=1)  # |u_i|², and the product of u_i with the sum
    # Squared lengths of the sum without i, and without i and j. They are differences, which have rounding errors.
    least = 1e-6 * jnp.sum(square)
    without = jnp.sum(of_sum) - 2 * of_sum + square
    of_rest = of_sum - products  # [i, j]: the product of u_j with the sum without i
    without_both = without[:, None] - 2 * of_rest + square
    along = (of_sum - square) / jnp.sqrt(jnp.maximum(without, least))
    others = jnp.abs(of_rest - square) / jnp.sqrt(jnp.maximum(without_both, least))
    farthest = most * jnp.max(jnp.where(jnp.eye(square.size, dtype=bool), 0.0, others), axis=1)
    return jnp.where(along < -farthest, farthest / jnp.maximum(-along, 1e-30), 1.0)


def _products(stacked: Tree) -> Array:
    """The inner products of the users' trees, [user, user]."""
    rows = [a.reshape(a.shape[0], -1) for a in jax.tree.leaves(stacked)]
    return jnp.sum(jnp.stack([jnp.matmul(a, a.T, precision="highest") for a in rows]), axis=0)


def _lengths(stacked: Tree, start: Tree) -> Array:
    """The distance of each tree from `start`, [user]."""
    update = jax.tree.map(lambda a, b: a - b, stacked, start)
    squares = [jnp.sum(a.reshape(a.shape[0], -1) ** 2, axis=1) for a in jax.tree.leaves(update)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares), axis=0))


def _shortened(stacked: Tree, start: Tree, length: Array, factor: Array) -> Tree:
    """Updates times these factors; one whose length is not finite becomes none at all: 0 * NaN would still be NaN."""
    sound = jnp.isfinite(length)

    def shortened(a: Array, b: Array) -> Array:
        along = (-1,) + (1,) * (a.ndim - 1)
        less = b + jnp.where(sound.reshape(along), factor.reshape(along) * (a - b), 0.0)
        return jnp.where((sound & (factor == 1)).reshape(along), a, less)

    return jax.tree.map(shortened, stacked, start)


def _trimmed_mean(a: Array, trim: float) -> Array:
    """The mean of each coordinate without its largest and smallest values, `trim` of them on each side."""
    cut = _trimmed(a.shape[0], trim)
    return jnp.mean(jnp.sort(a, axis=0)[cut : a.shape[0] - cut], axis=0)


def _without_extremes(values: Array, given: Array, trim: float | None) -> Array:
    """The trimmed mean of each row over the users that have it; with trim None the median."""
    users = jnp.sum(given, axis=0)  # [row]
    # The median is what is left when all but the middle one or two are trimmed.
    most = range(values.shape[0] + 1)
    cut = jnp.array([max(n - 1, 0) // 2 if trim is None else _trimmed(n, trim) for n in most])[users]
    ordered = jnp.sort(jnp.where(given[..., None], values, jnp.inf), axis=0)
    place = jnp.arange(values.shape[0])[:, None]
    kept = (place >= cut) & (place < users - cut)  # [user, row]
    total = jnp.sum(jnp.where(kept[..., None], ordered, 0.0), axis=0)
    return total / jnp.maximum(jnp.sum(kept, axis=0), 1)[:, None]


def _multi_krum(values: Array, given: Array, trim: float) -> Array:
    """The mean of the n - f vectors of each row that have the nearest neighbours, of n users with f of them bad.

    A vector is judged by the sum of its squared distances from the n - f - 2 vectors that are nearest to it.
    """
    users = jnp.sum(given, axis=0)  # [row]
    bad = jnp.array([_trimmed(n, trim) for n in range(values.shape[0] + 1)])[users]
    # Distances are those from a point amid the users, so that small ones are not lost in the products of large ones.
    centre = _without_extremes(values, given, None)
    apart = jax.lax.stop_gradient(jnp.where(given[..., None], values - centre, 0.0))
    products = jnp.einsum("arc,brc->rab", apart, apart)
    squares = jnp.diagonal(products, axis1=1, axis2=2)  # [row, user]
    distance = jnp.maximum(squares[:, :, None] + squares[:, None, :] - 2 * products, 0.0)
    # Where numbers are so large that they have no squares (1e19 will do), it is as far as can be.
    distance = jnp.where(distance < _FARTHEST, distance, _FARTHEST)
    other = given.T[:, :, None] & given.T[:, None, :] & ~jnp.eye(values.shape[0], dtype=bool)
    nearest = jnp.sort(jnp.where(other, distance, jnp.inf), axis=2)
    place = jnp.arange(values.shape[0])
    near = jnp.maximum(users - bad - 2, 1)[:, None, None]
    score = jnp.sum(jnp.where((place < near) & jnp.isfinite(nearest), nearest, 0.0), axis=2)  # [row, user]
    rank = jnp.argsort(jnp.argsort(jnp.where(given.T, score, jnp.inf), axis=1), axis=1)
    chosen = (rank < (users - bad)[:, None]).T & given  # [user, row]
    total = jnp.sum(jnp.where(chosen[..., None], values, 0.0), axis=0)
    return total / jnp.maximum(jnp.sum(chosen, axis=0), 1)[:, None]


def _centred_clip(values: Array, given: Array, radius: Scalar, steps: int) -> Array:
    """The vector v of each row with v = v + mean of the (x_k - v) min(1, t / |x_k - v|), after some iterations.

    It begins at the coordinate-wise median. The radius t is `radius` times the median of the distances |x_k - v|.
    """
    users = jnp.maximum(jnp.sum(given, axis=0), 1)[:, None]
    centre = _without_extremes(values, given, None)
    for _ in range(steps):
        apart = jnp.where(given[..., None], values - centre, 0.0)
        length = jnp.sqrt(jnp.sum(jax.lax.stop_gradient(apart) ** 2, axis=-1))  # [user, row]
        reach = radius * _without_extremes(length[..., None], given, None)[:, 0]
        factor = jnp.minimum(1.0, reach / jnp.maximum(length, 1e-12))
        centre = centre + jnp.sum(factor[..., None] * apart, axis=0) / users
    return centre


def _combine_vectors(vectors: Array, federation: Federation) -> Array:
    """`combine_given` of one row that all users have, [user, number] -> [number]."""
    return combine_given(vectors[:, None], jnp.ones((vectors.shape[0], 1), bool), federation)[0]


def _as_one_vector(stacked: Tree, f: Callable[[Array], Array]) -> Tree:
    """A function of vectors [user, number] -> [number], of trees."""
    leaves, form = jax.tree.flatten(stacked)
    if not leaves:
        return stacked
    vector = f(jnp.concatenate([a.reshape(a.shape[0], -1).astype(jnp.float32) for a in leaves], axis=1))
    ends = np.cumsum([a[0].size for a in leaves])[:-1]
    parts = zip(jnp.split(vector, ends), leaves, strict=True)
    return jax.tree.unflatten(form, [part.reshape(a.shape[1:]) for part, a in parts])


def _trimmed(users: int, trim: float) -> int:
    """How many values go on each side: at least one where that leaves any, or few users would not be protected."""
    return max(int(trim * users), 1 if trim > 0 and users >= 3 else 0)
