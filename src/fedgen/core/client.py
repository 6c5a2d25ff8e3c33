"""The one client loop: what a user does in a round, in the simulator and at a real site alike."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.core.contract import Algorithm, Array, Batch, Clock, Federation, Task, Tree
from fedgen.core.optimise import descend
from fedgen.core.privacy import is_private, privatise
from fedgen.core.streams import stream
from fedgen.core.trees import is_off


class Shard(NamedTuple):
    """A user's data: the samples `rows[offset : offset + size]` of arrays that may hold other users' samples too."""

    x: Array
    y: Array
    rows: Array
    offset: Array
    size: Array


class Trained(NamedTuple):
    """The outcome of a user's round."""

    upload: Tree
    client: Tree
    loss: Array  # mean over the local steps


def train_client(
    algorithm: Algorithm,
    task: Task,
    federation: Federation,
    broadcast: Tree,
    client: Tree,
    shard: Shard,
    round: Array,
    user: Array,
    seed: Array,
    noise: Array | None = None,
    rows: Array | None = None,
) -> Trained:
    """T steps of mini-batch SGD on the user's own data, drawn with replacement.

    Drawing with replacement is the paper's `(x, y) ~ T_k`; it also gives a user with fewer samples than
    a batch full batches. `noise` is the key of a private user's noise. A simulation has it from the seed; a real
    user brings a secret one, since whoever knows it can take the noise away again.
    `rows` [step, batch] says where the drawn samples are if not where `draw_rows` says.
    """
    if rows is None:
        rows = draw_rows(federation, shard, round, user, seed)
    labels = shard.y[rows]
    local = stream(seed, "local", round, user)

    def clock_of(step: Array, labels: Array) -> Clock:
        clock = Clock(round, step, jax.random.fold_in(local, step))
        return clock._replace(ahead=algorithm.ahead and algorithm.ahead(broadcast, labels, clock))

    def loss(params: Tree, memo: Tree, item: tuple[Array, Array, Clock]) -> tuple[Array, Tree]:
        row, y, clock = item
        batch = Batch(task.prepare(shard.x[row]), y)
        return algorithm.local_loss(params, memo, batch, broadcast, client, clock)

    params, memo = algorithm.local_start(broadcast, client)
    optimizer = sgd(federation, round)
    clocks = jax.vmap(clock_of)(jnp.arange(federation.local_steps), labels)
    params, memo, _, losses = descend(loss, params, memo, optimizer, optimizer.init(params), (rows, labels, clocks))
    upload, client = algorithm.local_finish(params, memo, broadcast, client, shard.size)
    if is_private(federation):
        key = stream(seed, "privacy", round, user) if noise is None else noise
        upload = privatise(upload, broadcast, federation, key)
    return Trained(upload, client, jnp.mean(losses))


def draw_rows(federation: Federation, shard: Shard, round: Array, user: Array, seed: Array) -> Array:
    """The rows of a user's mini-batches in a round, [step, batch]."""
    shape = (federation.local_steps, federation.batch_size)
    drawn = jax.random.randint(stream(seed, "batches", round, user), shape, 0, shard.size)
    return shard.rows[shard.offset + drawn]


def sgd(federation: Federation, round: Array) -> optax.GradientTransformation:
    """The clients' optimiser: plain SGD, its rate decayed once per round."""
    rate = federation.lr * jnp.power(jnp.asarray(federation.lr_decay, jnp.float32), round)
    step = optax.sgd(rate)
    if is_off(federation.weight_decay):
        return step
    return optax.chain(optax.add_decayed_weights(federation.weight_decay), step)
