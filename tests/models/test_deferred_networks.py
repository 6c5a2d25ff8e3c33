"""Networks that are unkind to the rewriting: values and derivatives are those of the network as it is."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from fedgen.models import channels_last
from fedgen.models.rewrite import Convolution, How, rewritten

KEY = jax.random.key(5)
ORDERS = ("NHWC", "HWIO", "NHWC")
X = jax.random.normal(KEY, (4, 6, 4, 3))
W = 0.4 * jax.random.normal(jax.random.key(6), (3, 3, 3, 3))
Network = Callable[[jax.Array, jax.Array], jax.Array]


def conv(x: jax.Array, weight: jax.Array, **how: Any) -> jax.Array:
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ORDERS, **how}
    return lax.conv_general_dilated(x, weight, **options)


def batch_norm(x: jax.Array) -> jax.Array:
    centred = x - jnp.mean(x, (0, 1, 2))
    return centred * lax.rsqrt(jnp.mean(jnp.square(centred), (0, 1, 2)) + 1e-3)


def alternating() -> Callable[[Convolution], How]:
    """Each convolution in another order of axes than the one before."""
    kinds: Iterator[How] = iter(["patches", "xla", "winograd"] * 9)
    return lambda _: next(kinds)


def assert_same(network: Callable[..., jax.Array], *at: jax.Array, how: str = "alternating", **tolerance: Any) -> None:
    """Values and gradients, of the network and of what becomes of it."""

    def found(f: Callable[..., jax.Array]) -> tuple:
        return f(*at), jax.grad(lambda *at: jnp.sum(jnp.sin(f(*at))), tuple(range(len(at))))(*at)

    choose = alternating() if how == "alternating" else lambda _: how
    ours = jax.jit(lambda: found(rewritten(network, choose)))()
    theirs = jax.jit(lambda: found(network))()
    near = {"rtol": 1e-3, "atol": 1e-4, **tolerance}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **near), theirs, ours)


def by_place(rule: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """The identity, but for a derivative that looks at where an element is."""

    @jax.custom_jvp
    def same(x: jax.Array) -> jax.Array:
        return x * 1.0

    same.defjvp(lambda at, along: (same(*at), rule(*along)))
    return same


def squeeze_excite(x: jax.Array) -> jax.Array:
    return x * jax.nn.sigmoid(jnp.mean(x, (1, 2), keepdims=True) / 2)


MASK = jax.random.normal(jax.random.key(7), X.shape)
NETWORKS: dict[str, Network] = {
    "a square into a convolution": lambda x, w: conv(conv(x, w) ** 2, w),
    "a norm of squares": lambda x, w: (y := conv(x, w)) * lax.rsqrt(1 + conv(jnp.square(y), jnp.abs(w))),
    "a derivative by channel": lambda x, w: by_place(lambda t: t * jnp.arange(1.0, 4.0))(conv(x, w)),
    "a derivative by the mean": lambda x, w: by_place(lambda t: t - jnp.mean(t, (1, 2), keepdims=True))(conv(x, w)),
    "a derivative by a mask": lambda x, w: by_place(lambda t: t * MASK)(conv(x, w)),
    "relu": lambda x, w: conv(jax.nn.relu(conv(x, w)), w),
    "relu6 and silu": lambda x, w: conv(jax.nn.relu6(4 * conv(x, w)) + jax.nn.silu(conv(x, w)), w),
    "residual": lambda x, w: jax.nn.relu(batch_norm(conv(conv(x, w), w)) + conv(x, w)) + x,
    "norms of norms": lambda x, w: batch_norm(3 * batch_norm(batch_norm(conv(x, w)) + w[0, 0, 0]) + w[0, 1, 1]) - 0.7,
    "deviations": lambda x, w: jnp.std(2 * (conv(x, w) - w[0, 0, 0]) + w[0, 0, 1], (0, 1, 2)),
    "squeeze and excite": lambda x, w: conv(squeeze_excite(conv(x, w)), w),
    "divided by activations": lambda x, w: 1 / (3 + jnp.square(conv(x, w))) + 2.0 / (5 + jnp.abs(conv(x, w))),
    "softmax": lambda x, w: conv(jax.nn.softmax(conv(x, w), axis=-1), w),
    "pools": lambda x, w: conv(
        lax.reduce_window(conv(x, w), -jnp.inf, lax.max, (1, 2, 1, 1), (1, 2, 1, 1), "VALID"), w
    ),
    "over samples": lambda x, w: conv(x, w) / (2 + jnp.mean(jnp.square(conv(x, w)), 0)) + jnp.mean(conv(x, w), (0, 1)),
    "parts by channel and sample": lambda x, w: jnp.sum(conv(x, w), (1, 2)) / 5 + jnp.sum(conv(x, w), (1, 3)).sum(),
}  # fmt: skip


@pytest.mark.parametrize("how", ["patches", "xla", "alternating"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_it_computes_is_the_same(name: str, how: str) -> None:
    assert_same(NETWORKS[name], X, W, how=how)


@pytest.mark.parametrize(
    "kind",
    [
        {"window_strides": (2, 1)},
        {"window_strides": (2, 3), "padding": [(2, 0), (1, 4)]},
        {"rhs_dilation": (2, 1)},
        {"padding": [(-1, 3), (0, -1)]},
        {"window_strides": (2, 2), "rhs_dilation": (1, 2)},
        {"size": (1, 1)},
        {"size": (1, 1), "window_strides": (2, 2), "padding": "VALID"},
        {"size": (3, 3)},
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["xla", "winograd"])
def test_channels_last_in_parts(kind: dict[str, Any], how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """With so little cache that nothing is computed at once."""
    monkeypatch.setattr(channels_last, "CACHED", 2**8)
    monkeypatch.setattr(channels_last, "PATCHES_CACHED", 2**8)
    options = dict(kind)
    size = options.pop("size", (3, 3))
    if how == "winograd" and (size != (3, 3) or {"window_strides", "rhs_dilation"} & set(options)):
        how = "xla"  # it is for plain windows of 3x3
    weight = jax.random.normal(KEY, (*size, 3, 5))
    assert_same(lambda x, w: conv(x, w, **options), X, weight, how=how)


def test_weights_in_bfloat16_are_added_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_last, "PATCHES_CACHED", 2**8)
    x, w = jax.random.normal(KEY, (64, 8, 8, 3)).astype(jnp.bfloat16), W.astype(jnp.bfloat16)

    def gradient(f: Network, *at: jax.Array) -> jax.Array:
        return jax.grad(lambda w: jnp.sum(f(at[0], w).astype(jnp.float32)))(at[1]).astype(jnp.float32)

    exact = gradient(conv, x.astype(jnp.float32), w.astype(jnp.float32))
    found = gradient(rewritten(conv, lambda _: "xla"), x, w)
    assert float(jnp.abs(found - exact).max() / jnp.abs(exact).max()) < 2**-8, "one rounding"


@pytest.mark.parametrize("how", ["patches", "xla", "winograd"])
def test_derivatives_of_derivatives(how: How) -> None:
    """Backwards of backwards through a loop within the network, and forwards of backwards."""

    def looped(x: jax.Array, w: jax.Array) -> jax.Array:
        return lax.scan(lambda c, s: (jnp.tanh(batch_norm(conv(c, w * s))), None), x, jnp.arange(1.0, 3.0))[0]

    def found(f: Network, network: Network) -> tuple:
        def loss(w: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(f(X, w)))

        backwards = jax.grad(lambda w: jnp.sum(jnp.square(jax.grad(loss)(w))))(W)
        if network is looped or how == "winograd":  # JAX does not differentiate its rule forwards
            return backwards, backwards
        return backwards, jax.jvp(jax.grad(loss), (W,), (jnp.ones_like(W),))[1]

    for network in (looped, lambda x, w: conv(jax.nn.relu(batch_norm(conv(x, w))), w)):
        ours = jax.jit(lambda network=network: found(rewritten(network, lambda _: how), network))()
        theirs = jax.jit(lambda network=network: found(network, network))()
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-3 * float(jnp.abs(a).max())), theirs, ours
        )


def test_types_stay_what_they_were() -> None:
    def counted(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        positive = conv(x, w) > 0
        few = jnp.sum(positive.astype(jnp.uint8), (1, 2), dtype=jnp.uint8)
        return few, jnp.all(positive, (1, 2)), jnp.max(conv(x, w).astype(jnp.int32), (0, 1))

    theirs = counted(X, W)
    for how in ("patches", "xla"):
        ours = rewritten(counted, lambda _, how=how: how)(X, W)
        assert [a.dtype for a in ours] == [a.dtype for a in theirs]
        jax.tree.map(np.testing.assert_array_equal, theirs, ours)


@pytest.mark.parametrize("how", ["patches", "xla", "winograd"])
def test_nothing_comes_of_an_image_smaller_than_the_window(how: How) -> None:
    shape = rewritten(lambda x, w: conv(x, w, padding="VALID"), lambda _: how)(X[:, :2, :2], W).shape
    assert shape == (4, 0, 0, 3)


@pytest.mark.parametrize("how", ["patches", "xla"])
def test_in_fortrans_order(how: How) -> None:
    """Where all axes are as long, so that the shape does not tell."""
    x, w = jax.random.normal(KEY, (4, 4, 4)), jax.random.normal(KEY, (3, 4, 4))

    def network(x: jax.Array, w: jax.Array) -> jax.Array:
        y = conv(x, w, window_strides=(1,), dimension_numbers=("NHC", "HIO", "NHC"))
        return lax.reshape(y, (4, 4, 4), (2, 0, 1))

    assert_same(network, x, w, how=how)


def test_four_dimensions_of_places() -> None:
    x, w = jax.random.normal(KEY, (2, 3, 3, 3, 3, 2)), jax.random.normal(KEY, (2, 2, 2, 2, 2, 3))
    numbers = lax.ConvDimensionNumbers((0, 5, 1, 2, 3, 4), (5, 4, 0, 1, 2, 3), (0, 5, 1, 2, 3, 4))
    assert_same(lambda x, w: conv(x, w, window_strides=(1,) * 4, dimension_numbers=numbers), x, w, how="xla")


@pytest.mark.parametrize("how", ["patches", "xla", "winograd"])
def test_the_number_of_samples_may_be_left_open(how: How) -> None:
    (batch,) = export.symbolic_shape("batch")
    w = jax.random.normal(KEY, (3, 3, 3, 3))

    def network(x: jax.Array) -> jax.Array:
        y = conv(conv(x, w), w)
        return jax.nn.relu(y - jnp.mean(y, (0, 1, 2)))

    exported = export.export(jax.jit(rewritten(network, lambda _: how)))(
        jax.ShapeDtypeStruct((batch, 6, 4, 3), jnp.float32)
    )
    np.testing.assert_allclose(exported.call(X), network(X), rtol=1e-3, atol=1e-4)
