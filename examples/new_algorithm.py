"""A new algorithm: one file and one line in the registry.

This one is FedAvgM (Hsu et al. 2019): FedAvg whose server steps along a running mean of the updates. It wraps
FedAvg and changes only what differs. The last line registers it for this process; the command takes it as
`--algorithm new_algorithm:fedavgm`, and as a package of its own it is in `examples/plugin`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

import fedgen
from fedgen.algorithms.fedavg import Server as AverageServer
from fedgen.algorithms.fedavg import Upload, fedavg


class Server(NamedTuple):
    """FedAvg's server and the running mean of its updates."""

    base: AverageServer
    velocity: fedgen.Params


def fedavgm(task: fedgen.Task, federation: fedgen.Federation, *, server_momentum: float = 0.9) -> fedgen.Algorithm:
    """FedAvg with momentum at the server."""
    base = fedavg(task, federation)

    def server_init(key: jax.Array) -> Server:
        start = base.server_init(key)
        return Server(start, jax.tree.map(jnp.zeros_like, start.params))

    def server_update(server: Server, uploads: Upload, round: fedgen.Round) -> tuple[Server, dict[str, jax.Array]]:
        average, metrics = base.server_update(server.base, uploads, round)
        step = jax.tree.map(lambda new, old: new - old, average.params, server.base.params)
        velocity = jax.tree.map(lambda v, s: server_momentum * v + s, server.velocity, step)
        params = jax.tree.map(lambda old, v: old + v, server.base.params, velocity)
        return Server(average._replace(params=params), velocity), metrics

    return base._replace(
        server_init=server_init,
        broadcast=lambda server, round: base.broadcast(server.base, round),
        server_update=server_update,
        predict_global=base.predict_global and (lambda server, x: base.predict_global(server.base, x)),
    )


fedgen.ALGORITHMS["fedavgm"] = fedavgm

if __name__ == "__main__":
    summary = fedgen.simulate(["fedavgm", "fedavg"], rounds=20, model="mlp", options={"fedavgm.server_momentum": 0.5})
    print({row["algorithm"]: round(row["accuracy"], 2) for row in summary["results"]})
