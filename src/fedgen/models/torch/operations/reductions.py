"""Operations along axes: sums, moments, maxima, softmax."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Scalar
from fedgen.models.torch.operations.arithmetic import absolute
from fedgen.models.torch.registry import operation

Axes = int | Sequence[int] | None


def _axes(dim: Axes) -> int | tuple[int, ...] | None:
    """An empty list stands for all axes in PyTorch."""
    return dim if dim is None or isinstance(dim, int) else (tuple(dim) or None)


@operation("aten.sum.default", "aten.sum.dim_IntList")
def total(x: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The sum."""
    return jnp.sum(x, _axes(dim), dtype=dtype, keepdims=keepdim)


@operation("aten.mean.default", "aten.mean.dim")
def mean(x: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The mean."""
    return jnp.mean(x, _axes(dim), dtype=dtype, keepdims=keepdim)


@operation("aten.prod.default", "aten.prod.dim_int")
def product(x: Array, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The product."""
    return jnp.prod(x, _axes(dim), dtype=dtype, keepdims=keepdim)


@operation("aten.var.correction")
def variance(x: Array, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False) -> Array:
    """The variance, by default of a sample (n - 1)."""
    return jnp.var(x, _axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def _root(square: Array) -> Array:
    """The square root with the derivative 0 at 0, which PyTorch's norms and deviations have there."""
    is_zero = square == 0
    return jnp.where(is_zero, 0, jnp.sqrt(jnp.where(is_zero, 1, square)))


@operation("aten.std.correction")
def deviation(x: Array, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False) -> Array:
    """The standard deviation, by default of a sample (n - 1)."""
    return _root(variance(x, dim, correction, keepdim))


@operation("aten.var_mean.correction")
def variance_and_mean(
    x: Array, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Both of them."""
    return variance(x, dim, correction, keepdim), mean(x, dim, keepdim)


@operation("aten.std_mean.correction")
def deviation_and_mean(
    x: Array, dim: Axes = None, correction: Scalar | None = None, keepdim: bool = False
) -> tuple[Array, Array]:
    """Both of them."""
    return deviation(x, dim, correction, keepdim), mean(x, dim, keepdim)


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, dim=None, keepdim=False: function(x, axis=_axes(dim), keepdims=keepdim)


operation("aten.amax.default")(_reduction(jnp.max))
operation("aten.amin.default")(_reduction(jnp.min))
operation("aten.argmax.default")(_reduction(jnp.argmax))
operation("aten.argmin.default")(_reduction(jnp.argmin))
operation("aten.any.default", "aten.any.dim", "aten.any.dims")(_reduction(jnp.any))
operation("aten.all.default", "aten.all.dim", "aten.all.dims")(_reduction(jnp.all))
operation("aten.max.default")(jnp.max)
operation("aten.min.default")(jnp.min)


def _chosen(x: Array, place: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """The values at these places; the derivative goes to that place alone, also where others are equal."""
    values = jnp.take_along_axis(x, place, axis=dim)
    return (values, place) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(place, dim))


@operation("aten.max.dim")
def largest(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The maximum and where it is."""
    return _chosen(x, jnp.argmax(x, axis=dim, keepdims=True), dim, keepdim)


@operation("aten.min.dim")
def smallest(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The minimum and where it is."""
    return _chosen(x, jnp.argmin(x, axis=dim, keepdims=True), dim, keepdim)


@operation("aten.median.dim")
def median(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    """The median, of an even count the lower one, and where it is."""
    middle = (x.shape[dim] - 1) // 2
    place = jax.lax.slice_in_dim(sort(x, dim)[1], middle, middle + 1, axis=dim % x.ndim)
    return _chosen(x, place, dim, keepdim)


@operation("aten.sort.default", "aten.sort.stable")
def sort(x: Array, dim: int = -1, descending: bool = False, stable: bool | None = None) -> tuple[Array, Array]:
    """The sorted values and where they were."""
    order = jnp.argsort(x, axis=dim, descending=descending)
    return jnp.take_along_axis(x, order, axis=dim), order


@operation("aten.topk.default")
def topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """The k largest (or smallest) values and where they are."""
    values, order = sort(x, dim, largest)
    return tuple(jax.lax.slice_in_dim(a, 0, k, axis=dim % x.ndim) for a in (values, order))  # type: ignore[return-value]


@operation("aten.cumsum.default")
def cumulated(x: Array, dim: int, dtype: Any = None) -> Array:
    """Running sums."""
    return jnp.cumsum(x, axis=dim, dtype=dtype)


@operation("aten.cumprod.default")
def multiplied(x: Array, dim: int, dtype: Any = None) -> Array:
    """Running products."""
    return jnp.cumprod(x, axis=dim, dtype=dtype)


@operation("aten.logcumsumexp.default")
def log_cumulated(x: Array, dim: int) -> Array:
    """log of running sums of exp."""
    return jax.lax.cumlogsumexp(x, dim % x.ndim)


@operation("aten.cummax.default")
def largest_so_far(x: Array, dim: int) -> tuple[Array, Array]:
    """Running maxima and where they are: of equal ones the last, which alone gets the derivative."""
    return _so_far(x, dim % x.ndim, jax.lax.cummax)


@operation("aten.cummin.default")
def smallest_so_far(x: Array, dim: int) -> tuple[Array, Array]:
    """Running minima and where they are."""
    return _so_far(x, dim % x.ndim, jax.lax.cummin)


def _so_far(x: Array, axis: int, running: Callable[[Array, int], Array]) -> tuple[Array, Array]:
    count = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis)
    reached = x == running(jax.lax.stop_gradient(x), axis)
    return _chosen(x, jax.lax.cummax(jnp.where(reached, count, 0), axis), axis, True)


@operation("aten.logsumexp.default")
def logsumexp(x: Array, dim: Axes, keepdim: bool = False) -> Array:
    """log of the sum of exp."""
    return jax.nn.logsumexp(x, axis=_axes(dim), keepdims=keepdim)


@operation("aten.linalg_vector_norm.default")
def norm(x: Array, order: Scalar = 2, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """The length of vectors; as in PyTorch, the derivative at 0 is 0."""
    axes = _axes(dim)
    if order == 2:
        return _root(jnp.sum(x * x, axes, keepdims=keepdim))
    if order in (0, 1) or order < 0 or math.isinf(order):
        return jnp.linalg.vector_norm(absolute(x), axis=axes, keepdims=keepdim, ord=order)
    is_zero = x == 0
    powers = jnp.where(is_zero, 0, jnp.abs(jnp.where(is_zero, 1, x)) ** order)
    total = jnp.sum(powers, axes, keepdims=keepdim)
    return jnp.where(total == 0, 0, jnp.where(total == 0, 1, total) ** (1 / order))


@operation("aten._cdist_forward.default", "aten._euclidean_dist.default")
def distances(x: Array, other: Array, order: Scalar = 2, how: int | None = None) -> Array:
    """How far each row of one array is from each of the other."""
    return norm(x[..., :, None, :] - other[..., None, :, :], order, -1)


@operation("aten._softmax.default", "aten.softmax.int")
def softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """exp(x) / sum exp(x), in float32 inside."""
    return jax.nn.softmax(x.astype(jnp.float32), axis=dim).astype(x.dtype)


@operation("aten._safe_softmax.default")
def safe_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """The same, and 0 where all of x is -inf."""
    is_empty = jnp.all(x == -jnp.inf, dim, keepdims=True)
    return jnp.where(is_empty, 0, softmax(jnp.where(is_empty, 0, x), dim))


@operation("aten._log_softmax.default", "aten.log_softmax.int")
def log_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """Its logarithm."""
    return jax.nn.log_softmax(x.astype(jnp.float32), axis=dim).astype(x.dtype)
