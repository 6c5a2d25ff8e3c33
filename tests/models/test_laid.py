"""What a network computes between its convolutions, in another order of axes, is what it would be in its own."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from fedgen.models import channels_last
from fedgen.models.channels_last import BY_FOUR, BY_TWO, Edges, Tiling, by_winograd, by_xla, tiling_of
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


def _direct(padding: Edges, *at: jax.Array) -> list[np.ndarray]:
    """A 3x3 convolution of x and weight in float64, and of its output times `gradient` the gradients to both."""
    x, weight, gradient = (np.asarray(a, np.float64) for a in at)
    around = tuple((max(a, 0), max(b, 0)) for a, b in padding)
    inside = [slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape[1:3], padding, strict=True)]
    padded = np.pad(x[:, inside[0], inside[1]], ((0, 0), *around, (0, 0)))
    y, of_padded, of_weight = np.zeros(gradient.shape), np.zeros(padded.shape), np.zeros(weight.shape)
    for i, j in np.ndindex(3, 3):
        seen = np.s_[:, i : i + y.shape[1], j : j + y.shape[2]]
        y += padded[seen] @ weight[i, j]
        of_padded[seen] += gradient @ weight[i, j].T
        of_weight[i, j] = np.tensordot(padded[seen], gradient, ((0, 1, 2), (0, 1, 2)))
    kept = [slice(a, n - b) for n, (a, b) in zip(padded.shape[1:3], around, strict=True)]
    of_x = np.zeros(x.shape)
    of_x[:, inside[0], inside[1]] = of_padded[:, kept[0], kept[1]]
    return [y, of_x, of_weight]


@pytest.mark.parametrize("padding", [((1, 1), (1, 1)), ((0, 2), (3, 0)), ((-1, 1), (0, 0)), ((0, 0), (2, 2))])
@pytest.mark.parametrize("tiling", [BY_TWO, BY_FOUR], ids=["by two", "by four"])
@pytest.mark.parametrize("size", [(7, 8), (4, 4), (8, 8), (13, 10), (3, 18)])
def test_winograd(size: tuple[int, int], tiling: Tiling, padding: Edges, monkeypatch: pytest.MonkeyPatch) -> None:
    """As exact as a float32 convolution may be: beside one in float64."""
    monkeypatch.setattr(channels_last, "tiling_of", lambda rows, columns: tiling)
    window = Window((3, 3), (1, 1), padding, (1, 1))
    keys = jax.random.split(KEY, 3)
    x, weight = jax.random.normal(keys[0], (3, *size, 20)), jax.random.normal(keys[1], (3, 3, 20, 16))
    y, back = jax.vjp(lambda x, weight: by_winograd(x, weight, window), x, weight)
    gradient = jax.random.normal(keys[2], y.shape)
    for exact, found in zip(_direct(padding, x, weight, gradient), [y, *back(gradient)], strict=True):
        assert exact.shape == found.shape
        assert np.linalg.norm(found - exact) <= 3e-6 * np.linalg.norm(exact)
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-5 * np.abs(exact).max(initial=0))


def test_winograds_tiles_are_large_where_that_saves_products() -> None:
    assert all(tiling_of(n, n) is BY_FOUR for n in (7, 8, 14, 16, 28, 32, 56))
    assert all(tiling_of(n, n) is BY_TWO for n in (0, 1, 2, 4, 5, 6))  # the weights alone cost more than twice as much
    assert tiling_of(1, 40) is BY_TWO


def test_winograds_large_tiles_within_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts, derived twice, and of an open number of samples."""
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1))
    x, weight = jax.random.normal(KEY, (6, 9, 8, 3)), jax.random.normal(KEY, (3, 3, 3, 5))
    assert tiling_of(9, 8) is BY_FOUR
    at_once = by_winograd(x, weight, window)
    (batch,) = export.symbolic_shape("batch")
    shape = jax.ShapeDtypeStruct((batch, 9, 8, 3), jnp.float32)
    exported = export.export(jax.jit(lambda x: by_winograd(x, weight, window)))(shape)
    np.testing.assert_allclose(exported.call(x), at_once, rtol=1e-5, atol=1e-5)

    def found(f: Callable[..., jax.Array]) -> tuple:
        def loss(*at: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(f(*at, window)))

        def length(*at: jax.Array) -> jax.Array:
            return sum(jnp.sum(jnp.square(a)) for a in jax.grad(loss, (0, 1))(*at))

        return f(x, weight, window), jax.grad(loss, (0, 1))(x, weight), jax.grad(length, (0, 1))(x, weight)

    monkeypatch.setattr(channels_last, "CACHED", 2**8)
    both = jax.jit(lambda: (found(by_xla), found(by_winograd)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-4 * np.abs(a).max()), *both)


def test_weights_in_bfloat16_learn_from_samples_that_several_share() -> None:
    """Of such small shapes XLA on a CPU has no product of bfloat16 that is float32."""
    window = Window((2, 2), (1, 1), ((0, 0), (0, 0)), (1, 1), 1, None)
    x = jax.random.normal(KEY, (2, 3, 3, 1)).astype(jnp.bfloat16)
    weights = jax.random.normal(jax.random.key(5), (2, 2, 2, 1, 1)).astype(jnp.bfloat16)

    def gradients(x: jax.Array, weights: jax.Array) -> jax.Array:
        return jax.jit(jax.vmap(jax.grad(lambda w: jnp.sum(by_xla(x, w, window) ** 2).astype(jnp.float32))))(weights)

    exact = gradients(x.astype(jnp.float32), weights.astype(jnp.float32))
    np.testing.assert_allclose(gradients(x, weights).astype(jnp.float32), exact, rtol=0, atol=0.1)


@pytest.mark.parametrize("channel", [0, 2])
def test_squares_by_a_pivot(channel: int) -> None:
    x = 100 + np.random.default_rng(0).normal(size=(5, 300, 5)).astype(np.float32)
    others = tuple(axis for axis in range(3) if axis != channel)
    exact = x.astype(np.float64)
    squares = np.square(exact - exact.mean(others, keepdims=True)).sum(others)
    found = squares_by_pivot(jnp.asarray(x), jnp.asarray(exact.mean(others), jnp.float32), channel)
    np.testing.assert_allclose(found, squares, rtol=1e-4)
