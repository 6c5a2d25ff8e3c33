"""The arithmetic of a network's products: float32, TF32 or bfloat16.

Whatever it is, parameters, their updates, BatchNorm statistics and losses are float32, and so is all that algorithms
and the server compute.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Model, Tree
from fedgen.models.sums import sums_in_float32

Precision = Literal["float32", "tf32", "bfloat16"]


def at_precision(model: Model, precision: Precision) -> Model:
    """The same network with its products in this arithmetic."""
    if precision == "float32":
        return model
    return _with_tf32(model) if precision == "tf32" else _with_bfloat16(model)


def _with_tf32(model: Model) -> Model:
    """Products of float32 numbers with 10 bits of mantissa, where the device can; the gradient's products likewise."""

    def extract(extractor: Tree, statistics: Tree, x: Array, train: bool, *key: Array) -> tuple[Array, Tree]:
        with jax.default_matmul_precision("tensorfloat32"):
            return model.extract(extractor, statistics, x, train, *key)

    def predict(predictor: Tree, z: Array) -> Array:
        with jax.default_matmul_precision("tensorfloat32"):
            return model.predict(predictor, z)

    return model._replace(extract=extract, predict=predict)


def _with_bfloat16(model: Model) -> Model:
    """All that the network computes from parameters and inputs that are rounded to bfloat16."""

    def extract(extractor: Tree, statistics: Tree, x: Array, train: bool, *key: Array) -> tuple[Array, Tree]:
        with jax.default_matmul_precision("default"):
            run = sums_in_float32(lambda e, s, x, *key: model.extract(e, s, x, train, *key))
            z, updated = run(_rounded(extractor), statistics, _rounded(x), *key)
        # An average that the network itself keeps in bfloat16 would stand still.
        updated = jax.tree.map(lambda new, old: new.astype(old.dtype), updated, statistics)
        return z.astype(jnp.float32), updated

    def predict(predictor: Tree, z: Array) -> Array:
        with jax.default_matmul_precision("default"):
            logits: Array = sums_in_float32(model.predict)(_rounded(predictor), _rounded(z))
            return logits.astype(jnp.float32)

    return model._replace(extract=extract, predict=predict)


def _rounded(tree: Tree) -> Tree:
    return jax.tree.map(lambda a: a.astype(jnp.bfloat16) if a.dtype == jnp.float32 else a, tree)
