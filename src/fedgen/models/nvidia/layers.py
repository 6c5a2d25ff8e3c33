"""Layers by the kernels, with their gradients by kernels."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array
from fedgen.models.layers import EPSILON
from fedgen.models.nvidia import derivatives
from fedgen.models.nvidia.kernels import Slopes, passed_by_relu

PARTS = 4  # of a long sum, each a separate matrix product: more of them run at once


class Moments(NamedTuple):
    """Mean and unbiased variance of a convolution's output, [channel]."""

    mean: Array
    unbiased: Array


class _Layer(NamedTuple):
    """What a layer leaves for its gradient."""

    output: Array  # of the convolution
    mean: Array
    inverse: Array  # of the standard deviation
    factor: Array  # BatchNorm as factor * output + offset
    offset: Array


Arrays = tuple[Array, ...]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def stack(
    weights: Arrays, scales: Arrays, shifts: Arrays, x: Array, interpret: bool = False
) -> tuple[Array, tuple[Moments, ...]]:
    """relu(scale * normalised(conv(x)) + shift), one layer after the other: [in, h, w, sample] -> [out, ...].

    What is kept from one convolution to the next, and for the gradient, is its bare output: the next one normalises
    as it reads. The moments are for the running statistics; they are not differentiated.
    """
    return _forward(weights, scales, shifts, x, interpret)[0]


def _forward(
    weights: Arrays, scales: Arrays, shifts: Arrays, x: Array, interpret: bool
) -> tuple[tuple[Array, tuple[Moments, ...]], tuple[Arrays, Array, list[_Layer]]]:
    layers: list[_Layer] = []
    moments: list[Moments] = []
    before, h = None, x
    for weight, scale, shift in zip(weights, scales, shifts, strict=True):
        h = derivatives.convolve(weight, h, before, interpret)
        n = h.size // len(h)
        mean, variance = _moments(h)
        moments.append(Moments(mean, variance * (n / max(n - 1, 1))))
        inverse = jax.lax.rsqrt(variance + EPSILON)
        before = scale * inverse, shift - mean * scale * inverse
        layers.append(_Layer(h, mean, inverse, *before))
    # Without the barrier XLA would compute it again for each product that it goes into.
    y = jax.lax.optimization_barrier(jax.nn.relu(_by_channel(layers[-1].factor) * h + _by_channel(layers[-1].offset)))
    # Without it a second derivative would know the moments, which the first one does not.
    return (y, jax.lax.stop_gradient(tuple(moments))), (weights, x, layers)


def _backward(
    interpret: bool,
    saved: tuple[Arrays, Array, list[_Layer]],
    gradients: tuple[Array, tuple[Moments, ...]],
) -> tuple[Arrays, Arrays, Arrays, Array]:
    weights, x, layers = saved
    gradient, _ = gradients
    of_weights: list[Array] = []
    of_scales: list[Array] = []
    of_shifts: list[Array] = []
    for i in reversed(range(len(layers))):
        layer = layers[i]
        h = layer.output
        passed = passed_by_relu(gradient, h, _by_channel(layer.factor), _by_channel(layer.offset))
        total, slope = _sum(passed), _sum(passed * (h - _by_channel(layer.mean)))
        n = h.size // len(h)
        curvature = -layer.factor * slope * layer.inverse**2 / n
        level = -layer.factor * total / n - curvature * layer.mean
        slopes = Slopes(gradient, h, layer.factor, layer.offset, curvature, level)
        source, before = (layers[i - 1].output, (layers[i - 1].factor, layers[i - 1].offset)) if i else (x, None)
        of_weight, of_output = derivatives.gradient_of_weight(source, before, slopes, interpret)
        of_weights.insert(0, of_weight)
        of_scales.insert(0, slope * layer.inverse)
        of_shifts.insert(0, total)
        gradient = derivatives.gradient_of_input(weights[i], of_output, source.shape[1:3], interpret)
    return tuple(of_weights), tuple(of_scales), tuple(of_shifts), gradient


stack.defvjp(_forward, _backward)


def _moments(h: Array) -> tuple[Array, Array]:
    """Mean and biased variance in one pass.

    The sums are of what h is more than its mean at one place, so that a large mean costs no digits.
    """
    pivot = jnp.mean(h[:, h.shape[1] // 2, h.shape[2] // 2], axis=-1)
    more = h - _by_channel(pivot)
    n = h.size // len(h)
    mean = _sum(more) / n
    return pivot + mean, jnp.maximum(_sum(jnp.square(more)) / n - jnp.square(mean), 0.0)


def _sum(h: Array) -> Array:
    return jnp.sum(h, axis=(1, 2, 3))


def _by_channel(value: Array) -> Array:
    return value[:, None, None, None]


def convolve(weight: Array, x: Array, interpret: bool = False) -> Array:
    """3x3 convolution of stride 2 and padding 1 alone: weight [out, 9 * in], x [in, h, w, sample] -> [out, ...]."""
    return derivatives.convolve(weight, x, None, interpret)


def gradients_of_convolution(weight: Array, x: Array, gradient: Array, interpret: bool = False) -> tuple[Array, Array]:
    """From the gradient of its output, those of its weight and of x."""
    of_weight, of_output = derivatives.gradient_of_weight(x, None, gradient, interpret)
    return of_weight, derivatives.gradient_of_input(weight, of_output, x.shape[1:3], interpret)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def product(h: Array, weight: Array, interpret: bool = False) -> Array:
    """h.T @ weight for h [in, sample], weight [in, out]."""
    return _in_parts(h, weight)


def _in_parts(h: Array, weight: Array) -> Array:
    if len(h) % PARTS:
        return h.T @ weight
    h, weight = (a.reshape(PARTS, -1, a.shape[1]) for a in (h, weight))
    return jnp.einsum("pis,pio->pso", h, weight).sum(0)


product.defvjp(
    lambda h, weight, _: (_in_parts(h, weight), (h, weight)),
    lambda interpret, saved, gradient: derivatives.gradients_of_product(saved[0], saved[1], gradient, interpret),
)
