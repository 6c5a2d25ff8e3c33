"""The recipe of local training: the users' optimiser, its rate over the rounds, and their mini-batches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.core.contract import Array, Tree
from fedgen.core.settings import Federation
from fedgen.core.streams import stream
from fedgen.core.trees import is_off
from fedgen.errors import FedgenError


def check_recipe(federation: Federation) -> None:
    """Refuse settings of which one would silently count nothing."""
    if federation.nesterov and is_off(federation.momentum):
        raise FedgenError("nesterov is a kind of momentum: set momentum, too (--momentum 0.9)")
    if federation.optimizer != "sgd" and not is_off(federation.momentum):
        raise FedgenError(f"momentum is sgd's: leave it out with optimizer {federation.optimizer}")
    if (federation.lr_schedule == "steps") != bool(federation.lr_milestones):
        raise FedgenError("lr_schedule steps and lr_milestones go together: give both, or neither of them")
    if federation.lr_schedule != "cosine" and not is_off(federation.lr_final):
        raise FedgenError("lr_final is the end of lr_schedule cosine: set that, too, or leave lr_final out")


def learning_rate(federation: Federation, round: Array) -> Array:
    """The users' rate in a round: it rises for `lr_warmup` rounds, and then follows the schedule."""
    settled = round if federation.lr_warmup == 0 else jnp.maximum(round - federation.lr_warmup, 0)
    decay = jnp.asarray(federation.lr_decay, jnp.float32)
    rate = jnp.asarray(federation.lr, jnp.float32)
    if federation.lr_schedule == "exponential":
        rate = federation.lr * jnp.power(decay, settled)
    elif federation.lr_schedule == "steps":
        passed = jnp.sum(round >= jnp.asarray(federation.lr_milestones, jnp.int32))
        rate = rate * jnp.power(decay, passed)
    elif federation.lr_schedule == "cosine":
        last = max(federation.rounds - federation.lr_warmup - 1, 1)
        rate = rate * optax.cosine_decay_schedule(1.0, last, federation.lr_final)(settled)
    if federation.lr_warmup:
        rate = rate * jnp.minimum((round + 1) / federation.lr_warmup, 1.0)
    return rate


def client_optimizer(federation: Federation, rate: Array) -> optax.GradientTransformation:
    """The users' optimiser with this rate; what the settings switch off is left out of the chain."""
    parts = [] if is_off(federation.clip_gradient) else [optax.clip_by_global_norm(federation.clip_gradient)]
    decayed = not is_off(federation.weight_decay)
    if federation.optimizer == "adamw":
        return optax.chain(*parts, optax.adamw(rate, weight_decay=federation.weight_decay))
    if decayed:
        parts.append(optax.add_decayed_weights(federation.weight_decay))
    if federation.optimizer == "adam":
        parts.append(optax.adam(rate))
    elif is_off(federation.momentum):
        parts.append(optax.sgd(rate))
    else:
        parts.append(optax.sgd(rate, federation.momentum, federation.nesterov))
    return parts[0] if len(parts) == 1 else optax.chain(*parts)


class Kept(NamedTuple):
    """What a user keeps between rounds where its optimiser's state is kept, too."""

    own: Tree  # C, the algorithm's
    optimizer: Tree


class Shard(NamedTuple):
    """A user's data: the samples `rows[offset : offset + size]` of arrays that may hold other users' samples too."""

    x: Array  # [sample, ...]
    y: Array  # [sample]
    rows: Array  # [place] numbers of samples, one user's after the other's
    offset: Array  # []
    size: Array  # []
    counts: Array  # [label] how many of each label


class Draws(NamedTuple):
    """The mini-batches of a user's round."""

    rows: Array  # [step, batch] of the arrays in its shard
    weight: Array | None  # [step, batch] see `Batch.weight`
    steps: Array | None  # [] how many of the steps are taken; None: all


def draw_batches(federation: Federation, shard: Shard, round: Array, user: Array, seed: Array, largest: int) -> Draws:
    """A user's mini-batches in a round; no user holds more than `largest` samples.

    `local_steps` of them drawn with replacement: the paper's `(x, y) ~ T_k`, which also gives a user with fewer samples
    than a batch full batches. Or those of `local_epochs` passes over its data, each in another order: every sample once
    in each, so that users of different sizes take different numbers of steps.
    """
    if federation.local_epochs == 0:
        shape = (federation.local_steps, federation.batch_size)
        drawn = jax.random.randint(stream(seed, "batches", round, user), shape, 0, shard.size)
        return Draws(shard.rows[shard.offset + drawn], None, None)
    batch, epochs = federation.batch_size, federation.local_epochs
    per_epoch = -(-shard.size // batch)
    place = jnp.arange(largest)

    def order(epoch: Array) -> Array:
        # A draw for each sample by itself, so that the order does not depend on how many samples others hold.
        keys = jax.vmap(jax.random.fold_in, (None, 0))(stream(seed, "epochs", round, user, epoch), place)
        drawn = jax.random.key_data(keys)[:, 0]
        return jnp.lexsort((drawn, place >= shard.size))  # [largest] the user's own samples come first

    orders = jax.vmap(order)(jnp.arange(epochs))
    step = jnp.arange(epochs * -(-largest // batch))
    epoch, first = jnp.minimum(step // per_epoch, epochs - 1), step % per_epoch * batch
    left = jnp.minimum(batch, shard.size - first)  # [step] how many samples the mini-batch has
    column = jnp.arange(batch)
    within = first[:, None] + column % left[:, None]
    weight = (column < left[:, None]).astype(jnp.float32)
    return Draws(shard.rows[shard.offset + orders[epoch[:, None], within]], weight, epochs * per_epoch)
