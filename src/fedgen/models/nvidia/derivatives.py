"""The kernels as functions that JAX can differentiate, any number of times and in either mode.

JAX cannot derive anything from a kernel. So each one here has the derivatives of the same mathematics computed by XLA;
they are needed only where a loss has a gradient within, for `layers` calls kernels for the first gradient too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from fedgen.core.contract import Array
from fedgen.models import layers
from fedgen.models.nvidia import kernels
from fedgen.models.nvidia.kernels import Slopes

Before = tuple[Array, Array] | None  # factor and offset of the BatchNorm, followed by ReLU, before a convolution


def convolve(weight: Array, x: Array, before: Before, interpret: bool = False) -> Array:
    """`kernels.convolve`."""
    return _with_derivatives(partial(kernels.convolve, interpret=interpret), _convolve)(weight, x, before)


def gradient_of_weight(
    x: Array, before: Before, slopes: Slopes | Array, interpret: bool = False
) -> tuple[Array, Array]:
    """`kernels.gradient_of_weight`."""
    kernel = partial(kernels.gradient_of_weight, interpret=interpret)
    return _with_derivatives(kernel, _gradient_of_weight)(x, before, slopes)


def gradient_of_input(weight: Array, of_output: Array, size: tuple[int, ...], interpret: bool = False) -> Array:
    """`kernels.gradient_of_input`."""
    kernel = partial(kernels.gradient_of_input, size=size, interpret=interpret)
    return _with_derivatives(kernel, partial(layers.gradient_of_input, size=size))(weight, of_output)


def gradients_of_product(h: Array, weight: Array, gradient: Array, interpret: bool = False) -> tuple[Array, Array]:
    """`kernels.gradients_of_product`."""
    kernel = partial(kernels.gradients_of_product, interpret=interpret)
    return _with_derivatives(kernel, _gradients_of_product)(h, weight, gradient)


def _with_derivatives(kernel: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, with the derivatives of `plain`, which computes the same."""
    computed = jax.custom_jvp(kernel)

    @computed.defjvp
    def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
        return computed(*primals), jax.jvp(plain, primals, tangents)[1]

    return computed


def _convolve(weight: Array, x: Array, before: Before) -> Array:
    rows, columns = layers.halved(x.shape[1:3])
    return (weight @ _patches(x, before)).reshape(-1, rows, columns, x.shape[3])


def _gradient_of_weight(x: Array, before: Before, slopes: Slopes | Array) -> tuple[Array, Array]:
    of_output = slopes.of_output() if isinstance(slopes, Slopes) else slopes
    return of_output.reshape(len(of_output), -1) @ _patches(x, before).T, of_output


def _gradients_of_product(h: Array, weight: Array, gradient: Array) -> tuple[Array, Array]:
    return weight @ gradient.T, h @ gradient


def _patches(x: Array, before: Before) -> Array:
    if before is not None:
        factor, offset = (a[:, None, None, None] for a in before)
        x = jax.nn.relu(factor * x + offset)
    return layers.patches(x)
