"""A new algorithm: one file and one line in the registry.

This one is FedAvgM (Hsu et al. 2019): FedAvg whose server steps along a running mean of the updates. It wraps
FedAvg and changes only what differs. The last line registers it for this process; the command takes it as
`--algorithm new_algorithm:fedavgm`, and as an installable package it is in `examples/plugin`.
"""

import jax
import jax.numpy as jnp

import fedgen
from fedgen.algorithms.fedavg import Parts, Upload, fedavg
from fedgen.algorithms.wrap import With, wrap


def fedavgm(task: fedgen.Task, federation: fedgen.Federation, *, server_momentum: float = 0.9) -> fedgen.Algorithm:
    """FedAvg with momentum at the server."""
    base = fedavg(task, federation)

    # What the server keeps beside FedAvg's model is `own`: the running mean of the updates.
    def server_init(key: jax.Array) -> fedgen.Params:
        return jax.tree.map(jnp.zeros_like, base.server_init(key).params)

    def server_update(
        server: With, average: Parts, uploads: Upload, round: fedgen.Round
    ) -> tuple[With, dict[str, jax.Array]]:
        old = server.base.params
        velocity = jax.tree.map(lambda v, new, old: server_momentum * v + (new - old), server.own, average.params, old)
        return With(average._replace(params=jax.tree.map(jnp.add, old, velocity)), velocity), {}

    return wrap(base, server_init=server_init, server_update=server_update)


fedgen.ALGORITHMS["fedavgm"] = fedavgm

if __name__ == "__main__":
    summary = fedgen.simulate(["fedavgm", "fedavg"], rounds=20, model="mlp", options={"fedavgm.server_momentum": 0.5})
    print({row["algorithm"]: round(row["accuracy"], 2) for row in summary["results"]})
