"""What a network computes between its convolutions, in another order of axes, is what it would be in its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedgen.models.channels_last import by_winograd, by_xla
from fedgen.models.convolution import Window
from fedgen.models.laid import squares_by_pivot
from fedgen.models.rewrite import How, rewritten

KEY = jax.random.key(4)
ORDERS = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW")}
Layer = Callable[[jax.Array, int], jax.Array]  # of an activation whose channels are this axis


def _by_mean_of_squares(x: jax.Array, channel: int) -> jax.Array:
    """As Flax has it."""
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    mean = jnp.mean(x, others)
    variance = jnp.maximum(0.0, jnp.mean(lax.square(x), others) - lax.square(mean))
    return (x - jnp.expand_dims(mean, others)) * lax.rsqrt(jnp.expand_dims(variance, others) + 1e-5) + 0.3


def _by_centred_squares(x: jax.Array, channel: int) -> jax.Array:
    """As PyTorch's operations have it here."""
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    centred = x - jnp.mean(x, others, keepdims=True)
    return 0.1 - centred * lax.rsqrt(jnp.mean(jnp.square(centred), others, keepdims=True) + 1e-5) / 2


def _by_samples(x: jax.Array, channel: int) -> jax.Array:
    """As Equinox has it: places first, then a sum over the samples of a `vmap`."""

    def one(x: jax.Array) -> jax.Array:
        places = tuple(axis for axis in range(x.ndim) if axis != channel - 1)
        mean = jnp.expand_dims(lax.pmean(jnp.mean(x, places), "batch"), places)
        variance = lax.pmean(jnp.mean((x - mean) * (x - mean), places), "batch")
        return (x - mean) / jnp.sqrt(jnp.expand_dims(variance, places) + 1e-5)

    return jax.vmap(one, axis_name="batch")(x)


def _squeezed(x: jax.Array, channel: int) -> jax.Array:
    return jnp.squeeze(-jnp.tanh(x[:, None]), 1) + jnp.max(x, (2, 1), keepdims=True) + jnp.sum(x, 0)


LAYERS: list[Layer] = [_by_mean_of_squares, _by_centred_squares, _by_samples, _squeezed]


@pytest.mark.parametrize("how", ["patches", "xla", "winograd"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_between_convolutions(layer: Layer, order: str, how: How) -> None:
    shape = {"N": 4, "H": 6, "W": 7, "C": 3}
    x = jax.random.normal(KEY, [shape[axis] for axis in order])
    weights = [0.3 * jax.random.normal(key, (3, 3, 3, 3)) for key in jax.random.split(KEY)]
    bias = 2 + jax.random.normal(KEY, [3 if axis == "C" else 1 for axis in order])

    def conv(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=ORDERS[order])

    def network(x: jax.Array, weights: list[jax.Array], bias: jax.Array) -> jax.Array:
        first = jax.nn.relu(layer(conv(x, weights[0]) + bias, order.index("C")))
        return (first + 2 * layer(conv(first, weights[1]), order.index("C"))).reshape(len(x), -1)

    def found(f: Callable[..., jax.Array]) -> tuple:
        def loss(*at: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(f(*at)))

        def length(*at: jax.Array) -> jax.Array:  # as of a gradient within a loss
            return sum(jnp.sum(jnp.square(a)) for a in jax.tree.leaves(jax.grad(loss, (0, 1))(*at)))

        at = x, weights, bias
        return f(*at), jax.grad(loss, (0, 1, 2))(*at), jax.grad(length, 1)(*at)

    theirs, ours = jax.jit(lambda: (found(network), found(rewritten(network, lambda _: how))))()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=2e-4 * (1 + np.abs(a).max())), theirs, ours
    )


def test_a_batch_norm_between_convolutions_is_two_sums() -> None:
    """And nothing is transposed between them."""
    x, weight = jax.random.normal(KEY, (8, 9, 9, 5)), jax.random.normal(KEY, (3, 3, 5, 5))

    def conv(x: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=ORDERS["NHWC"])

    def network(x: jax.Array) -> jax.Array:
        return conv(jax.nn.relu(_by_mean_of_squares(conv(x), 3)))

    text = str(jax.make_jaxpr(rewritten(network, lambda _: "patches"))(x))
    assert text.count("name=_total\n") + text.count("name=_total]") <= 2  # the sum, and the sum for that of squares
    wide = [line for line in text.splitlines() if "= transpose[" in line and "[5,9,9,8]" in line]
    assert len(wide) <= 1, wide  # the network's input


@pytest.mark.parametrize("padding", [((1, 1), (1, 1)), ((0, 2), (3, 0)), ((-1, 1), (0, 0))])
def test_winograd(padding: tuple[tuple[int, int], ...]) -> None:
    window = Window((3, 3), (1, 1), padding, (1, 1))
    x, weight = jax.random.normal(KEY, (3, 7, 8, 5)), jax.random.normal(KEY, (3, 3, 5, 4))

    def found(f: Callable[..., jax.Array]) -> tuple:
        return f(x, weight, window), jax.grad(lambda *at: jnp.sum(jnp.sin(f(*at, window))), (0, 1))(x, weight)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found(by_xla), found(by_winograd))


@pytest.mark.parametrize("channel", [0, 2])
def test_squares_by_a_pivot(channel: int) -> None:
    x = 100 + np.random.default_rng(0).normal(size=(5, 300, 5)).astype(np.float32)
    others = tuple(axis for axis in range(3) if axis != channel)
    exact = x.astype(np.float64)
    squares = np.square(exact - exact.mean(others, keepdims=True)).sum(others)
    found = squares_by_pivot(jnp.asarray(x), jnp.asarray(exact.mean(others), jnp.float32), channel)
    np.testing.assert_allclose(found, squares, rtol=1e-4)
