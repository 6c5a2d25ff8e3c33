"""A Flax model as FedGen's model: its parameters are split at the last layer, its BatchNorm statistics passed on.

Needs `pip install flax`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

import fedgen


class Extractor(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.Dense(64)(x.reshape(x.shape[0], -1))
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(16)(nn.relu(x))


def from_flax(extractor: nn.Module, predictor: nn.Module, sample: jax.Array) -> fedgen.Model:
    """Two Flax modules as an extractor x -> z and a predictor z -> logits."""

    def init(key: jax.Array) -> tuple[fedgen.Params, dict]:
        first, second = jax.random.split(key)
        z, variables = extractor.init_with_output(first, sample, False)
        params = fedgen.Params(variables["params"], predictor.init(second, z)["params"])
        return params, variables.get("batch_stats", {})

    def extract(params: dict, statistics: dict, x: jax.Array, train: bool) -> tuple[jax.Array, dict]:
        variables = {"params": params, "batch_stats": statistics}
        if not train:
            return extractor.apply(variables, x, False), statistics
        z, updated = extractor.apply(variables, x, True, mutable=["batch_stats"])
        return z, updated["batch_stats"]

    return fedgen.Model(init, extract, lambda params, z: predictor.apply({"params": params}, z))


if __name__ == "__main__":
    model = from_flax(Extractor(), nn.Dense(10), jnp.zeros((1, 28, 28, 1)))
    summary = fedgen.simulate("fedgen", model=model, rounds=20)
    print(summary["results"][0]["accuracy"])
