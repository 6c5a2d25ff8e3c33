"""FedGen's generator G(noise, label) -> z: one hidden layer with BatchNorm (supplement, generator table)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Tree
from fedgen.core.streams import stream
from fedgen.models import layers


class Generator(NamedTuple):
    """The generator's parameters and the running statistics of its BatchNorm."""

    params: Tree
    statistics: Tree


def generator_init(key: Array, classes: int, noise: int, hidden: int, latent: int) -> Generator:
    """A fresh generator of the given widths."""
    first, second = jax.random.split(key)
    norm, statistics = layers.batch_norm_init(hidden)
    params = {
        "hidden": layers.linear_init(first, noise + classes, hidden),
        "norm": norm,
        "output": layers.linear_init(second, hidden, latent),
    }
    return Generator(params, statistics)


def generate(generator: Generator, noise: Array, labels: Array, classes: int, train: bool) -> tuple[Array, Tree]:
    """Latent vectors for noise [sample, d] and labels [sample]; also the updated statistics."""
    x = jnp.concatenate([noise, jax.nn.one_hot(labels, classes, dtype=noise.dtype)], axis=1)
    h = layers.linear(generator.params["hidden"], x)
    h, statistics = layers.batch_norm(generator.params["norm"], generator.statistics, h, train, channel=1)
    return layers.linear_to_fewer(generator.params["output"], jax.nn.relu(h)), statistics


def draw_noise(key: Array, shape: tuple[int, int], distribution: str) -> Array:
    """Noise from N(0, 1), or from U[0, 1) as in the authors' code."""
    draw = jax.random.normal if distribution == "normal" else jax.random.uniform
    return draw(stream(key, "noise"), shape)


def draw_labels(key: Array, samples: int, distribution: Array) -> Array:
    """Labels from a distribution [label]; one of probability 0 is never drawn."""
    total = jnp.cumsum(distribution)
    u = jax.random.uniform(stream(key, "labels"), (samples, 1)) * total[-1]
    u = jnp.minimum(u, jnp.nextafter(total[-1], jnp.float32(0)))  # rounding must not reach past the last label
    return jnp.sum(u >= total, axis=1)
