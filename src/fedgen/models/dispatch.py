"""Who computes a layer here: XLA (`fedgen.models.layers`) or the kernels for NVIDIA GPUs (`fedgen.models.nvidia`).

In training on a GPU the kernels take the layers that are small enough for them; XLA takes everything else.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Tree
from fedgen.models import layers

SMALL = 64  # the most that the kernels multiply at once: 9 * in and 4 * out of a convolution; batch and out


def conv_norm_relu(
    convs: Sequence[Tree], norms: Sequence[Tree], statistics: Sequence[Tree], x: Array, train: bool
) -> tuple[Array, list[Tree]]:
    """`layers.conv_norm` of stride 2 and ReLU, one layer after the other; also the updated statistics."""
    channels = [len(x), *(len(conv["weight"]) for conv in convs)]
    small = all(itertools.starmap(_are_few, itertools.pairwise(channels)))
    if not (train and small and x.dtype == jnp.float32 and kernels_run_here()):
        return layers.conv_norm_relu(convs, norms, statistics, x, train)
    from fedgen.models.nvidia.layers import stack  # only here: Pallas takes time and memory to import

    weights = tuple(conv["weight"] for conv in convs)
    scales, shifts = (tuple(norm[name] for norm in norms) for name in ("scale", "shift"))
    y, moments = stack(weights, scales, shifts, x)
    updated = [
        layers.running_statistics(old, mean + conv["bias"], unbiased)
        for conv, old, (mean, unbiased) in zip(convs, statistics, moments, strict=True)
    ]
    return y, updated


def takes_convolution(x: Array, fan_out: int) -> bool:
    """Whether `convolve` is for x [in, h, w, sample], where it is trained."""
    known = isinstance(x.shape[-1], int)  # an export may leave the number of samples open
    return known and _are_few(len(x), fan_out) and x.dtype == jnp.float32 and kernels_run_here()


def convolve(weight: Array, x: Array) -> Array:
    """3x3 convolution of stride 2 and padding 1 by the kernels: weight [out, 9 * in], x [in, h, w, sample]."""
    from fedgen.models.nvidia import layers as by_kernels

    return by_kernels.convolve(weight, x)


def gradients_of_convolution(weight: Array, x: Array, gradient: Array) -> tuple[Array, Array]:
    """Those of the weight and of x, from that of its output."""
    from fedgen.models.nvidia import layers as by_kernels

    return by_kernels.gradients_of_convolution(weight, x, gradient)


def _are_few(fan_in: int, fan_out: int) -> bool:
    return 9 * fan_in <= SMALL and 4 * fan_out <= SMALL


def linear_of_columns(params: Tree, x: Array, train: bool) -> Array:
    """x [in, sample] -> [sample, out]."""
    # In this order: an export may leave the number of samples open.
    if not (train and x.dtype == jnp.float32 and max(x.shape[1], params["weight"].shape[1]) <= SMALL):
        return layers.linear_of_columns(params, x, train)
    if not kernels_run_here():
        return layers.linear_of_columns(params, x, train)
    from fedgen.models.nvidia.layers import product

    return product(x, params["weight"]) + params["bias"]


def kernels_run_here() -> bool:
    """Whether JAX computes on an NVIDIA GPU since Ampere and can compile the kernels for it."""
    device = jax.local_devices()[0]
    try:
        capable = device.platform == "gpu" and float(device.compute_capability) >= 8
    except (AttributeError, ValueError):  # other makers name their capabilities otherwise
        return False
    return capable and _kernels_compile(device.device_kind)


@cache
def _kernels_compile(device_kind: str) -> bool:
    """Tried once with one of them.

    Not every JAX knows every GPU, and what it calls experimental it may take away; XLA's own kernels then do the work.
    """

    def compiles() -> bool:
        try:
            from fedgen.models.nvidia import kernels

            shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
            jax.jit(kernels.gradients_of_product).lower(shape, shape, shape).compile()
        except Exception:  # whatever it is, the kernels cannot be used
            return False
        return True

    with ThreadPoolExecutor(1) as elsewhere:  # here a model is being traced, for some mesh perhaps
        return elsewhere.submit(compiles).result()
