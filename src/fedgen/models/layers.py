"""Layers with PyTorch's defaults (initialisation, epsilon, momentum), written for speed under `vmap`.

Images are kept as [channel, sample, height, width]: a convolution is then one matrix product over all
samples, and BatchNorm reduces contiguous memory. A convolution under `vmap` over clients would become a
grouped convolution, which is slow on every backend; patches times a matrix is not.
"""

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


def linear(params: Tree, x: Array) -> Array:
    """x [sample, in] -> [sample, out]."""
    return x @ params["weight"] + params["bias"]


def conv_init(key: Array, channels_in: int, channels_out: int) -> Tree:
    """Weights [out, in * 9] (rows, then columns of the 3x3 window innermost) and bias."""
    weight, bias = jax.random.split(key)
    fan_in = channels_in * 9
    return {"weight": _uniform(weight, (channels_out, fan_in), fan_in), "bias": _uniform(bias, (channels_out,), fan_in)}


def conv(params: Tree, x: Array) -> Array:
    """3x3 convolution, stride 2, padding 1: [in, sample, h, w] -> [out, sample, ceil(h/2), ceil(w/2)]."""
    _, samples, height, width = x.shape
    rows, columns = (height + 1) // 2, (width + 1) // 2
    y = params["weight"] @ _patches(x, rows, columns) + params["bias"][:, None]
    return y.reshape(-1, samples, rows, columns)


def _patches(x: Array, rows: int, columns: int) -> Array:
    """The nine shifted views of x at stride 2, as [in * 9, sample * rows * columns]."""
    channels, samples, height, width = x.shape
    padding = (1, 2 * rows - height + 1), (1, 2 * columns - width + 1)
    # Splitting the padded image into its four stride-2 phases first makes each view a slice of unit stride.
    phases = jnp.pad(x, ((0, 0), (0, 0), *padding)).reshape(channels, samples, rows + 1, 2, columns + 1, 2)
    views = [
        phases[:, :, i // 2 : i // 2 + rows, i % 2, j // 2 : j // 2 + columns, j % 2]
        for i in range(3)
        for j in range(3)
    ]
    return jnp.stack(views, axis=1).reshape(channels * 9, samples * rows * columns)


def max_pool(x: Array) -> Array:
    """2x2 maximum, stride 2, on [channel, sample, h, w]; an odd last row or column is dropped."""
    channels, samples, height, width = x.shape
    rows, columns = height // 2, width // 2
    windows = x[:, :, : 2 * rows, : 2 * columns].reshape(channels, samples, rows, 2, columns, 2)
    return jnp.max(windows, axis=(3, 5))


def batch_norm_init(channels: int) -> tuple[Tree, Tree]:
    """Parameters (scale 1, shift 0) and running statistics (mean 0, variance 1)."""
    params = {"scale": jnp.ones(channels), "shift": jnp.zeros(channels)}
    return params, {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}


def batch_norm(params: Tree, statistics: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    """Normalise over all but the first axis (the channel); in training, also update the running statistics.

    As in PyTorch, a batch is normalised by its biased variance and the running variance is the unbiased one.
    """
    if train:
        axes = tuple(range(1, x.ndim))
        mean = jnp.mean(x, axes)
        variance = jnp.mean(jnp.square(x - _along_channels(mean, x)), axes)
        n = x.size // x.shape[0]
        unbiased = variance * (n / max(n - 1, 1))
        statistics = {
            "mean": (1 - MOMENTUM) * statistics["mean"] + MOMENTUM * jax.lax.stop_gradient(mean),
            "variance": (1 - MOMENTUM) * statistics["variance"] + MOMENTUM * jax.lax.stop_gradient(unbiased),
        }
    else:
        mean, variance = statistics["mean"], statistics["variance"]
    factor = params["scale"] * jax.lax.rsqrt(variance + EPSILON)
    offset = params["shift"] - mean * factor
    return x * _along_channels(factor, x) + _along_channels(offset, x), statistics


def _along_channels(values: Array, x: Array) -> Array:
    return values.reshape(-1, *(1,) * (x.ndim - 1))
