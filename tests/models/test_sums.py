"""In the gradient of a network in bfloat16 sums are made in float32, wherever in it they are."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.models.sums import sums_in_float32

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (64, 8, 16, 16)).astype(jnp.bfloat16)
WEIGHT = jax.random.normal(jax.random.key(1), (8,))


def plain(bias: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.maximum(x + bias[:, None, None], 0)


def compiled(bias: jax.Array, x: jax.Array) -> jax.Array:
    return jax.jit(plain)(bias, x)


def kept(bias: jax.Array, x: jax.Array) -> jax.Array:
    return jax.checkpoint(plain)(bias, x)


def step_by_step(bias: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda carry, part: (carry, plain(bias, part)), 0, x.reshape(2, 32, 8, 16, 16))[1]


def chosen(bias: jax.Array, x: jax.Array) -> jax.Array:
    return jax.lax.cond(jnp.sum(x) < 1e9, plain, lambda bias, x: x, bias, x)


def gradient(f: Callable[..., jax.Array], dtype: jnp.dtype) -> np.ndarray:
    def loss(bias: jax.Array) -> jax.Array:
        y = f(bias.astype(dtype), X.astype(dtype))
        y = jnp.mean(y.astype(jnp.float32).reshape(64, 8, -1), axis=(0, 2))
        return jnp.sum(WEIGHT * y)

    return np.asarray(jax.jit(jax.grad(loss))(jnp.zeros(8)))


@pytest.mark.parametrize("f", [plain, compiled, kept, step_by_step, chosen])
def test_a_bias_learns_from_all_samples_and_places(f: Callable[..., jax.Array]) -> None:
    exact = gradient(plain, jnp.float32)
    np.testing.assert_allclose(gradient(sums_in_float32(f), jnp.bfloat16), exact, rtol=0.01)
    if jax.default_backend() == "cpu":  # what it is for: here 16,384 numbers are added up to about 256 of them
        assert np.max(np.abs(gradient(f, jnp.bfloat16) / exact - 1)) > 0.1


def test_with_words_and_keys_under_vmap_and_differentiated_twice() -> None:
    def f(table: jax.Array, words: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.sum(table[words] ** 3 * jax.random.normal(key, (4, 2), table.dtype), axis=1)

    table, words = jax.random.normal(KEY, (3, 5, 2)), jax.random.randint(KEY, (3, 4), 0, 5)
    keys = jax.random.split(KEY, 3)

    def loss(how: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
        return lambda table, words, key: jnp.sum(how(table, words, key) ** 2)

    def twice(how: Callable[..., jax.Array]) -> jax.Array:
        slope = jax.grad(lambda *given: jnp.sum(jax.grad(loss(how))(*given) ** 2))
        return jax.vmap(slope)(table, words, keys)

    np.testing.assert_allclose(twice(sums_in_float32(f)), twice(f), rtol=1e-5)
