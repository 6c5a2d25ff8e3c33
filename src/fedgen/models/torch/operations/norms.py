"""Normalisation. All of it is computed in float32, and the result has the type of x."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array
from fedgen.models.torch.registry import operation


def _per_channel(a: Array, x: Array) -> Array:
    """[channel] for x [batch, channel, ...]."""
    return a.astype(jnp.float32).reshape(-1, *(1,) * (x.ndim - 2))


def _scaled(y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else y * weight.astype(jnp.float32)
    return y if bias is None else y + bias.astype(jnp.float32)


def _normalise(x: Array, axes: tuple[int, ...], eps: float) -> tuple[Array, Array, Array]:
    """x normalised along axes, the mean and 1 / the standard deviation, which keep the axes."""
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide, axes, keepdims=True)
    centred = wide - mean
    inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axes, keepdims=True) + eps)
    return centred * inverse, mean, inverse


@operation("aten._native_batch_norm_legit_no_training.default")
def batch_norm_by_running_values(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, variance: Array, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """BatchNorm in evaluation mode."""
    factor = jax.lax.rsqrt(variance.astype(jnp.float32) + eps)
    factor = factor if weight is None else factor * weight.astype(jnp.float32)
    offset = -mean.astype(jnp.float32) * factor
    offset = offset if bias is None else offset + bias.astype(jnp.float32)
    y = x.astype(jnp.float32) * _per_channel(factor, x) + _per_channel(offset, x)
    nothing = jnp.zeros(0, jnp.float32)  # what PyTorch keeps for its own derivative
    return y.astype(x.dtype), nothing, nothing


@operation("aten._native_batch_norm_legit.no_stats")
def batch_norm_by_batch(
    x: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """BatchNorm by the batch's own mean and (biased) variance; InstanceNorm is one, too."""
    y, mean, inverse = _normalise(x, (0, *range(2, x.ndim)), eps)
    y = y if weight is None else y * _per_channel(weight, x)
    y = y if bias is None else y + _per_channel(bias, x)
    return y.astype(x.dtype), mean.reshape(-1), inverse.reshape(-1)


@operation("aten._native_batch_norm_legit_functional.default")
def batch_norm(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, variance: Array, training: bool, momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array, Array]:  # fmt: skip
    """BatchNorm in training, and the running mean and (unbiased) variance after it."""
    if not training:
        return *batch_norm_by_running_values(x, weight, bias, mean, variance, momentum, eps), mean, variance
    y, batch_mean, inverse = batch_norm_by_batch(x, weight, bias, training, momentum, eps)
    n = x.size // x.shape[1]
    # A difference: rounding alone could make it negative.
    unbiased = jnp.maximum(1 / jnp.square(inverse) - eps, 0.0) * (n / max(n - 1, 1))
    mean, variance = jax.lax.stop_gradient(
        ((1 - momentum) * mean + momentum * batch_mean, (1 - momentum) * variance + momentum * unbiased)
    )
    return y, batch_mean, inverse, mean, variance


@operation("aten.native_layer_norm.default")
def layer_norm(
    x: Array, shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """LayerNorm over the last axes."""
    y, mean, inverse = _normalise(x, tuple(range(x.ndim - len(shape), x.ndim)), eps)
    return _scaled(y, weight, bias).astype(x.dtype), mean, inverse


@operation("aten.native_group_norm.default")
def group_norm(
    x: Array, weight: Array | None, bias: Array | None, batch: int, channels: int, pixels: int, groups: int, eps: float
) -> tuple[Array, Array, Array]:
    """GroupNorm: the channels of a group, and their pixels, together."""
    y, mean, inverse = _normalise(x.reshape(x.shape[0], groups, -1), (2,), eps)
    y = y.reshape(x.shape)
    y = y if weight is None else y * _per_channel(weight, x)
    y = y if bias is None else y + _per_channel(bias, x)
    return y.astype(x.dtype), mean[..., 0], inverse[..., 0]


@operation("aten.rms_norm.default")
def rms_norm(x: Array, shape: Sequence[int], weight: Array | None = None, eps: float | None = None) -> Array:
    """x divided by its root mean square over the last axes."""
    wide = x.astype(jnp.float32)
    square = jnp.mean(jnp.square(wide), tuple(range(x.ndim - len(shape), x.ndim)), keepdims=True)
    small = float(jnp.finfo(jnp.float32).eps) if eps is None else eps
    return _scaled(wide * jax.lax.rsqrt(square + small), weight, None).astype(x.dtype)
