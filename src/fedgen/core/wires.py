"""What an algorithm keeps and sends, for its shapes: to be called under `jax.eval_shape`."""

from typing import NamedTuple

import jax.numpy as jnp

from fedgen.core.contract import Algorithm, Array, Tree


class Wires(NamedTuple):
    """The two states and the two messages."""

    server: Tree
    client: Tree
    broadcast: Tree
    upload: Tree


def wires(algorithm: Algorithm, key: Array) -> Wires:
    """The states before the first round, and the messages of a round without any training."""
    server, client = algorithm.server_init(key), algorithm.client_init(key)
    nothing = jnp.zeros((), jnp.int32)
    broadcast = algorithm.broadcast(server, nothing)
    params, memo = algorithm.local_start(broadcast, client)
    upload, _ = algorithm.local_finish(params, memo, broadcast, client, nothing)
    return Wires(server, client, broadcast, upload)
