"""A network's convolutions and pools, replaced, give what XLA's give: values and gradients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedgen.core.contract import Model, Params
from fedgen.models import autotune
from fedgen.models.convolution import Window
from fedgen.models.rewrite import Convolution, How, has_any, rewritten, rewritten_model

KEY = jax.random.key(3)
SIZES = {"N": 3, "C": 4, "D": 4, "H": 7, "W": 9, "O": 8}
KERNEL = {"D": 2, "H": 3, "W": 2}


def _patches(_: Convolution) -> How:
    return "patches"


def _assert_same(f: Callable[..., jax.Array], *at: jax.Array) -> None:
    """Values, gradients, and the gradient of a gradient's length, of f and of f rewritten."""

    def of(f: Callable[..., jax.Array]) -> tuple:
        def loss(*at: jax.Array) -> tuple[jax.Array, jax.Array]:
            y = f(*at)
            return jnp.sum(jnp.sin(y)), y

        both = tuple(range(len(at)))
        return jax.value_and_grad(loss, both, has_aux=True)(*at)

    theirs, ours = jax.jit(lambda *at: (of(f), of(rewritten(f, _patches))))(*at)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), theirs, ours)


def _is_rewritten(f: Callable[..., jax.Array], *at: jax.Array) -> bool:
    names = ("conv_general_dilated", "reduce_window_max", "reduce_window_sum")
    assert has_any(jax.make_jaxpr(f)(*at).jaxpr, names)
    return not has_any(jax.make_jaxpr(rewritten(f, _patches))(*at).jaxpr, names)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("channels", "padding", "size", "by_kernels"),
    [
        ((1, 5), [(1, 1), (1, 1)], (7, 10), True),
        ((3, 4), [(1, 1), (1, 0)], (7, 8), True),
        ((3, 4), [(0, 1), (0, 1)], (6, 8), False),  # as many outputs, of other places
        ((3, 4), [(1, 1), (1, 2)], (6, 8), False),  # one more output
        ((8, 4), [(1, 1), (1, 1)], (6, 8), False),  # too many channels
        ((3, 17), [(1, 1), (1, 1)], (6, 8), False),
    ],
)
def test_small_convolutions_of_any_network_are_trained_by_the_kernels(
    channels: tuple[int, int], padding: list[tuple[int, int]], size: tuple[int, int], by_kernels: bool
) -> None:
    x = jax.random.normal(KEY, (2, 3, *size, channels[0]))  # of two clients
    weight = jax.random.normal(jax.random.key(4), (2, 3, 3, *channels))

    def f(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, weight, (2, 2), padding, (1, 1), (1, 1), ("NHWC", "HWIO", "NHWC"))

    def loss(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda x, weight: jnp.sum(jnp.sin(f(x, weight)))

    theirs, ours = jax.vmap(f), jax.vmap(rewritten(f, _patches))
    trained = jax.value_and_grad(loss(ours), (0, 1))
    assert ("pallas_call" in str(jax.make_jaxpr(trained)(x, weight))) == by_kernels
    assert "pallas_call" not in str(jax.make_jaxpr(ours)(x, weight)), "only training does"
    expected = jax.jit(jax.value_and_grad(loss(theirs), (0, 1)))(x, weight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), expected, trained(x, weight))


@pytest.mark.usefixtures("kernels")
def test_a_gradient_within_a_loss_goes_through_the_kernels() -> None:
    x, weight = jax.random.normal(KEY, (2, 6, 5, 2)), jax.random.normal(jax.random.key(4), (3, 3, 2, 3))

    def f(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, weight, (2, 2), [(1, 1)] * 2, (1, 1), (1, 1), ("NHWC", "HWIO", "NHWC"))

    def slope(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        inner = jax.grad(lambda x, weight: jnp.sum(jnp.sin(f(x, weight))), (0, 1))
        return lambda x, weight: sum(jnp.sum(g**2) for g in inner(x, weight))

    ours = jax.grad(slope(rewritten(f, _patches)), (0, 1))
    assert "pallas_call" in str(jax.make_jaxpr(ours)(x, weight))
    expected, found = jax.grad(slope(f), (0, 1))(x, weight), ours(x, weight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3), expected, found)


@pytest.mark.parametrize(
    ("orders", "stride", "padding", "dilation", "between", "groups"),
    [
        (("NHWC", "HWIO", "NHWC"), 1, "SAME", 1, 1, 1),
        (("NHWC", "HWIO", "NHWC"), 2, [(1, 1), (1, 1)], 1, 1, 1),
        (("NCHW", "OIHW", "NCHW"), 3, [(2, 0), (0, 3)], 1, 1, 1),
        (("NCHW", "OIHW", "NCHW"), 2, "VALID", 2, 1, 1),
        (("NCHW", "OIHW", "NHWC"), 1, [(-1, 2), (0, -2)], 1, 1, 1),  # the output in another order; cut off
        (("CHWN", "OHWI", "CHWN"), 2, "SAME", 1, 1, 2),
        (("NHWC", "HWIO", "NHWC"), 2, "SAME", 1, 1, 4),  # depthwise, twice as many outputs
        (("NCHW", "OIHW", "NCHW"), 1, [(2, 1), (1, 2)], 1, 2, 1),  # a transposed convolution
        (("NCH", "OIH", "NCH"), 2, [(1, 0)], 2, 1, 1),
        (("NHC", "HIO", "NHC"), 1, "SAME", 1, 1, 2),
        (("NDHWC", "DHWIO", "NDHWC"), 2, "SAME", 1, 1, 1),
    ],
)
def test_convolutions_of_every_kind(
    orders: tuple[str, str, str],
    stride: int,
    padding: str | list[tuple[int, int]],
    dilation: int,
    between: int,
    groups: int,
) -> None:
    dimensions = len(orders[0]) - 2
    x = jax.random.normal(KEY, [SIZES[axis] for axis in orders[0]])
    sizes = {**KERNEL, "I": SIZES["C"] // groups, "O": SIZES["O"]}
    weight = jax.random.normal(jax.random.key(4), [sizes[axis] for axis in orders[1]])

    def f(x: jax.Array, weight: jax.Array) -> jax.Array:
        steps = (stride,) * dimensions, padding, (between,) * dimensions, (dilation,) * dimensions
        return lax.conv_general_dilated(x, weight, *steps, orders, groups)

    assert _is_rewritten(f, x, weight)
    _assert_same(f, x, weight)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_bfloat16_with_sums_in_float32(groups: int) -> None:
    """The values are those of float32 sums; the gradients have the inputs' type."""
    x = jax.random.normal(KEY, (3, 7, 9, 4)).astype(jnp.bfloat16)
    weight = jax.random.normal(jax.random.key(4), (3, 2, 4 // groups, 8)).astype(jnp.bfloat16)

    def f(x: jax.Array, weight: jax.Array) -> jax.Array:
        orders = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(
            x, weight, (1, 1), "SAME", None, None, orders, groups, preferred_element_type=jnp.float32
        )

    assert _is_rewritten(f, x, weight)
    ours = jax.jit(rewritten(f, _patches))(x, weight)
    wide = x.astype(jnp.float32), weight.astype(jnp.float32)
    assert ours.dtype == jnp.float32
    np.testing.assert_allclose(ours, f(*wide), rtol=1e-5, atol=1e-5)
    gradients = jax.jit(jax.grad(lambda *at: jnp.sum(jnp.sin(rewritten(f, _patches)(*at))), (0, 1)))(x, weight)
    exact = jax.grad(lambda *at: jnp.sum(jnp.sin(f(*at))), (0, 1))(*wide)
    for found, wanted in zip(gradients, exact, strict=True):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_allclose(
            found.astype(jnp.float32), wanted, rtol=0.05, atol=0.02 * float(jnp.abs(wanted).max())
        )


def test_a_gradient_within_a_loss() -> None:
    """What SAM and meta-learning differentiate: a gradient, once more, through a strided convolution and a pool."""
    x, weight = jax.random.normal(KEY, (2, 6, 6, 2)), jax.random.normal(KEY, (3, 3, 2, 3))

    def f(weight: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(x, weight, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.sum(lax.reduce_window(y**3, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 1, 1, 1), "VALID"))

    def twice(f: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return jax.grad(lambda w: jnp.sum(jax.grad(f)(w) ** 2))

    def without_pool(weight: jax.Array) -> jax.Array:  # XLA's pool has no second derivative
        y = lax.conv_general_dilated(x, weight, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 3
        views = [y[:, i : i + 2, j : j + 2] for i in range(2) for j in range(2)]
        return jnp.sum(jnp.max(jnp.stack(views), axis=0))

    np.testing.assert_allclose(
        jax.jit(twice(rewritten(f, _patches)))(weight), jax.jit(twice(without_pool))(weight), rtol=1e-4
    )


@pytest.mark.parametrize(
    ("window", "strides", "padding"), [((1, 2, 2, 1), (1, 2, 2, 1), "VALID"), ((1, 3, 3, 1), (1, 2, 2, 1), "SAME")]
)
def test_pools(window: tuple[int, ...], strides: tuple[int, ...], padding: str) -> None:
    x = jnp.round(2 * jax.random.normal(KEY, (2, 7, 8, 3)))  # with many equal maxima

    def largest(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)

    def total(x: jax.Array) -> jax.Array:
        return lax.reduce_window(x, 0.0, lax.add, window, strides, padding)

    for pool in (largest, total):
        assert _is_rewritten(pool, x)
        _assert_same(pool, x)
    broken = x.at[0, 0, 0, 0].set(jnp.nan)
    np.testing.assert_array_equal(rewritten(largest, _patches)(broken), largest(broken))  # a NaN is not hidden


def test_convolutions_within_loops_branches_and_compiled_functions() -> None:
    x, weight = jax.random.normal(KEY, (2, 5, 5, 3)), jax.random.normal(KEY, (3, 3, 3, 3)) / 5

    def conv(x: jax.Array, weight: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def f(x: jax.Array, weight: jax.Array) -> jax.Array:
        x = jax.jit(conv)(x, weight)
        x = jax.checkpoint(lambda x: jnp.tanh(conv(x, weight)))(x)
        x, ys = lax.scan(lambda x, scale: (conv(x, scale * weight), jnp.sum(x)), x, jnp.array([1.0, 0.5]))
        return lax.cond(jnp.sum(ys) > 0, lambda x: conv(x, weight), lambda x: 2 * x, x)

    assert _is_rewritten(f, x, weight)
    _assert_same(f, x, weight)


def test_a_network_without_convolutions_is_called_as_it_is() -> None:
    calls = []

    def f(x: jax.Array) -> jax.Array:
        calls.append(type(x))
        return x**2

    x = jnp.ones(3)
    rewritten(f, _patches)(x)
    assert calls[-1] is type(x)  # not a traced value


def test_a_rewritten_network_still_gets_its_key() -> None:
    def extract(params: jax.Array, statistics: tuple, x: jax.Array, train: bool, key: jax.Array | None = None) -> tuple:
        y = lax.conv_general_dilated(x, params, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = y if key is None else y * jax.random.bernoulli(key, 0.5, y.shape)
        return y.reshape(len(x), -1), statistics

    model = Model(lambda key: (Params(jnp.ones((1, 1, 1, 1)), ()), ()), extract, lambda params, z: z, random=True)
    both = [m.extract_in_training(jnp.ones((1, 1, 1, 1)), (), jnp.ones((2, 3, 3, 1)), KEY)[0]
            for m in (model, rewritten_model(model, _patches))]  # fmt: skip
    np.testing.assert_array_equal(*both)
    assert 0 < both[0].mean() < 1


def _form(channels: int, groups: int = 1) -> Convolution:
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), groups)
    return Convolution((channels, 8, 8, 4), (3, 3, channels // groups, 8), "float32", window)


def test_the_rule_on_a_cpu() -> None:
    assert autotune.by_rule(_form(3)) == autotune.by_rule(_form(64, groups=64)) == "patches"
    assert autotune.by_rule(_form(64)) == "xla"
    many = _form(256)._replace(weight=(3, 3, 256, 256))
    assert autotune.by_rule(many) == "winograd"
    assert autotune.by_rule(many._replace(dtype="bfloat16")) == "xla"


def test_what_a_setting_says_is_done() -> None:
    assert autotune.chooser("patches", 1e12, 10, 4)(_form(64)) == "patches"
    assert autotune.chooser("xla", 1e12, 10, 4)(_form(3)) == "xla"
    assert autotune.chooser("auto", 1, 10, 4)(_form(64)) == "xla"


def test_a_long_run_measures_once_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    def faster(form: Convolution, usual: How, clients: int) -> bool:
        asked.append(form)
        return usual != "patches"

    monkeypatch.setattr(autotune, "_patches_are_faster", faster)
    choose = autotune.chooser("auto", 1e12, 10, 4)
    other = _form(64)._replace(x=(64, 8, 8, 2))
    assert choose(other) == "xla", "a batch of another size is not what is trained"
    assert not asked
    assert [choose(_form(64)), choose(_form(64)), choose(_form(3))] == ["patches", "patches", "xla"]
    assert asked == [_form(64), _form(3)]
    assert choose(other) == "patches", "what is known holds for all sizes"
    kept = tmp_path / "fedgen" / "convolutions.json"
    assert sorted(json.loads(kept.read_text()).values()) == [False, True]
    kept.write_text("{")  # damaged: measured anew
    assert choose(_form(64)) == "patches"
    assert len(asked) == 3


def test_the_measurement_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ways of which one is made a hundred times slower, the other is chosen; what fails leaves the rule."""
    form = _form(4)
    usual = autotune.convolve

    def slower(x: jax.Array, weight: jax.Array, window: Window) -> jax.Array:
        again = lax.scan(
            lambda y, _: (usual(x + 1e-9 * y[0], weight, window), None), usual(x, weight, window), None, 300
        )
        return again[0]

    def failing(x: jax.Array, weight: jax.Array, window: Window) -> jax.Array:
        raise MemoryError

    monkeypatch.setattr(autotune, "convolve", slower)
    assert not autotune._patches_are_faster(form, "patches", 1)
    monkeypatch.setattr(autotune, "convolve", failing)
    assert autotune._patches_are_faster(form, "patches", 1)
    assert not autotune._patches_are_faster(form, "xla", 1)


@pytest.mark.parametrize("usual", ["patches", "xla", "winograd"])
def test_who_pays_for_another_order_of_axes(usual: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the rule's choice, whose neighbours have the same order: what the other is given has been transposed."""
    happened = []

    def noting(name: str) -> Callable[..., jax.Array]:
        original = getattr(autotune, name)

        def noted(*at: Any) -> jax.Array:
            happened.append(name)
            return original(*at)

        return noted

    for name in ("convolve", "by_xla", "by_winograd", "_swapped"):
        monkeypatch.setattr(autotune, name, noting(name))
    form = _form(4)
    autotune._patches_are_faster(form, usual, 1)
    before = dict(zip(happened[1:], happened, strict=False))  # of each what happened before it
    chosen = {"patches": "convolve", "xla": "by_xla", "winograd": "by_winograd"}[usual]
    other = "by_xla" if usual == "patches" else "convolve"
    assert before[other] == "_swapped"
    assert before.get(chosen) != "_swapped"
