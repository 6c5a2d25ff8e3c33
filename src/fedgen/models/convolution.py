"""Convolutions as products of patches with a matrix, and pooling by shifted views, for any network.

A convolution under `vmap` over clients becomes a grouped convolution, which is slow on every backend; a matrix product
stays one. Samples are kept innermost, [channel, *places, sample]: whatever moves pixels about (padding, windows,
strides) then moves whole rows of samples, which are contiguous. `fedgen.models.rewrite` puts these in the place of the
operations that a network was written with.
"""

import itertools
from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedgen.core.contract import Array
from fedgen.models import dispatch
from fedgen.models.layers import halved

# Patches of a mini-batch up to this size are kept for the gradient, larger ones are made again: on a GPU that costs a
# tenth of the time; on a CPU those that leave the cache cost as much as new ones.
KEPT_BYTES = {"cpu": 2**22, "gpu": 2**27}


class Window(NamedTuple):
    """Where a convolution or a pool looks, one entry for each dimension in space."""

    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]  # before and after; negative: that much is cut off
    dilation: tuple[int, ...]  # of the window
    groups: int = 1
    precision: Any = None  # of the products, as JAX names it; None: the default

    def outputs(self, places: Sequence[int]) -> tuple[int, ...]:
        """How many places it takes in an input of this size."""
        return tuple(
            (n + before + after - (k - 1) * d - 1) // s + 1
            for n, k, s, (before, after), d in zip(
                places, self.size, self.strides, self.padding, self.dilation, strict=True
            )
        )


def convolve(x: Array, weight: Array, window: Window, dtype: Any = None) -> Array:
    """x [in, *places, sample], weight [*window, in / groups, out] -> [out, *places, sample].

    `dtype` is the type in which products are added up and given; None: that of x. Gradients have their inputs' types.
    """
    if window.groups == 1:
        return _convolve(x, weight, window, dtype)
    views = _views(x, window, 0.0)
    fan_in, fan_out = weight.shape[-2:]
    of_group = weight.reshape(len(views), fan_in, window.groups, fan_out // window.groups)
    if fan_in == 1:  # depthwise: nothing to add up but the window
        given = dtype or x.dtype
        parts = (
            view[:, None].astype(given) * taken[0].reshape(window.groups, -1, *(1,) * (x.ndim - 1))
            for view, taken in zip(views, of_group, strict=True)
        )
        return reduce(add, parts).reshape(fan_out, *views[0].shape[1:])
    stacked = jnp.stack(views).reshape(len(views), window.groups, fan_in, -1)
    y = jnp.einsum("kgcm,kcgo->gom", stacked, of_group, precision=window.precision, preferred_element_type=dtype)
    return y.reshape(fan_out, *views[0].shape[1:])


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, weight: Array, window: Window, dtype: Any) -> Array:
    return _product(x, weight, window, dtype)[0]


def _product(x: Array, weight: Array, window: Window, dtype: Any) -> tuple[Array, Array]:
    """The convolution, and the patches of which it is made."""
    seen = _patches(x, window)
    fan_out = weight.shape[-1]
    rows = _rows(weight)
    if jax.default_backend() == "cpu":  # there a product is faster whose left side is transposed before, not within it
        rows = lax.optimization_barrier(rows)
    y = jnp.matmul(rows, seen, precision=window.precision, preferred_element_type=dtype)
    return y.reshape(fan_out, *window.outputs(x.shape[1:-1]), x.shape[-1]), seen


def _rows(weight: Array) -> Array:
    """[out, window * in]."""
    return weight.reshape(-1, weight.shape[-1]).T


def _forward(x: Array, weight: Array, window: Window, dtype: Any) -> tuple[Array, tuple[Array, Array, Array]]:
    form = jnp.zeros((*x.shape[:-1], 0), bool)  # of which only the shape is wanted
    if _by_kernels(x, weight, window, dtype):
        return dispatch.convolve(_rows(weight), x), (x, weight, form)
    y, seen = _product(x, weight, window, dtype)
    kept = seen if seen.size * seen.dtype.itemsize <= KEPT_BYTES.get(jax.default_backend(), 2**22) else x
    return y, (kept, weight, form)


def _by_kernels(x: Array, weight: Array, window: Window, dtype: Any) -> bool:
    """Whether there are kernels that train it: 3x3 windows that move by two places and begin one before the edge."""
    at = window.size, window.strides, window.dilation, tuple(before for before, _ in window.padding)
    if at != ((3, 3), (2, 2), (1, 1), (1, 1)) or dtype not in (None, jnp.float32) or weight.dtype != jnp.float32:
        return False
    places = x.shape[1:-1]
    return window.outputs(places) == halved(places) and dispatch.takes_convolution(x, weight.shape[-1])


def _backward(window: Window, dtype: Any, saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array]:
    """The gradients of x and of the weight, each from one matrix product."""
    kept, weight, form = saved
    if kept.ndim > 2 and _by_kernels(kept, weight, window, dtype):
        of_rows, of_x = dispatch.gradients_of_convolution(_rows(weight), kept, gradient)
        return of_x, of_rows.T.reshape(weight.shape)
    seen = kept if kept.ndim == 2 else _patches(kept, window)
    fan_out = weight.shape[-1]
    flat = gradient.reshape(fan_out, -1).astype(weight.dtype)
    of_weight = jnp.matmul(seen, flat.T, precision=window.precision).reshape(weight.shape)
    planes = jnp.matmul(weight.reshape(-1, fan_out), flat, precision=window.precision)
    planes = planes.reshape(*window.size, form.shape[0], *gradient.shape[1:])
    return scattered(planes, window, form.shape[1:-1]), of_weight


_convolve.defvjp(_forward, _backward)


def scattered(planes: Array, window: Window, places: Sequence[int]) -> Array:
    """What each place of the window says of x, [*window, in, *outputs, sample], added up to [in, *places, sample].

    One dimension after the other. Output o sees place s * o + i * d - p through place i of the window. So of the
    places s * q + r, those of one phase r, each is a sum over every s-th place of the window, shifted; no zeros are
    spread between the outputs and nothing is added that is known to be 0.
    """
    for axis, n in enumerate(places):
        dimensions = len(places) - axis  # the window's places of this dimension are the first axis
        at = dimensions + axis + 1  # the axis of its outputs
        size, stride, (before, _), dilation = (
            window.size[axis], window.strides[axis], window.padding[axis], window.dilation[axis]
        )  # fmt: skip
        count = -(-n // stride)
        phases = []
        for phase in range(stride):
            terms = [
                _shifted(planes[i], (i * dilation - before - phase) // stride, count, at - 1)
                for i in range(size)
                if (i * dilation - before - phase) % stride == 0
            ]
            phases.append(reduce(add, terms) if terms else None)
        planes = _interleaved(phases, at - 1, n, planes)
    return planes


def _shifted(x: Array, by: int, count: int, axis: int) -> Array:
    """Along an axis, `count` entries of which entry q is x[q - by], and 0 where there is none."""
    configuration = [(0, 0, 0)] * x.ndim
    configuration[axis] = (by, count - x.shape[axis] - by, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), configuration)


def _interleaved(phases: list[Array | None], axis: int, n: int, like: Array) -> Array:
    """The phases' entries in turn along an axis, n of them."""
    shape = next(phase.shape for phase in phases if phase is not None)
    filled = [jnp.zeros(shape, like.dtype) if phase is None else phase for phase in phases]
    if len(filled) == 1:
        return filled[0]
    together = jnp.stack(filled, axis=axis + 1)
    together = together.reshape(*shape[:axis], shape[axis] * len(filled), *shape[axis + 1 :])
    return lax.slice_in_dim(together, 0, n, axis=axis)


def _patches(x: Array, window: Window) -> Array:
    """What the window sees at each place: [window * in, places * sample]."""
    views = _views(x, window, 0.0)
    return (jnp.concatenate(views) if len(views) > 1 else views[0]).reshape(len(views) * len(x), -1)


def _views(x: Array, window: Window, fill: float) -> list[Array]:
    """What each place of the window sees of x: [in, *outputs, sample]."""
    edges = [(0, 0, 0), *((before, after, 0) for before, after in window.padding), (0, 0, 0)]
    if any(edge != (0, 0, 0) for edge in edges):
        x = lax.pad(x, jnp.array(fill, x.dtype), edges)
    outputs = window._replace(padding=((0, 0),) * len(window.size)).outputs(x.shape[1:-1])
    strides = (1, *window.strides, 1)
    found = []
    for place in itertools.product(*map(range, window.size)):
        start = [i * d for i, d in zip(place, window.dilation, strict=True)]
        stop = [a + (n - 1) * s + 1 for a, n, s in zip(start, outputs, window.strides, strict=True)]
        found.append(lax.slice(x, (0, *start, 0), (len(x), *stop, x.shape[-1]), strides))
    return found


def max_pool(x: Array, window: Window) -> Array:
    """The maximum of each window over all axes of x; as elsewhere, the gradient goes to the first of equal ones."""
    views = _views_of_all(x, window, -jnp.inf)
    largest = lax.stop_gradient(reduce(jnp.maximum, views))
    chosen, before = jnp.zeros((), x.dtype), jnp.zeros((), bool)
    for view in views:
        here = (view == largest) & ~before
        chosen, before = chosen + jnp.where(here, view, 0), before | here
    return jnp.where(jnp.isnan(largest), largest, chosen)


def sum_pool(x: Array, window: Window) -> Array:
    """The sum of each window over all axes of x."""
    return reduce(add, _views_of_all(x, window, 0.0))


def _views_of_all(x: Array, window: Window, fill: float) -> list[Array]:
    return [view[0, ..., 0] for view in _views(x[None, ..., None], window, fill)]
