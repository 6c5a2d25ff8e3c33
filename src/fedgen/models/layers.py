"""Layers with PyTorch's defaults (initialisation, epsilon, momentum), written for speed under `vmap`.

Images are kept as [channel, height, width, sample]: a convolution is then one matrix product over all
samples, and whatever moves pixels about (padding, windows, strides, flattening) moves whole rows of samples,
which are contiguous. A convolution under `vmap` over clients would become a grouped convolution, which is
slow on every backend; patches times a matrix is not.

Nothing here knows of other kernels than XLA's. The gradients written by hand are ordinary JAX too, so that they can be
differentiated again.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial, reduce
from operator import add
from typing import Literal

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Tree

EPSILON = 1e-5  # added to the variance
MOMENTUM = 0.1  # weight of the newest batch in the running statistics


def _uniform(key: Array, shape: tuple[int, ...], fan_in: int) -> Array:
    bound = fan_in**-0.5
    return jax.random.uniform(key, shape, minval=-bound, maxval=bound)


def linear_init(key: Array, fan_in: int, fan_out: int) -> Tree:
    """Weights [in, out] and bias, uniform in +-1/sqrt(fan_in)."""
    weight, bias = jax.random.split(key)
    return {"weight": _uniform(weight, (fan_in, fan_out), fan_in), "bias": _uniform(bias, (fan_out,), fan_in)}


def measurements(x: Array, weight: Array) -> Array:
    """Whole numbers (of a table, or pixels that are no bytes) as numbers of a weight's type; others as they are."""
    return x.astype(weight.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else x


def linear(params: Tree, x: Array) -> Array:
    """x [sample, in] -> [sample, out]."""
    # Seeing product and bias together, XLA writes the bias out in full on a GPU and has the product added to it: one
    # more kernel. Apart, the sum becomes part of whatever comes next.
    return jax.lax.optimization_barrier(x @ params["weight"]) + params["bias"]


def linear_to_fewer(params: Tree, x: Array) -> Array:
    """`linear` for fewer outputs than inputs: a third of the time for the weight's gradient on a CPU."""
    return jax.lax.optimization_barrier(_product_to_fewer(x, params["weight"])) + params["bias"]


@jax.custom_vjp
def _product_to_fewer(x: Array, weight: Array) -> Array:
    return x @ weight


def _product_to_fewer_backward(saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    if jax.default_backend() != "cpu":
        return gradient @ weight.T, x.T @ gradient
    # Of the two that a product x.T @ gradient could transpose, the gradient is the smaller; see linear_of_columns.
    transposed = jax.lax.optimization_barrier(gradient.T)
    return gradient @ weight.T, jax.lax.optimization_barrier(transposed @ x).T


_product_to_fewer.defvjp(lambda x, weight: (x @ weight, (x, weight)), _product_to_fewer_backward)


def linear_of_columns(params: Tree, x: Array, train: bool) -> Array:
    """x [in, sample] -> [sample, out]."""
    if not train and jax.default_backend() == "cpu":
        # Products of rows with columns are four times as fast there as those that transpose an operand within. The
        # weight is transposed once for all samples; the barriers keep XLA from taking that back.
        transposed = jax.lax.optimization_barrier(params["weight"].T)
        return jax.lax.optimization_barrier(transposed @ x).T + params["bias"]
    return linear(params, x.T)


def conv_init(key: Array, channels_in: int, channels_out: int) -> Tree:
    """Weights [out, 9 * in] (the input channel innermost, then the columns of the 3x3 window) and bias."""
    weight, bias = jax.random.split(key)
    fan_in = channels_in * 9
    return {"weight": _uniform(weight, (channels_out, fan_in), fan_in), "bias": _uniform(bias, (channels_out,), fan_in)}


def conv_norm(conv: Tree, norm: Tree, statistics: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """3x3 convolution, stride 2, padding 1, and BatchNorm: [in, h, w, sample] -> [out, ceil(h/2), ceil(w/2), sample].

    What a convolution's bias adds, BatchNorm takes away with the mean. So in training it is added to the mean only,
    and its gradient is 0 exactly; two passes over the convolution's output are saved.
    """
    if len(x) == 1 and not train:
        product = _conv_of_one_channel(conv["weight"], x)
    else:  # the gradient is traced later, where the default may be another
        product = _conv(conv["weight"], x, jax.config.jax_default_matmul_precision)  # type: ignore[attr-defined]
    return batch_norm(norm, statistics, product, train, bias=conv["bias"])


def conv_norm_relu(
    convs: Sequence[Tree], norms: Sequence[Tree], statistics: Sequence[Tree], x: Array, train: bool
) -> tuple[Array, list[Tree]]:
    """`conv_norm` of stride 2 and ReLU, one layer after the other; also the updated statistics."""
    updated: list[Tree] = []
    for conv, norm, old in zip(convs, norms, statistics, strict=True):
        x, new = conv_norm(conv, norm, old, x, train)
        x = jax.nn.relu(x)
        updated.append(new)
    return x, updated


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _conv(weight: Array, x: Array, precision: str | None) -> Array:
    return _conv_forward(weight, x, precision)[0]


def _conv_forward(weight: Array, x: Array, precision: str | None) -> tuple[Array, tuple[Array, Array, Array]]:
    kept = patches(x)
    y = jnp.matmul(weight, kept, precision=precision)
    size = jnp.zeros(x.shape[1:3], bool)  # only its shape is wanted: height and width
    return y.reshape(-1, *halved(x.shape[1:3]), x.shape[3]), (weight, kept, size)


def _conv_backward(precision: str | None, saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array]:
    """The gradients of weight and x, each from one matrix product."""
    weight, kept, size = saved
    of_x = gradient_of_input(weight, gradient, size.shape, precision)
    outputs = len(gradient)
    flat = gradient.reshape(outputs, -1)
    # Of a product a @ b.T, b is rearranged first; the patches, where they are larger, must not be b. (The reshape
    # keeps XLA from exchanging the two.)
    if len(kept) > outputs:
        product = jnp.matmul(kept, flat.T, precision=precision)
        of_weight = product.reshape(9, -1, outputs).transpose(2, 0, 1).reshape(weight.shape)
    else:
        of_weight = jnp.matmul(flat, kept.T, precision=precision)
    return of_weight, of_x


def gradient_of_input(weight: Array, gradient: Array, size: tuple[int, ...], precision: str | None = None) -> Array:
    """From the gradient [out, ...] of a convolution of stride 2, that of its input, [in, *size, sample].

    Row 2m of x is seen by output row m through the window's row 1; row 2m+1 by m through row 2 and by m+1
    through row 0; columns likewise. So each of the four phases of x is a sum of one, two or four of the
    product's nine planes. Differentiating the patches instead would add up nine padded arrays, element by
    element, which was a quarter of a training step on a CPU.
    """
    outputs, rows, columns, samples = gradient.shape
    transposed = weight.T
    if jax.default_backend() == "cpu":  # there a product is faster whose left side is transposed before, not within it
        transposed = jax.lax.optimization_barrier(transposed)
    # [row, column of the window, in, ...]
    planes = jnp.matmul(transposed, gradient.reshape(outputs, -1), precision=precision)
    planes = planes.reshape(3, 3, -1, rows, columns, samples)
    by_row = jnp.stack([planes[1], planes[2] + _next(planes[0], 2)])  # [even or odd row, column of the window, in, ...]
    by_both = jnp.stack([by_row[:, 1], by_row[:, 2] + _next(by_row[:, 0], 3)])  # [even or odd column, ... row, in, ...]
    x = by_both.transpose(2, 3, 1, 4, 0, 5).reshape(-1, 2 * rows, 2 * columns, samples)
    return x[:, : size[0], : size[1]]


def _next(x: Array, axis: int) -> Array:
    """What comes one place later along an axis, and 0 after the last."""
    after = jax.lax.slice_in_dim(x, 1, None, axis=axis)
    return jnp.pad(after, [(0, int(i == axis)) for i in range(x.ndim)])


_conv.defvjp(_conv_forward, _conv_backward)


def halved(size: tuple[int, ...]) -> tuple[int, int]:
    """Height and width after a convolution of stride 2."""
    return (size[0] + 1) // 2, (size[1] + 1) // 2


def _conv_of_one_channel(weight: Array, x: Array) -> Array:
    """`_conv` for a forward pass alone: of a single channel, adding up nine views is faster than making patches."""
    views = enumerate(_views(x))
    # Without the barrier the sums would be computed again for each window of the next layer.
    return jax.lax.optimization_barrier(reduce(add, (weight[:, i, None, None, None] * view for i, view in views)))


def patches(x: Array) -> Array:
    """The nine shifted views of x, as [9 * in, rows * columns * sample]."""
    return jnp.stack(_views(x)).reshape(9 * len(x), -1)


def _views(x: Array) -> list[Array]:
    """What each place of the 3x3 window of stride 2 sees of x: [in, rows, columns, sample]."""
    rows, columns = halved(x.shape[1:3])
    ends = 2 * rows - x.shape[1], 2 * columns - x.shape[2]
    padded = jnp.pad(x, ((0, 0), (1, ends[0]), (1, ends[1]), (0, 0)))
    return [padded[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i in range(3) for j in range(3)]


def max_pool(x: Array) -> Array:
    """2x2 maximum, stride 2, on [channel, h, w, sample]; an odd last row or column is dropped."""
    channels, height, width, samples = x.shape
    rows, columns = height // 2, width // 2
    windows = x[:, : 2 * rows, : 2 * columns].reshape(channels, rows, 2, columns, 2, samples)
    return jnp.max(windows, axis=(2, 4))


def batch_norm_init(channels: int) -> tuple[Tree, Tree]:
    """Parameters (scale 1, shift 0) and running statistics (mean 0, variance 1)."""
    params = {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}
    return params, {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}


def variances(norms: Iterable[str]) -> tuple[str, ...]:
    """What statistics by the names of these layers call their running variances (`Model.never_negative`)."""
    return tuple(f"[{norm!r}]['variance']" for norm in norms)


def batch_norm(
    params: Tree, statistics: Tree, x: Array, train: bool, channel: Literal[0, 1] = 0, bias: Array | float = 0.0
) -> tuple[Array, Tree]:
    """Normalise each channel of x + bias; in training, also update the running statistics.

    The channel is the first axis of x, or the second of two. As in PyTorch, a batch is normalised by its
    biased variance and the running variance is the unbiased one.
    """
    if x.dtype == jnp.bfloat16:  # too coarse for means and variances
        params = jax.tree.map(lambda a: a.astype(jnp.float32), params)
        y, statistics = batch_norm(params, statistics, x.astype(jnp.float32), train, channel, bias)
        return y.astype(x.dtype), statistics
    if not train:
        factor = params["scale"] * jax.lax.rsqrt(statistics["variance"] + EPSILON)
        offset = params["shift"] - (statistics["mean"] - bias) * factor
        shape = (-1, *(1,) * (x.ndim - 1)) if channel == 0 else (1, -1)
        return x * factor.reshape(shape) + offset.reshape(shape), statistics
    n = x.size // x.shape[channel]
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    y, mean, variance = _normalise(x, params["scale"], params["shift"], others)
    return y, running_statistics(statistics, mean + bias, variance * (n / max(n - 1, 1)))


def running_statistics(statistics: Tree, mean: Array, unbiased: Array) -> Tree:
    """The running statistics after a batch with this mean and variance."""
    return {
        "mean": (1 - MOMENTUM) * statistics["mean"] + MOMENTUM * mean,
        "variance": (1 - MOMENTUM) * statistics["variance"] + MOMENTUM * unbiased,
    }


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalise(x: Array, scale: Array, shift: Array, along: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """x normalised along all axes but one; also the mean and variance, which are not differentiated."""
    return _normalise_forward(x, scale, shift, along)[0]


def _normalise_forward(
    x: Array, scale: Array, shift: Array, along: tuple[int, ...]
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    n = math.prod(x.shape[axis] for axis in along)
    mean = sum_of_channels(x, along) / n
    centred = x - jnp.expand_dims(mean, along)
    variance = sum_of_channels(jnp.square(centred), along) / n
    inverse = jax.lax.rsqrt(variance + EPSILON)  # of the standard deviation
    y = centred * jnp.expand_dims(scale * inverse, along) + jnp.expand_dims(shift, along)
    # Without it a second derivative would know them, which the first one does not.
    mean, variance = jax.lax.stop_gradient((mean, variance))
    return (y, mean, variance), (centred, inverse, scale)


def _normalise_backward(
    along: tuple[int, ...], saved: tuple[Array, ...], gradients: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Two sums and one pass over x; what JAX derives takes twice as long on a CPU."""
    centred, inverse, scale = saved
    gradient, _, _ = gradients  # those of mean and variance are 0: they only update the running statistics
    n = math.prod(centred.shape[axis] for axis in along)
    total, slope = sum_of_channels(gradient, along), sum_of_channels(gradient * centred, along)
    towards = gradient - jnp.expand_dims(total / n, along) - centred * jnp.expand_dims(slope * inverse**2 / n, along)
    return towards * jnp.expand_dims(scale * inverse, along), slope * inverse, total


def sum_of_channels(x: Array, along: tuple[int, ...]) -> Array:
    """The sum along all axes but one."""
    if jax.default_backend() != "cpu":
        return jnp.sum(x, along)
    # On a CPU a product with ones is faster than XLA's own sum: a fourteenth of a training step.
    if along == (0,):
        return jnp.ones(len(x)) @ x
    # It adds one after the other, which costs digits where there are many: those are summed by rows of the image first.
    many = all(isinstance(n, int) for n in x.shape) and x.size // len(x) > 2**13  # an export may leave one open
    parts = x.shape[1] if x.ndim == 4 and many else 1
    rows = x.reshape(len(x) * parts, -1)
    return jnp.sum((rows @ jnp.ones(rows.shape[1])).reshape(len(x), parts), axis=1)


_normalise.defvjp(_normalise_forward, _normalise_backward)
