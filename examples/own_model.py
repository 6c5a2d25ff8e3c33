"""Your own arrays and your own JAX network: about fifteen lines."""

import jax
import jax.numpy as jnp
import numpy as np

import fedgen

rng = np.random.default_rng(0)
labels = rng.integers(0, 3, 900)
points = rng.normal(size=(900, 2)).astype(np.float32) + 3 * np.eye(3, 2, dtype=np.float32)[labels]
data = fedgen.from_arrays(points[:600], labels[:600], points[600:], labels[600:], name="points")


def init(key):
    a, b = jax.random.split(key)
    return fedgen.Params(extractor=0.5 * jax.random.normal(a, (2, 8)), predictor=0.5 * jax.random.normal(b, (8, 3))), ()


model = fedgen.Model(
    init=init,
    extract=lambda weights, statistics, x, train: (jnp.tanh(x @ weights), statistics),
    predict=lambda weights, z: z @ weights,
)
summary = fedgen.simulate(["fedgen", "fedavg"], data=data, model=model, users=5, active=3, rounds=20, lr=0.1)
print({row["algorithm"]: row["accuracy"] for row in summary["results"]})
