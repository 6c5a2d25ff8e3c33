"""Operations that make arrays, or give their numbers another place."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.core.contract import Array, Scalar
from fedgen.errors import FedgenError
from fedgen.models.torch.registry import operation


@operation("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten._reshape_copy.default")
def reshape(x: Array, shape: Sequence[int]) -> Array:
    """The same numbers in another shape."""
    return jnp.reshape(x, tuple(shape))


@operation("aten.clone.default", "aten.alias.default", "aten.contiguous.default", "aten.lift_fresh_copy.default")
def same(x: Array) -> Array:
    """The array itself: arrays do not change in JAX."""
    return x


@operation("aten.detach.default", "aten.detach_copy.default")
def detach(x: Array) -> Array:
    """The array as a constant."""
    return jax.lax.stop_gradient(x)


@operation("aten._to_copy.default")
def cast(x: Array, dtype: Any = None) -> Array:
    """The array in another type."""
    return x if dtype is None else x.astype(dtype)


@operation("aten.copy.default")
def copied(x: Array, source: Array) -> Array:
    """The other array, in the form of this one."""
    return jnp.broadcast_to(source, x.shape).astype(x.dtype)


@operation("aten.permute.default")
def permute(x: Array, dims: Sequence[int]) -> Array:
    """The axes in another order."""
    return jnp.transpose(x, tuple(d % x.ndim for d in dims))


@operation("aten.transpose.int")
def transpose(x: Array, one: int, other: int) -> Array:
    """Two axes exchanged."""
    return jnp.swapaxes(x, one, other) if x.ndim else x


@operation("aten.t.default")
def matrix_transpose(x: Array) -> Array:
    """A matrix transposed."""
    return x.T


@operation("aten.unsqueeze.default")
def unsqueeze(x: Array, dim: int) -> Array:
    """One more axis."""
    return jnp.expand_dims(x, dim)


@operation("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def squeeze(x: Array, dim: int | Sequence[int] | None = None) -> Array:
    """Without axes of length 1; others stay."""
    among = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple({d % x.ndim for d in among if x.shape[d] == 1}))


@operation("aten.expand.default")
def expand(x: Array, shape: Sequence[int]) -> Array:
    """Repeated along axes of length 1; -1 leaves an axis as it is."""
    known = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(have if want == -1 else want for have, want in zip(known, shape, strict=True)))


@operation("aten.repeat.default")
def repeat(x: Array, times: Sequence[int]) -> Array:
    """The whole repeated along each axis."""
    return jnp.tile(x, tuple(times))


@operation("aten.cat.default")
def concatenate(arrays: Sequence[Array], dim: int = 0) -> Array:
    """One after the other along an axis."""
    return jnp.concatenate(arrays, axis=dim)


@operation("aten.stack.default")
def stack(arrays: Sequence[Array], dim: int = 0) -> Array:
    """Side by side along a new axis."""
    return jnp.stack(arrays, axis=dim)


@operation("aten.split.Tensor")
def split(x: Array, size: int, dim: int = 0) -> list[Array]:
    """Pieces of this size, the last perhaps smaller."""
    return jnp.split(x, list(range(size, x.shape[dim], size)), axis=dim)


@operation("aten.split_with_sizes.default")
def split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    """Pieces of these sizes."""
    return jnp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=dim)


@operation("aten.chunk.default")
def chunk(x: Array, count: int, dim: int = 0) -> list[Array]:
    """At most so many pieces, all but the last of equal size."""
    return split(x, max(1, -(-x.shape[dim] // count)), dim)


@operation("aten.unbind.int")
def unbind(x: Array, dim: int = 0) -> list[Array]:
    """The slices along an axis, without it."""
    return [jax.lax.index_in_dim(x, i, dim, keepdims=False) for i in range(x.shape[dim])]


@operation("aten.select.int")
def select(x: Array, dim: int, index: int) -> Array:
    """One slice along an axis, without it."""
    return jax.lax.index_in_dim(x, index, dim, keepdims=False)


_TO_THE_END = 2**63 - 1  # as PyTorch says it


def _range(length: int, start: int | None, end: int | None) -> tuple[int, int]:
    """Where a slice begins and ends; ends beyond the array are at its end."""
    if not start and (end is None or end == _TO_THE_END):  # also of an axis whose length is a symbol of jax.export
        return 0, length
    first, last, _ = slice(start, end).indices(length)
    return first, max(first, last)


@operation("aten.slice.Tensor")
def cut(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    """A part of an axis."""
    return jax.lax.slice_in_dim(x, *_range(x.shape[dim], start, end), stride=step, axis=dim)


@operation("aten.slice_scatter.default")
def put_slice(
    x: Array, source: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """The array with a part of an axis replaced."""
    first, last = _range(x.shape[dim], start, end)
    place = (*(slice(None),) * (dim % x.ndim), slice(first, last, step))
    return x.at[place].set(source)


@operation("aten.select_scatter.default")
def put_selected(x: Array, source: Array, dim: int, index: int) -> Array:
    """The array with one slice replaced."""
    return x.at[(*(slice(None),) * (dim % x.ndim), index)].set(source)


@operation("aten.index.Tensor", "aten._unsafe_index.Tensor")
def index(x: Array, places: Sequence[Array | None]) -> Array:
    """The array at these places; None is a whole axis."""
    if any(isinstance(place, jax.core.Tracer) and place.dtype == jnp.bool_ for place in places):
        raise FedgenError(
            "a module cannot take out as many numbers as a mask says, as h[h > 0] does; use torch.where, or the numbers"
            " of places where the mask is always the same"
        )
    return x[tuple(slice(None) if place is None else place for place in places)]


@operation("aten.index_put.default")
def put(x: Array, places: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    """The array with the values at these places, or where a mask says so."""
    if any(place is not None and place.dtype == jnp.bool_ for place in places):
        mask, values = _masked(x, places, values)
        return jnp.where(mask, x + values if accumulate else values, x).astype(x.dtype)
    there = x.at[tuple(slice(None) if place is None else place for place in places)]
    return there.add(values) if accumulate else there.set(values)


def _masked(x: Array, places: Sequence[Array | None], values: Array) -> tuple[Array, Array]:
    """A mask of some axes and its values, both so that they broadcast to the array."""
    (axis, mask), *more = ((axis, place) for axis, place in enumerate(places) if place is not None)
    after = x.ndim - axis - mask.ndim
    if more or (values.ndim > after and values.shape[-after - 1] != 1):
        raise FedgenError(
            "where a mask says so, a module can put the same everywhere, as in h[mask] = 0; use torch.where for values"
            " that differ, or numbers of places where the mask is always the same"
        )
    if values.ndim > after:  # one axis stands for all of the mask's
        place = values.ndim - after - 1
        values = values.reshape(*values.shape[:place], *(1,) * mask.ndim, *values.shape[place + 1 :])
    return mask.reshape(*mask.shape, *(1,) * after), values


def from_start(places: Array, length: int) -> Array:
    """Places counted from the start alone: a negative one, which PyTorch refuses here, is beyond the end.

    What is beyond the end is NaN, which `check_numbers` looks for.
    """
    return jnp.where(places < 0, length, places)


@operation("aten.index_select.default")
def index_select(x: Array, dim: int, places: Array) -> Array:
    """Slices along an axis, in this order."""
    return jnp.take(x, from_start(places, x.shape[dim]), axis=dim)


@operation("aten.gather.default")
def gather(x: Array, dim: int, places: Array, sparse_grad: bool = False) -> Array:
    """For each place its number along an axis."""
    whole = x[tuple(slice(None) if axis == dim % x.ndim else slice(n) for axis, n in enumerate(places.shape))]
    return jnp.take_along_axis(whole, from_start(places, x.shape[dim]), axis=dim)


@operation("aten.scatter_add.default")
def scatter_add(x: Array, dim: int, places: Array, source: Array) -> Array:
    """The array with numbers added, each at its place along an axis."""
    return x.at[_grid(x, dim, places)].add(source[tuple(map(slice, places.shape))])


@operation("aten.scatter.src", "aten.scatter.reduce")
def scatter(x: Array, dim: int, places: Array, source: Array, *, reduce: str | None = None) -> Array:
    """The array with numbers put, added or multiplied, each at its place along an axis."""
    there = x.at[_grid(x, dim, places)]
    values = source[tuple(map(slice, places.shape))]
    return there.set(values) if reduce is None else there.add(values) if reduce == "add" else there.multiply(values)


@operation("aten.scatter.value", "aten.scatter.value_reduce")
def scatter_value(x: Array, dim: int, places: Array, value: Scalar, *, reduce: str | None = None) -> Array:
    """The same with one number for all places."""
    return scatter(x, dim, places, jnp.full(places.shape, value, x.dtype), reduce=reduce)


def _grid(x: Array, dim: int, places: Array) -> tuple[Array, ...]:
    """The index of each place, whose number along one axis is given."""
    grid = [jax.lax.broadcasted_iota(places.dtype, places.shape, axis) for axis in range(x.ndim)]
    grid[dim] = places
    return tuple(grid)


@operation("aten.unfold.default")
def windows(x: Array, dim: int, size: int, step: int) -> Array:
    """Windows of an axis, one beginning every `step` places; what a window holds is the last axis."""
    axis = dim % x.ndim
    starts = np.arange(0, x.shape[axis] - size + 1, step)
    return jnp.moveaxis(jnp.take(x, starts[:, None] + np.arange(size), axis=axis), axis + 1, -1)


@operation("aten.flip.default")
def flip(x: Array, dims: Sequence[int]) -> Array:
    """The other way round along these axes."""
    return jnp.flip(x, tuple(dims))


@operation("aten.roll.default")
def roll(x: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Shifted along axes, what leaves at one end entering at the other."""
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0])


def _pairs(x: Array, padding: Sequence[int]) -> list[tuple[int, int]]:
    """PyTorch's padding, which begins with the last axis, as a pair for each axis."""
    pairs = list(zip(padding[::2], padding[1::2], strict=True))[::-1]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs


@operation("aten.constant_pad_nd.default")
def pad(x: Array, padding: Sequence[int], value: Scalar = 0) -> Array:
    """A constant around the array; negative padding cuts."""
    return jax.lax.pad(x, jnp.asarray(value, x.dtype), [(low, high, 0) for low, high in _pairs(x, padding)])


@operation(*(f"aten.reflection_pad{n}d.default" for n in (1, 2, 3)))
def reflection_pad(x: Array, padding: Sequence[int]) -> Array:
    """The array mirrored at its edges."""
    return jnp.pad(x, _pairs(x, padding), mode="reflect")


@operation(*(f"aten.replication_pad{n}d.default" for n in (1, 2, 3)))
def replication_pad(x: Array, padding: Sequence[int]) -> Array:
    """The array's edges repeated."""
    return jnp.pad(x, _pairs(x, padding), mode="edge")


@operation("aten.tril.default")
def lower_triangle(x: Array, diagonal: int = 0) -> Array:
    """0 above a diagonal."""
    return jnp.tril(x, diagonal)


@operation("aten.triu.default")
def upper_triangle(x: Array, diagonal: int = 0) -> Array:
    """0 below a diagonal."""
    return jnp.triu(x, diagonal)


@operation("aten.diagonal.default")
def diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """A diagonal as the last axis."""
    return jnp.diagonal(x, offset, dim1, dim2)


@operation("aten.arange.default", "aten.arange.start", "aten.arange.start_step")
def arange(start: Scalar, stop: Scalar | None = None, step: Scalar | None = None, *, dtype: Any = None) -> Array:
    """Numbers at equal distances."""
    return jnp.arange(start, stop, step, dtype=dtype)


@operation("aten.full.default")
def full(shape: Sequence[int], value: Scalar, dtype: Any = None) -> Array:
    """One number everywhere."""
    return jnp.full(tuple(shape), value, dtype)


@operation("aten.zeros.default", "aten.empty.memory_format")
def zeros(shape: Sequence[int], dtype: Any = None) -> Array:
    """0 everywhere."""
    return full(shape, 0.0, dtype)


@operation("aten.ones.default")
def ones(shape: Sequence[int], dtype: Any = None) -> Array:
    """1 everywhere."""
    return full(shape, 1.0, dtype)


@operation("aten.scalar_tensor.default")
def scalar(value: Scalar, dtype: Any = None) -> Array:
    """A number as an array."""
    return jnp.asarray(value, dtype)


@operation("aten.full_like.default")
def full_like(x: Array, value: Scalar, dtype: Any = None) -> Array:
    """One number, in the form of an array."""
    return jnp.full_like(x, value, dtype)


@operation("aten.zeros_like.default", "aten.empty_like.default")
def zeros_like(x: Array, dtype: Any = None) -> Array:
    """0, in the form of an array."""
    return jnp.zeros_like(x, dtype)


@operation("aten.ones_like.default")
def ones_like(x: Array, dtype: Any = None) -> Array:
    """1, in the form of an array."""
    return jnp.ones_like(x, dtype)
