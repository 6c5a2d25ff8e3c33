"""Gradients of gradients, as of a loss that takes a gradient within (SAM), by XLA's layers and by the kernels."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

from fedgen.core.contract import Batch
from fedgen.core.losses import supervised
from fedgen.models import MODELS, dispatch, layers
from helpers import each

KEY = jax.random.key(0)
RADIUS = 0.05  # how far SAM goes along the gradient
Loss = Callable[[Any], jax.Array]


def _dot(a: Any, b: Any) -> jax.Array:
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _like(tree: Any) -> Any:
    """Random numbers in the shape of a tree."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(structure, [jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)])


def _curvature(loss: Loss, at: Any) -> Any:
    """The Hessian times a vector, forward over reverse."""
    return jax.jvp(jax.grad(loss), (at,), (_like(at),))[1]


def _curvature_in_reverse(loss: Loss, at: Any) -> Any:
    """The same, reverse over reverse."""
    return jax.grad(lambda at: _dot(jax.grad(loss)(at), _like(at)))(at)


def _assert_second_derivatives_are_those_of(theirs: Loss, ours: Loss, at: Any) -> None:
    @jax.jit
    def computed(at: Any) -> tuple:
        return _curvature(theirs, at), _curvature(ours, at), _curvature_in_reverse(ours, at)

    expected, forward, reverse = computed(at)
    _assert_close(forward, expected)
    _assert_close(reverse, expected)


def _assert_close(ours: Any, theirs: Any, relative: float = 2e-5) -> None:
    """Each array as a whole: single entries may be small differences of large numbers."""
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.linalg.norm(a - b) <= relative * np.linalg.norm(b)


# The same layers as written in a textbook, whose derivatives are all JAX's own.
def _textbook_conv(weight: jax.Array, x: jax.Array, stride: int) -> jax.Array:
    layout = ("CHWN", "OHWI", "CHWN")
    window = weight.reshape(len(weight), 3, 3, -1)
    return jax.lax.conv_general_dilated(x, window, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=layout)


def _textbook_norm(norm: dict, x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    scale, shift = (jnp.expand_dims(norm[name], axes) for name in ("scale", "shift"))
    return scale * (x - mean) / jnp.sqrt(variance + layers.EPSILON) + shift


def _norm(channels: int) -> dict:
    return {"scale": jnp.linspace(0.5, 2, channels), "shift": jnp.linspace(-1, 1, channels)}


@pytest.mark.parametrize("outputs", [3, 10])  # 10: more than the nine rows of patches
def test_second_derivatives_of_a_normalised_convolution(outputs: int) -> None:
    statistics = layers.batch_norm_init(outputs)[1]
    at = layers.conv_init(KEY, 1, outputs), _norm(outputs), jax.random.normal(KEY, (1, 5, 4, 3))

    def ours(at: tuple) -> jax.Array:
        return jnp.sum(layers.conv_norm(*at[:2], statistics, at[2], True)[0] ** 3)

    def theirs(at: tuple) -> jax.Array:
        conv, norm, x = at
        y = _textbook_conv(conv["weight"], x, 2) + 0 * conv["bias"][:, None, None, None]
        return jnp.sum(_textbook_norm(norm, y, (1, 2, 3)) ** 3)

    _assert_second_derivatives_are_those_of(theirs, ours, at)


def test_second_derivatives_of_the_generators_layers() -> None:
    at = _norm(5), layers.linear_init(KEY, 5, 2), jax.random.normal(KEY, (4, 5))
    statistics = layers.batch_norm_init(5)[1]

    def ours(at: tuple) -> jax.Array:
        h, _ = layers.batch_norm(at[0], statistics, at[2], True, channel=1)
        return jnp.sum(layers.linear_to_fewer(at[1], h) ** 3)

    def theirs(at: tuple) -> jax.Array:
        return jnp.sum((_textbook_norm(at[0], at[2], (0,)) @ at[1]["weight"] + at[1]["bias"]) ** 3)

    _assert_second_derivatives_are_those_of(theirs, ours, at)


@pytest.mark.parametrize("by", ["XLA", "kernels"])
def test_running_statistics_have_no_derivative_of_any_order(by: str, request: pytest.FixtureRequest) -> None:
    _compute_by(by, request)
    conv, (norm, statistics) = layers.conv_init(KEY, 1, 2), layers.batch_norm_init(2)

    def trained(x: jax.Array) -> tuple:
        y, updated = dispatch.conv_norm_relu([conv], [norm], [statistics], x, True)
        return jnp.sum(y**3), updated

    def of_statistics(x: jax.Array) -> jax.Array:
        return sum(jnp.sum(a**2) for a in jax.tree.leaves(trained(x)[1]))

    def of_statistics_beside_a_gradient(x: jax.Array) -> jax.Array:
        return sum(jnp.sum(a**2) for a in jax.tree.leaves(jax.grad(trained, has_aux=True)(x)[1]))

    x = jax.random.normal(KEY, (1, 3, 4, 2))
    for loss in (of_statistics, of_statistics_beside_a_gradient):
        np.testing.assert_array_equal(jax.jit(jax.grad(loss))(x), 0)


def _compute_by(name: str, request: pytest.FixtureRequest) -> None:
    if name == "kernels":
        request.getfixturevalue("kernels")
    else:
        request.getfixturevalue("monkeypatch").setattr(dispatch, "kernels_run_here", lambda: False)


@pytest.mark.slow
@pytest.mark.usefixtures("kernels")
def test_second_derivatives_by_kernels_are_those_of_the_layers() -> None:
    """Of several channels from the start and forward over reverse, unlike the CNN's below; for two clients at once."""
    statistics = layers.batch_norm_init(3)[1]
    conv = jax.vmap(lambda key: layers.conv_init(key, 2, 3))(jax.random.split(KEY, 2))
    linear = jax.vmap(lambda key: layers.linear_init(key, 12, 2))(jax.random.split(KEY, 2))
    norm = jax.tree.map(lambda a: jnp.stack([a, a + 0.1]), _norm(3))
    at = conv, norm, linear, jax.random.normal(KEY, (2, 2, 3, 4, 5))

    def loss(by: Any, at: tuple) -> jax.Array:
        conv, norm, linear, x = at
        h, _ = by.conv_norm_relu([conv], [norm], [statistics], x, True)
        return jnp.sum(by.linear_of_columns(linear, h.reshape(-1, h.shape[-1]), True) ** 3)

    def computed(by: Any) -> Any:
        return jax.jit(jax.vmap(lambda at: _curvature(lambda at: loss(by, at), at)))

    assert "pallas_call" in str(jax.make_jaxpr(computed(dispatch))(at))
    _assert_close(computed(dispatch)(at), computed(layers)(at))


@pytest.mark.parametrize("by", each(["XLA", "kernels"], quick=["XLA"]))
def test_the_gradient_of_sam_on_the_cnn_is_torchs(by: str, request: pytest.FixtureRequest) -> None:
    """That of loss(p + radius * g / |g|) with g the loss's gradient at p, differentiated too; PyTorch in float64."""
    _compute_by(by, request)
    model = MODELS["cnn"]((9, 8, 1), 3, channels=(2, 3), latent=4)
    params, statistics = model.init(KEY)
    x, y = jax.random.normal(KEY, (5, 9, 8, 1)), np.arange(5) % 3

    def loss(params: Any) -> jax.Array:
        return supervised(model, params, statistics, Batch(x, y))[0]

    def sam(params: Any) -> jax.Array:
        gradient = jax.grad(loss)(params)
        length = jnp.sqrt(_dot(gradient, gradient))
        return loss(jax.tree.map(lambda p, g: p + RADIUS * g / length, params, gradient))

    ours = jax.jit(jax.grad(sam))(params)
    leaves, structure = jax.tree.flatten(params)
    there = [torch.tensor(np.asarray(leaf, np.float64), requires_grad=True) for leaf in leaves]
    images = torch.tensor(np.asarray(x, np.float64)).permute(0, 3, 1, 2)

    def their_loss(leaves: list[torch.Tensor]) -> torch.Tensor:
        extractor, predictor = jax.tree.unflatten(structure, leaves)
        h = images
        for conv, norm in ((extractor[f"conv{i}"], extractor[f"norm{i}"]) for i in range(2)):
            window = conv["weight"].reshape(len(conv["weight"]), 3, 3, -1).permute(0, 3, 1, 2)
            h = functional.conv2d(h, window, conv["bias"], stride=2, padding=1)
            h = torch.relu(functional.batch_norm(h, None, None, norm["scale"], norm["shift"], training=True))
        z = h.flatten(1) @ extractor["linear"]["weight"] + extractor["linear"]["bias"]
        return functional.cross_entropy(z @ predictor["weight"] + predictor["bias"], torch.tensor(y))

    gradient = torch.autograd.grad(their_loss(there), there, create_graph=True)
    length = torch.sqrt(sum((g**2).sum() for g in gradient))
    moved = [p + RADIUS * g / length for p, g in zip(there, gradient, strict=True)]
    theirs = torch.autograd.grad(their_loss(moved), there)
    for a, b in zip(jax.tree.leaves(ours), theirs, strict=True):
        assert np.linalg.norm(a - b.numpy()) <= 2e-5 * max(np.linalg.norm(b), 1e-6)
