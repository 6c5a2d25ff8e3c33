"""A plug-in for FedGen: an algorithm, a network and a dataset, each one function.

The first line of a function's docstring is what `fedgen list` shows. Keyword-only parameters are its options
(`--set fedavgm.server_momentum=0.5`, `--set model.hidden=8`, `--set dataset.samples=500`); their types are checked.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedgen
from fedgen.algorithms.fedavg import Parts, Upload, fedavg
from fedgen.algorithms.wrap import With, wrap


class Velocity(NamedTuple):
    """The running mean of the server's updates."""

    velocity: fedgen.Params


def fedavgm(task: fedgen.Task, federation: fedgen.Federation, *, server_momentum: float = 0.9) -> fedgen.Algorithm:
    """FedAvg with momentum at the server (FedAvgM, Hsu et al. 2019)."""
    base = fedavg(task, federation)

    def server_init(key: jax.Array) -> Velocity:
        return Velocity(jax.tree.map(jnp.zeros_like, base.server_init(key).params))

    def server_update(server: With, average: Parts, uploads: Upload, round: fedgen.Round) -> tuple[With, dict]:
        before = server.base.params
        step = jax.tree.map(jnp.subtract, average.params, before)
        velocity = jax.tree.map(lambda v, s: server_momentum * v + s, server.own.velocity, step)
        return With(average._replace(params=jax.tree.map(jnp.add, before, velocity)), Velocity(velocity)), {}

    return wrap(base, server_init=server_init, server_update=server_update)


def tanh(sample: Sequence[int], classes: int, *, hidden: int = 16) -> fedgen.Model:
    """One hidden layer with tanh."""
    inputs = math.prod(sample)

    def init(key: jax.Array) -> tuple[fedgen.Params, tuple[()]]:
        first, second = jax.random.split(key)
        extractor = jax.random.normal(first, (inputs, hidden)) / inputs**0.5
        return fedgen.Params(extractor, jax.random.normal(second, (hidden, classes)) / hidden**0.5), ()

    return fedgen.Model(
        init=init,
        extract=lambda weights, statistics, x, train: (jnp.tanh(x.reshape(len(x), -1) @ weights), statistics),
        predict=lambda weights, z: z @ weights,
    )


def rings(*, samples: int = 1000, seed: int = 0) -> fedgen.Dataset:
    """Points of a plane on three rings around the origin; nothing is downloaded.

    A dataset whose files the user has takes a parameter `data_dir` as well, the value of --data-dir.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, samples)
    angle, radius = rng.uniform(0, 2 * np.pi, samples), 1 + labels + rng.normal(0, 0.2, samples)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
    cut = samples * 4 // 5
    return fedgen.from_arrays(points[:cut], labels[:cut], points[cut:], labels[cut:], name="rings")
