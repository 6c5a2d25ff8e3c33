"""Layers with weights: convolutions, matrix products, embeddings, attention."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedgen.core.contract import Array, Scalar
from fedgen.errors import FedgenError
from fedgen.models.torch.operations.arithmetic import hardtanh
from fedgen.models.torch.operations.random import Draw, dropout
from fedgen.models.torch.operations.reductions import safe_softmax, softmax
from fedgen.models.torch.operations.shapes import from_start
from fedgen.models.torch.registry import operation


@operation("aten.convolution.default")
def convolution(
    x: Array, weight: Array, bias: Array | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Array:  # fmt: skip
    """A convolution or a transposed one: x [batch, in, ...], weight [out, in / groups, ...] (transposed: [in, out])."""
    axes = "DHW"[-(x.ndim - 2) :]
    form = (f"NC{axes}", f"OI{axes}", f"NC{axes}")
    if transposed:
        # It is a convolution of x with zeros between its numbers, by the flipped window.
        fan_in, fan_out, *window = weight.shape
        weight = jnp.flip(weight, range(2, weight.ndim)).reshape(groups, fan_in // groups, fan_out, *window)
        weight = jnp.swapaxes(weight, 1, 2).reshape(groups * fan_out, fan_in // groups, *window)
        reach = [d * (w - 1) - p for d, w, p in zip(dilation, window, padding, strict=True)]
        edges = [(r, r + more) for r, more in zip(reach, output_padding, strict=True)]
        y = lax.conv_general_dilated(
            x, weight, [1] * len(stride), edges, stride, dilation, form, feature_group_count=groups
        )
    else:
        edges = [(p, p) for p in padding]
        y = lax.conv_general_dilated(
            x, weight, stride, edges, rhs_dilation=dilation, dimension_numbers=form, feature_group_count=groups
        )
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))


@operation("aten.linear.default")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x @ weight.T + bias, for x [..., in] and weight [out, in]."""
    y = lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else y + bias


@operation("aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default", "aten.matmul.default")
def matmul(x: Array, y: Array) -> Array:
    """The matrix product."""
    return jnp.matmul(x, y)


@operation("aten.addmm.default", "aten.baddbmm.default")
def addmm(x: Array, one: Array, other: Array, beta: Scalar = 1, alpha: Scalar = 1) -> Array:
    """beta x + alpha one @ other."""
    product = jnp.matmul(one, other)
    return (x if beta == 1 else beta * x) + (product if alpha == 1 else alpha * product)


@operation("aten.einsum.default")
def einsum(equation: str, arrays: Sequence[Array], path: Sequence[int] | None = None) -> Array:
    """A sum of products by Einstein's convention."""
    return jnp.einsum(equation, *arrays)


@operation("aten.embedding.default")
def embedding(
    weight: Array, places: Array, padding: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Array:
    """Rows of a table; that of the padding, where there is one, does not learn."""
    rows = jnp.take(weight, from_start(places, len(weight)), axis=0)
    return rows if padding < 0 else jnp.where((places == padding)[..., None], lax.stop_gradient(rows), rows)


@operation("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def embedding_bag(
    weight: Array, places: Array, offsets: Array, by_frequency: bool = False, mode: int = 0, sparse: bool = False,
    factors: Array | None = None, last_offset: bool = False, padding: int = -1,
) -> tuple[Array, None, None, None]:  # fmt: skip
    """The sum (mode 0), mean (1) or maximum (2) of each bag's rows; a bag begins at its offset in `places`."""
    starts = offsets[:-1] if last_offset else offsets
    count, order = len(starts), jnp.arange(len(places))
    bag = jnp.searchsorted(starts, order, side="right") - 1
    bag = jnp.where((places == padding) & (places >= 0), count, bag)  # one bag more, for what is in none
    rows = jnp.take(weight, from_start(places, len(weight)), axis=0)
    if mode == 2:
        largest = jax.ops.segment_max(lax.stop_gradient(rows), bag, count + 1)
        candidates = jnp.where(rows == largest[bag], order[:, None], len(places))
        first = jax.ops.segment_min(candidates, bag, count + 1)[:count]  # of equal ones, which alone learns
        found = jnp.take_along_axis(rows, jnp.minimum(first, len(places) - 1), axis=0)
        found = jnp.where(first < len(places), found, 0)
        return jnp.where(jnp.isnan(largest[:count]), largest[:count], found), None, None, None
    total = jax.ops.segment_sum(rows if factors is None else rows * factors[:, None], bag, count + 1)[:count]
    if mode == 1:
        sizes = jax.ops.segment_sum(jnp.ones(len(places), total.dtype), bag, count + 1)[:count]
        total = total / jnp.maximum(sizes, 1)[:, None]
    return total, None, None, None


@operation("aten._trilinear.default")
def trilinear(
    one: Array, other: Array, third: Array, expand_one: Sequence[int], expand_other: Sequence[int],
    expand_third: Sequence[int], summed: Sequence[int], unrolled: int = 1,
) -> Array:  # fmt: skip
    """The sum of products of three arrays, each without some axes; of these `summed` are summed over."""
    axes = "abcdefghijklmnopqrstuvwxyz"[: one.ndim + len(expand_one)]

    def without(some: Sequence[int]) -> str:
        return "".join(axis for place, axis in enumerate(axes) if place not in some)

    equation = ",".join(map(without, (expand_one, expand_other, expand_third)))
    return jnp.einsum(f"{equation}->{without(summed)}", one, other, third)


@operation("aten.scaled_dot_product_attention.default", random=True)
def attention(
    query: Array, key: Array, value: Array, mask: Array | None = None, dropped: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False, draw: Draw,
) -> Array:  # fmt: skip
    """softmax(query @ key.T * scale + mask) @ value, by heads: [..., head, place, number]; 0 where all is masked."""
    if enable_gqa:
        key, value = (jnp.repeat(a, query.shape[-3] // a.shape[-3], axis=-3) for a in (key, value))
    scores = query @ jnp.swapaxes(key, -1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    to_weights = softmax if mask is None else safe_softmax
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == jnp.bool_ else scores + mask
    weights = to_weights(scores, -1)
    return (dropout(weights, dropped, True, draw=draw)[0] if dropped else weights) @ value


@operation("aten.pixel_shuffle.default")
def pixel_shuffle(x: Array, factor: int) -> Array:
    """Channels as pixels: [..., c * factor^2, h, w] -> [..., c, h * factor, w * factor]."""
    *batch, channels, height, width = x.shape
    x = x.reshape(*batch, channels // factor**2, factor, factor, height, width)
    x = jnp.moveaxis(x, (-4, -3), (-3, -1))
    return x.reshape(*batch, channels // factor**2, height * factor, width * factor)


@operation("aten.upsample_nearest2d.vec")
def upsample_nearest(x: Array, size: Sequence[int] | None, factors: Sequence[float] | None) -> Array:
    """Each pixel of the result from the pixel at its place."""
    for axis in (2, 3):
        have, want, ratio = _resized(x, axis, size, factors)
        x = jnp.take(x, jnp.minimum(jnp.floor(jnp.arange(want) * ratio).astype(int), have - 1), axis=axis)
    return x


@operation("aten.upsample_bilinear2d.vec")
def upsample_bilinear(
    x: Array, size: Sequence[int] | None, align_corners: bool, factors: Sequence[float] | None
) -> Array:
    """Each pixel of the result from the two at its sides, along each axis by a product with a matrix."""
    for axis in (2, 3):
        have, want, ratio = _resized(x, axis, size, factors)
        if align_corners:
            place = np.arange(want) * ((have - 1) / max(want - 1, 1))
        else:
            place = np.maximum((np.arange(want) + 0.5) * ratio - 0.5, 0)
        before = np.minimum(place.astype(int), have - 1)
        share = place - before
        shares = np.zeros((have, want), np.float32)
        np.add.at(shares, (before, range(want)), 1 - share)
        np.add.at(shares, (np.minimum(before + 1, have - 1), range(want)), share)
        x = jnp.moveaxis(jnp.moveaxis(x, axis, -1) @ jnp.asarray(shares, x.dtype), -1, axis)
    return x


@operation("aten.grid_sampler_2d.default")
def grid_sample(x: Array, grid: Array, how: int, beyond: int, align_corners: bool) -> Array:
    """x [batch, channel, row, column] at the places (across, down) of grid [batch, row, column, 2], from -1 to 1.

    By the four pixels around a place (how 0), or the nearest one (1); beyond the image all is 0, or as its edge (1).
    """
    if how > 1 or beyond > 1:
        raise FedgenError(
            "grid_sample is known here with mode 'bilinear' or 'nearest' and padding_mode 'zeros' or 'border'; use"
            ' these, or add your own: @fedgen.models.torch.operation("aten.grid_sampler_2d.default")'
        )
    places = []  # across, and down
    for axis, size in enumerate((x.shape[3], x.shape[2])):
        place = (grid[..., axis] + 1) / 2
        place = place * (size - 1) if align_corners else place * size - 0.5
        places.append(hardtanh(place, 0, size - 1) if beyond else place)
    across, down = places
    if how == 1:
        return _pixels(x, jnp.round(down), jnp.round(across))
    left, upper = jnp.floor(across), jnp.floor(down)
    right, lower = (across - left)[:, None], (down - upper)[:, None]  # shares of the pixels on that side
    above = _pixels(x, upper, left) * (1 - right) + _pixels(x, upper, left + 1) * right
    below = _pixels(x, upper + 1, left) * (1 - right) + _pixels(x, upper + 1, left + 1) * right
    return above * (1 - lower) + below * lower


def _pixels(x: Array, rows: Array, columns: Array) -> Array:
    """[batch, channel, ...] of the pixels in these rows and columns [batch, ...]; 0 where there are none."""
    inside = (rows >= 0) & (rows < x.shape[2]) & (columns >= 0) & (columns < x.shape[3])
    at = [jnp.clip(a, 0, n - 1).astype(jnp.int32) for a, n in ((rows, x.shape[2]), (columns, x.shape[3]))]
    found = jax.vmap(lambda image, row, column: image[:, row, column])(x, *at)
    return jnp.where(inside[:, None], found, 0)


def _resized(
    x: Array, axis: int, size: Sequence[int] | None, factors: Sequence[float] | None
) -> tuple[int, int, float]:
    """An axis' length, that of the result, and how far apart its pixels lie."""
    have = x.shape[axis]
    want = int(have * factors[axis - 2]) if factors else size[axis - 2] if size else have
    return have, want, 1 / factors[axis - 2] if factors else have / want
