"""TF32 and bfloat16 are for the network's products alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.core.contract import Batch
from fedgen.core.losses import supervised
from fedgen.models import layers
from fedgen.models.classifiers import cnn
from fedgen.models.precision import at_precision
from fedgen.models.resnet import resnet

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (16, 8, 8, 1))
Y = jnp.arange(16) % 4


@pytest.mark.slow
@pytest.mark.parametrize("build", [cnn, lambda sample, classes: resnet(sample, classes, widths=(4, 6), blocks=1)])
def test_bfloat16_keeps_parameters_statistics_and_losses_in_float32(build: object) -> None:
    exact = build((8, 8, 1), 4)
    rounded = at_precision(exact, "bfloat16")
    params, statistics = exact.init(KEY)

    def value(model: object) -> tuple:
        def loss(params: object) -> tuple:
            found = supervised(model, params, statistics, Batch(X, Y))
            return found.value, found

        return jax.value_and_grad(loss, has_aux=True)(params)

    ((_, found), gradient), ((_, reference), _) = jax.jit(lambda: (value(rounded), value(exact)))()
    for leaf in jax.tree.leaves((found, gradient)):
        assert leaf.dtype == jnp.float32
    error = float(jnp.max(jnp.abs(found.z - reference.z)) / jnp.max(jnp.abs(reference.z)))
    assert 1e-4 < error < 5e-2  # it was rounded, but not by more than bfloat16's 8 bits explain
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.03, atol=0.01), found.memo, reference.memo)


def test_bfloat16_sums_the_statistics_in_float32() -> None:
    """A sum of 4,096 ones in bfloat16 would be 256, and a running mean that moves by a thousandth would not move."""
    x = jnp.ones((1, 4096), jnp.bfloat16).at[0, 0].set(2.0)
    start = {"mean": jnp.ones(1), "variance": jnp.ones(1)}
    norm = {"scale": jnp.ones(1, jnp.bfloat16), "shift": jnp.zeros(1, jnp.bfloat16)}
    y, updated = layers.batch_norm(norm, start, x, True)
    np.testing.assert_allclose(updated["mean"], 1 + 0.1 / 4096, rtol=1e-6)
    assert y.dtype == jnp.bfloat16


def test_tf32_is_asked_for_in_forward_and_backward_products() -> None:
    model = at_precision(cnn((8, 8, 1), 4), "tf32")
    params, statistics = model.init(KEY)
    with jax.default_matmul_precision("highest"):
        text = str(jax.make_jaxpr(jax.grad(lambda p: supervised(model, p, statistics, Batch(X, Y)).value))(params))
        server = str(jax.make_jaxpr(lambda a: a @ a)(jnp.ones((2, 2))))
    assert text.count("Precision.HIGH, Precision.HIGH)") >= 8  # JAX's name for it, in each of two operands
    sums = text.count("Precision.HIGHEST, Precision.HIGHEST)")  # those of BatchNorm, where they are products
    assert sums == text.count("dot_general[") - text.count("Precision.HIGH, Precision.HIGH)") <= 4
    assert "HIGHEST" in server


def test_float32_is_the_network_itself() -> None:
    model = cnn((8, 8, 1), 4)
    assert at_precision(model, "float32") is model
