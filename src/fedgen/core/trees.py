"""Small operations on parameter trees: averaging, splitting at the predictor, measuring."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Params, Scalar, Share, Tree


class Parts(NamedTuple):
    """Which parts of a model a share setting means."""

    extractor: bool
    predictor: bool


_PARTS: dict[Share, Parts] = {
    "all": Parts(True, True),
    "predictor": Parts(False, True),
    "extractor": Parts(True, False),
    "nothing": Parts(False, False),
}


def shares_extractor(share: Share) -> bool:
    """Whether the extractor is shared, and its BatchNorm statistics with it."""
    return _PARTS[share].extractor


def split(params: Params, share: Share) -> tuple[Params, Params]:
    """Divide a model's parameters into what is shared and what users keep.

    Args:
        params: Both parts.
        share: Which of them are shared: `all`, `predictor`, `extractor` or `nothing`.

    Returns:
        `(shared, private)`: each part is in exactly one of the two, and None in the other.
    """
    wanted = _PARTS[share]
    shared = Params(*(part if take else None for part, take in zip(params, wanted, strict=True)))
    private = Params(*(None if take else part for part, take in zip(params, wanted, strict=True)))
    return shared, private


def join(shared: Params, private: Params) -> Params:
    """The inverse of `split`.

    Args:
        shared: Parameters with None for each part that is private.
        private: Those parts, and None for the others.

    Returns:
        Both parts.
    """
    return Params(*(b if a is None else a for a, b in zip(shared, private, strict=True)))


def mean(stacked: Tree, weights: Array | None = None) -> Tree:
    """The mean over the leading axis, by `weights` [client] where given."""
    if weights is None:
        return jax.tree.map(lambda a: jnp.mean(a, axis=0), stacked)
    share = weights / jnp.sum(weights)
    return jax.tree.map(lambda a: jnp.tensordot(share, a, axes=1), stacked)


def squared_distance(a: Tree, b: Tree) -> Array:
    """The sum over all leaves of (a - b)^2."""
    squares = jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum((x - y) ** 2), a, b))
    return jnp.sum(jnp.stack(squares)) if squares else jnp.zeros(())


def all_finite(tree: Tree) -> Array:
    """Whether no floating-point leaf holds a NaN or an infinity."""
    checks = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack(checks)) if checks else jnp.array(True)


def nbytes(tree: Tree) -> int:
    """How many bytes the arrays of a tree (or of its shapes) take on the wire."""
    return sum(int(a.size) * a.dtype.itemsize for a in jax.tree.leaves(tree))


def named(tree: Tree) -> dict[str, Any]:
    """The leaves of a tree by their path in it."""
    return {jax.tree_util.keystr(place): leaf for place, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def replaced(tree: Tree, by: Tree) -> Tree:
    """The tree with the leaves of `by` in place of its own that have the same names."""
    new = named(by)
    return jax.tree_util.tree_map_with_path(lambda place, a: new.get(jax.tree_util.keystr(place), a), tree)


def count(tree: Tree) -> int:
    """How many numbers a tree holds."""
    return sum(int(a.size) for a in jax.tree.leaves(tree))


def is_off(value: Scalar) -> bool:
    """Whether a hyper-parameter is the constant 0, which switches its term off before compiling.

    Other values are arguments of the compiled program and not known here.
    """
    return isinstance(value, int | float) and value == 0


def stack(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure, stacked along a new leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
