"""The shapes of an algorithm's states and messages, found with `jax.eval_shape`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.core.contract import Algorithm, Array, Batch, Local, Pass, Task, Tree
from fedgen.core.recipe import Kept


class Wires(NamedTuple):
    """The two states and the two messages."""

    server: Tree
    client: Tree
    broadcast: Tree
    upload: Tree


def untrained(broadcast: Tree, client: Tree, task: Task) -> Local:
    """The `Local` of a user without any samples, for its shapes."""
    nothing = jnp.zeros((), jnp.int32)
    return Local(broadcast, client, nothing, jnp.zeros(()), nothing, jnp.zeros(task.classes, jnp.int32), nothing)


def wires(algorithm: Algorithm, task: Task, key: Array) -> Wires:
    """The states before the first round, and the messages of a round without any training."""
    server, client = algorithm.server_init(key), algorithm.client_init(key)
    broadcast = algorithm.broadcast(server, jnp.zeros((), jnp.int32))
    local = untrained(broadcast, client.own if isinstance(client, Kept) else client, task)
    params, memo = algorithm.local_start(local)
    local = local._replace(start=params)
    nothing = jnp.zeros((1, *task.sample.shape), task.sample.dtype)
    batch = Batch(task.prepare(nothing), jnp.zeros(1, jnp.int32), jnp.zeros(1))

    def sums(add_up: Pass | None) -> Tree:
        return None if add_up is None else add_up(params, memo, batch, local)

    local = local._replace(before=sums(algorithm.before))
    local = local._replace(after=sums(algorithm.after))
    upload, _ = algorithm.local_finish(params, memo, local)
    return Wires(server, client, broadcast, upload)


def shapes(algorithm: Algorithm, task: Task) -> Wires:
    """The shapes and types of states and messages."""
    return jax.eval_shape(lambda key: wires(algorithm, task, key), jax.random.key(0))
