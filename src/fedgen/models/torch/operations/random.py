"""Operations that draw at random; each draw gets its own key."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Scalar
from fedgen.models.torch.registry import operation

Draw = Callable[[], Array]


@operation("aten.native_dropout.default", random=True)
def dropout(x: Array, p: float, train: bool | None = None, *, draw: Draw) -> tuple[Array, Array]:
    """Each number is 0 with probability p, and the others are divided by 1 - p; also which ones are kept."""
    if train is False or p == 0:
        return x, jnp.ones(x.shape, bool)
    if p == 1:
        return jnp.zeros_like(x), jnp.zeros(x.shape, bool)
    kept = jax.random.bernoulli(draw(), 1 - p, x.shape)
    return jnp.where(kept, x / (1 - p), 0).astype(x.dtype), kept


@operation("aten.bernoulli.default", "aten.bernoulli.p", "aten.bernoulli.Tensor", random=True)
def bernoulli(x: Array, p: Any = None, *, draw: Draw) -> Array:
    """1 with probability p, or with that in x itself, and else 0."""
    return jax.random.bernoulli(draw(), x if p is None else p, x.shape).astype(x.dtype)


def _floating(dtype: Any) -> Any:
    return jnp.float32 if dtype is None else dtype


@operation("aten.rand.default", random=True)
def uniform(shape: Sequence[int], dtype: Any = None, *, draw: Draw) -> Array:
    """Uniform in [0, 1)."""
    return jax.random.uniform(draw(), tuple(shape), _floating(dtype))


@operation("aten.randn.default", random=True)
def normal(shape: Sequence[int], dtype: Any = None, *, draw: Draw) -> Array:
    """Normal with mean 0 and variance 1."""
    return jax.random.normal(draw(), tuple(shape), _floating(dtype))


@operation("aten.rand_like.default", random=True)
def uniform_like(x: Array, dtype: Any = None, *, draw: Draw) -> Array:
    """Uniform in [0, 1), in the form of an array."""
    return uniform(x.shape, x.dtype if dtype is None else dtype, draw=draw)


@operation("aten.randn_like.default", random=True)
def normal_like(x: Array, dtype: Any = None, *, draw: Draw) -> Array:
    """Normal with mean 0 and variance 1, in the form of an array."""
    return normal(x.shape, x.dtype if dtype is None else dtype, draw=draw)


@operation("aten.uniform.default", random=True)
def uniform_between(x: Array, low: Scalar = 0.0, high: Scalar = 1.0, *, draw: Draw) -> Array:
    """Uniform between bounds, in the form of an array."""
    return low + (high - low) * uniform_like(x, draw=draw)
