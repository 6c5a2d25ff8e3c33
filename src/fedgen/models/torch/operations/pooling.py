"""Pooling, in one to three dimensions.

A small window is taken as that many shifted views of the array, compared or added one by one: on a CPU the derivative
of XLA's own windows is several times as slow.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fedgen.core.contract import Array, Scalar
from fedgen.models.torch.registry import operation

_MOST_VIEWS = 9  # of a window; larger ones are left to XLA


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
    if np.prod(window) > _MOST_VIEWS:
        ones = (1,) * before
        return lax.reduce_window(
            x, np.asarray(start, x.dtype), by_xla, ones + window, ones + stride, ((0, 0),) * before + tuple(edges),
            window_dilation=ones + dilation,
        )  # fmt: skip
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
    return reduce(pick, views)


def _first_largest(a: Array, b: Array) -> Array:
    """The larger one; of equal ones the first, which alone gets the derivative, as in PyTorch."""
    return jnp.where(a >= b, a, b)


def _max_pool(
    x: Array, window: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False, *, axes: int,
) -> Array:  # fmt: skip
    window, stride = _whole(window, axes), _whole(stride, axes, window)
    padding, dilation = _whole(padding, axes), _whole(dilation, axes)
    sizes = x.shape[-axes:]
    edges = [
        _edges(n, d * (w - 1) + 1, s, p, ceil_mode)
        for n, w, s, p, d in zip(sizes, window, stride, padding, dilation, strict=True)
    ]
    return _pool(x, window, stride, edges, dilation, _first_largest, -jnp.inf, lax.max)


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


def _max_pool_with_indices(x: Array, *settings: Any, axes: int) -> tuple[Array, None]:
    """The values alone: networks make nothing of the places."""
    return _max_pool(x, *settings, axes=axes), None


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
    """The maximum over as many windows as the result is to have."""
    for axis, want in enumerate(sizes, start=x.ndim - len(sizes)):
        windows = [
            jnp.max(lax.slice_in_dim(x, first, last, axis=axis), axis) for first, last in _bins(x.shape[axis], want)
        ]
        x = jnp.stack(windows, axis)
    return x, None
