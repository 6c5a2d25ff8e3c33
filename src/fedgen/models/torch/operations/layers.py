"""Layers with weights: convolutions, matrix products, embeddings, attention."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from fedgen.core.contract import Array, Scalar
from fedgen.models.torch.operations.random import Draw, dropout
from fedgen.models.torch.operations.reductions import softmax
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
    rows = jnp.take(weight, places, axis=0)
    return rows if padding < 0 else jnp.where((places == padding)[..., None], lax.stop_gradient(rows), rows)


@operation("aten.scaled_dot_product_attention.default", random=True)
def attention(
    query: Array, key: Array, value: Array, mask: Array | None = None, dropped: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False, draw: Draw,
) -> Array:  # fmt: skip
    """softmax(query @ key.T * scale + mask) @ value, by heads: [..., head, place, number]."""
    if enable_gqa:
        key, value = (jnp.repeat(a, query.shape[-3] // a.shape[-3], axis=-3) for a in (key, value))
    scores = query @ jnp.swapaxes(key, -1, -2) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == jnp.bool_ else scores + mask
    weights = softmax(scores, -1)
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
        have = x.shape[axis]
        want = int(have * factors[axis - 2]) if factors else size[axis - 2] if size else have
        ratio = 1 / factors[axis - 2] if factors else have / want
        x = jnp.take(x, jnp.minimum(jnp.floor(jnp.arange(want) * ratio).astype(int), have - 1), axis=axis)
    return x
