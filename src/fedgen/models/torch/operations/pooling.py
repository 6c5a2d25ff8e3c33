"""Pooling, in one to three dimensions.

A small window is taken as that many shifted views of the array, compared or added one by one: on a CPU the derivative
of XLA's own windows is several times as slow.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedgen.core.contract import Array, Scalar
from fedgen.models.torch.registry import operation

_MOST_VIEWS = 9  # of a window; larger ones are left to XLA, which cannot derive dilated ones


def _whole(given: Sequence[int], axes: int, otherwise: Sequence[int] = ()) -> tuple[int, ...]:
    """A setting for each axis: one number stands for all, none for the default."""
    given = tuple(given) or tuple(otherwise)
    return given * axes if len(given) == 1 else given


def _edges(size: int, window: int, stride: int, padding: int, ceil: bool) -> tuple[int, int]:
    """The padding before and after an axis; with `ceil` a last window may begin in the image and end beyond it."""
    more = 0
    if ceil:
        beyond = (size + 2 * padding - window) % stride
        places = (size + 2 * padding - window + stride - 1) // stride  # the last window's number
        if beyond and places * stride < size + padding:  # PyTorch drops a window that begins in the padding
            more = stride - beyond
    return padding, padding + more


def _pool(
    x: Array, window: tuple[int, ...], stride: tuple[int, ...], edges: Sequence[tuple[int, int]],
    dilation: tuple[int, ...], pick: Callable[[Array, Array], Array], start: Scalar,
    by_xla: Callable[[Array, Array], Array],
) -> Array:  # fmt: skip
    """`pick` of each window's numbers, row by row."""
    before = x.ndim - len(window)
    if np.prod(window) > _MOST_VIEWS and max(dilation) == 1:
        ones = (1,) * before
        return lax.reduce_window(
            x, np.asarray(start, x.dtype), by_xla, ones + window, ones + stride, ((0, 0),) * before + tuple(edges)
        )  # fmt: skip
    return reduce(pick, _views(x, window, stride, edges, dilation, start))


def _views(
    x: Array, window: tuple[int, ...], stride: tuple[int, ...], edges: Sequence[tuple[int, int]],
    dilation: tuple[int, ...], start: Scalar,
) -> list[Array]:  # fmt: skip
    """For each place of a window the numbers there, of all windows."""
    before = x.ndim - len(window)
    x = lax.pad(x, jnp.asarray(start, x.dtype), [(0, 0, 0)] * before + [(low, high, 0) for low, high in edges])
    sizes = x.shape[before:]
    spans = [(n - d * (w - 1) - 1) // s for n, w, s, d in zip(sizes, window, stride, dilation, strict=True)]
    views = []
    for place in itertools.product(*map(range, window)):
        cut = [
            slice(d * p, d * p + s * span + 1, s)
            for p, s, d, span in zip(place, stride, dilation, spans, strict=True)
        ]  # fmt: skip
        views.append(x[(..., *cut)])
    return views


def _first_largest(a: Array, b: Array) -> Array:
    """The larger one; of equal ones the first, which alone gets the derivative, as in PyTorch."""
    return jnp.where(a >= b, a, b)


def _max_pool(
    x: Array, window: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False, *, axes: int,
) -> Array:  # fmt: skip
    windows = _windows(x, window, stride, padding, dilation, ceil_mode, axes)
    return _pool(x, *windows, _first_largest, -jnp.inf, lax.max)


def _windows(
    x: Array, window: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    ceil_mode: bool, axes: int,
) -> tuple[tuple[int, ...], tuple[int, ...], list[tuple[int, int]], tuple[int, ...]]:  # fmt: skip
    """The windows of max pooling: their size, stride, the padding and the dilation, by axes."""
    window, stride = _whole(window, axes), _whole(stride, axes, window)
    padding, dilation = _whole(padding, axes), _whole(dilation, axes)
    edges = [
        _edges(n, d * (w - 1) + 1, s, p, ceil_mode)
        for n, w, s, p, d in zip(x.shape[-axes:], window, stride, padding, dilation, strict=True)
    ]
    return window, stride, edges, dilation


def _avg_pool(
    x: Array, window: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None, *, axes: int,
) -> Array:  # fmt: skip
    window, stride, padding = _whole(window, axes), _whole(stride, axes, window), _whole(padding, axes)
    sizes = x.shape[-axes:]
    edges = [_edges(*of_axis, ceil_mode) for of_axis in zip(sizes, window, stride, padding, strict=True)]
    y = _pool(x, window, stride, edges, (1,) * axes, jnp.add, 0.0, lax.add)
    if divisor_override is not None:
        return y / divisor_override
    # How many numbers a window holds: all of them, those within the padding, or those of the image.
    for axis, (n, w, s, p, count) in enumerate(
        zip(sizes, window, stride, padding, y.shape[-axes:], strict=True), start=-axes
    ):
        begin = np.arange(count) * s - p
        first, last = (-p, n + p) if count_include_pad else (0, n)
        held = np.minimum(begin + w, last) - np.maximum(begin, first)
        y = y / jnp.asarray(held, y.dtype).reshape(-1, *(1,) * (-axis - 1))
    return y


def _max_pool_with_indices(
    x: Array, window: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False, *, axes: int,
) -> tuple[Array, Array]:  # fmt: skip
    """The maxima and where they are, counted over the image."""
    sizes = x.shape[-axes:]
    windows = _windows(x, window, stride, padding, dilation, ceil_mode, axes)
    count = jnp.arange(int(np.prod(sizes))).reshape(*(1,) * (x.ndim - axes), *sizes)

    def first_largest(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        kept = a[0] >= b[0]
        return jnp.where(kept, a[0], b[0]), jnp.where(kept, a[1], b[1])

    views = zip(_views(x, *windows, -jnp.inf), _views(count, *windows, 0), strict=True)
    return _max_pool(x, window, stride, padding, dilation, ceil_mode, axes=axes), reduce(first_largest, views)[1]


for _n in (1, 2, 3):
    operation(f"aten.max_pool{_n}d.default")(partial(_max_pool, axes=_n))
    operation(f"aten.avg_pool{_n}d.default")(partial(_avg_pool, axes=_n))
    operation(f"aten.max_pool{_n}d_with_indices.default")(partial(_max_pool_with_indices, axes=_n))


def _bins(have: int, want: int) -> list[tuple[int, int]]:
    """PyTorch's adaptive windows: they cover the axis and may overlap."""
    return [(i * have // want, -(-(i + 1) * have // want)) for i in range(want)]


@operation(*(f"aten.adaptive_avg_pool{n}d.default" for n in (1, 2, 3)))
@operation(*(f"aten._adaptive_avg_pool{n}d.default" for n in (2, 3)))
def adaptive_avg_pool(x: Array, sizes: Sequence[int]) -> Array:
    """The mean over as many windows as the result is to have, along each axis by a product with a matrix."""
    for axis, want in enumerate(sizes, start=x.ndim - len(sizes)):
        have = x.shape[axis]
        if want == 1:
            x = jnp.mean(x, axis, keepdims=True)
        elif have != want:
            shares = np.zeros((have, want), np.float32)
            for i, (first, last) in enumerate(_bins(have, want)):
                shares[first:last, i] = 1 / (last - first)
            x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(shares, x.dtype), -1, axis)
    return x


@operation(*(f"aten.adaptive_max_pool{n}d.default" for n in (1, 2, 3)))
def adaptive_max_pool(x: Array, sizes: Sequence[int]) -> tuple[Array, None]:
    """The maximum over as many windows as the result is to have; not where it is."""
    for axis, want in enumerate(sizes, start=x.ndim - len(sizes)):
        windows = [
            jnp.max(lax.slice_in_dim(x, first, last, axis=axis), axis) for first, last in _bins(x.shape[axis], want)
        ]
        x = jnp.stack(windows, axis)
    return x, None
