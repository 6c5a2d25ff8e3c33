"""The one client loop: what a user does in a round, in the simulator and at a real site alike."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.core.augment import augmented
from fedgen.core.contract import Algorithm, Array, Batch, Federation, Local, Loss, Pass, Step, Task, Tree
from fedgen.core.losses import cross_entropy
from fedgen.core.optimise import descend
from fedgen.core.privacy import is_private, privatise
from fedgen.core.recipe import Draws, Kept, Shard, client_optimizer, draw_batches, learning_rate
from fedgen.core.streams import stream
from fedgen.core.trees import is_off, replaced
from fedgen.core.wires import untrained
from fedgen.errors import FedgenError

PASS_CHUNK = 64  # samples of one step of a pass over a user's data
_NETWORK = 0x6E657477  # folded into a step's key for what the network itself draws
_AUGMENT = 0x6175676D  # and for what changes its images


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
    *,
    largest: int,
    noise: Array | None = None,
    draws: Draws | None = None,
) -> Trained:
    """The local training of a user that holds no more than `largest` samples.

    `noise` is the random key of a private user's noise. A simulation derives it from the seed; a real user passes a
    secret one, since whoever knows the key can subtract the noise again. `draws` replaces the mini-batches of
    `draw_batches`, where the shard's samples were moved elsewhere.
    """
    trained = _trained(algorithm, task, federation, broadcast, client, shard, round, user, seed, largest, draws)
    key = stream(seed, "privacy", round, user) if noise is None else noise
    if algorithm.add_noise is not None:
        trained = trained._replace(upload=algorithm.add_noise(trained.upload, key))
    if is_private(federation):
        return trained._replace(upload=privatise(trained.upload, broadcast, federation, key))
    return trained


def finetune_client(
    algorithm: Algorithm,
    task: Task,
    federation: Federation,
    broadcast: Tree,
    client: Tree,
    shard: Shard,
    round: Array,
    user: Array,
    seed: Array,
    *,
    largest: int,
    draws: Draws | None = None,
) -> tuple[Tree, Tree]:
    """`(B, C)` for `predict_local` after a user trained the received model by itself, which nobody else learns of.

    It trains for `finetune_steps` mini-batches on their cross-entropy alone: without the algorithm's own terms, which
    mostly are there to keep users together. Arrays that have the same name in the broadcast and in the upload are those
    that it changed.
    """

    def local_loss(params: Tree, memo: Tree, batch: Batch, local: Local, step: Step) -> Loss:
        found = algorithm.local_loss(params, memo, batch, local, step)
        return found._replace(value=batch.mean(cross_entropy(found.logits, batch.y)))

    plain = algorithm._replace(local_loss=local_loss, local_gradient=None)
    recipe, key = finetuning_recipe(federation), finetuning_seed(seed)
    trained = _trained(plain, task, recipe, broadcast, client, shard, round, user, key, largest, draws)
    return replaced(broadcast, trained.upload), trained.client


def finetuning_recipe(federation: Federation) -> Federation:
    """How a user trains before it is evaluated: a constant rate, and steps even where rounds have epochs."""
    rate = federation.lr if is_off(federation.finetune_lr) else federation.finetune_lr
    return federation.with_values(
        local_steps=federation.finetune_steps, local_epochs=0, lr=rate, lr_schedule="constant", lr_warmup=0
    )


def finetuning_seed(seed: Array) -> Array:
    """Other mini-batches than those of a round."""
    return stream(seed, "finetune")


def finetuning(algorithm: Algorithm) -> Algorithm:
    """The same algorithm whose users have models of their own, since they fine-tune what they receive."""
    if algorithm.predict_local is None:
        raise FedgenError(
            "finetune_steps trains the model that a user predicts with, and the users of this algorithm have none;"
            " leave it out, or switch it off for this algorithm (--set NAME.finetune_steps=0)"
        )
    return algorithm._replace(personal=True, headline="users")


def _trained(
    algorithm: Algorithm,
    task: Task,
    federation: Federation,
    broadcast: Tree,
    client: Tree,
    shard: Shard,
    round: Array,
    user: Array,
    seed: Array,
    largest: int,
    draws: Draws | None,
) -> Trained:
    """The local training, with an upload that has no noise yet."""
    if draws is None:
        draws = draw_batches(federation, shard, round, user, seed, largest)
    keeps = federation.optimizer_state == "kept"
    steps = jnp.int32(len(draws.rows)) if draws.steps is None else draws.steps
    rate = learning_rate(federation, round)
    own = client.own if keeps else client
    local = Local(broadcast, own, round, rate, shard.size, shard.counts, steps)
    params, memo = algorithm.local_start(local)
    local = local._replace(start=params)
    if algorithm.before is not None:
        local = local._replace(before=_over_all(algorithm.before, task, params, memo, local, shard, largest))
    keys = stream(seed, "local", round, user)

    def batch_of(rows: Array, labels: Array, weight: Array | None, step: Step) -> Batch:
        x = task.prepare(shard.x[rows])
        if federation.augment:
            x = augmented(x, federation, jax.random.fold_in(step.key, _AUGMENT))
        return Batch(x, labels, weight)

    def step_of(number: Array, rows: Array, labels: Array, weight: Array | None) -> Step:
        step = Step(number, jax.random.fold_in(keys, number))
        return step._replace(
            ahead=algorithm.ahead and algorithm.ahead(batch_of(rows, labels, weight, step), local, step)
        )

    def loss(params: Tree, memo: Tree, item: tuple[tuple[Array, Array, Array | None], Step]) -> tuple[Array, Tree]:
        drawn, step = item
        batch = batch_of(*drawn, step)
        if task.model.random:
            batch = batch._replace(key=jax.random.fold_in(step.key, _NETWORK))
        found = algorithm.local_loss(params, memo, batch, local, step)
        return found.value, found.memo

    correct = None
    if algorithm.local_gradient is not None:
        change = algorithm.local_gradient

        def correct(gradient: Tree, params: Tree, item: tuple[Tree, Step]) -> Tree:
            return change(gradient, params, local, item[1])

    optimizer = optimizer_of(algorithm, federation, rate)
    drawn = draws.rows, shard.y[draws.rows], draws.weight
    items = drawn, jax.vmap(step_of)(jnp.arange(len(draws.rows)), *drawn)
    state = client.optimizer if keeps else optimizer.init(params)
    reached = descend(loss, params, memo, optimizer, state, items, correct=correct, steps=draws.steps)
    if algorithm.after is not None:
        sums = _over_all(algorithm.after, task, reached.params, reached.memo, local, shard, largest)
        local = local._replace(after=sums)
    upload, own = algorithm.local_finish(reached.params, reached.memo, local)
    return Trained(upload, Kept(own, reached.state) if keeps else own, reached.loss)


def optimizer_of(algorithm: Algorithm, federation: Federation, rate: Array) -> optax.GradientTransformation:
    """The users' optimiser: the algorithm's where it has one, else the settings'."""
    return algorithm.optimizer(rate) if algorithm.optimizer else client_optimizer(federation, rate)


def keeping_optimizer(algorithm: Algorithm, task: Task, federation: Federation) -> Algorithm:
    """The same algorithm with the optimiser's state in the client's (see `Kept`)."""

    def client_init(key: Array) -> Kept:
        own = algorithm.client_init(key)
        nothing = jnp.zeros((), jnp.int32)
        local = untrained(algorithm.broadcast(algorithm.server_init(key), nothing), own, task)
        return Kept(own, optimizer_of(algorithm, federation, local.rate).init(algorithm.local_start(local)[0]))

    predict = algorithm.predict_local
    return algorithm._replace(
        client_init=client_init,
        predict_local=predict and (lambda received, client, x: predict(received, client.own, x)),
    )


def _over_all(add_up: Pass, task: Task, params: Tree, memo: Tree, local: Local, shard: Shard, largest: int) -> Tree:
    """The sums of `add_up` over all samples of a user, some at a time."""
    chunk = min(PASS_CHUNK, largest)

    def part(number: Array) -> Tree:
        place = number * chunk + jnp.arange(chunk)
        rows = shard.rows[shard.offset + jnp.minimum(place, shard.size - 1)]
        batch = Batch(task.prepare(shard.x[rows]), shard.y[rows], (place < shard.size).astype(jnp.float32))
        return add_up(params, memo, batch, local)

    form = jax.eval_shape(part, jnp.int32(0))
    start = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), form)
    return jax.lax.fori_loop(0, -(-shard.size // chunk), lambda n, sums: jax.tree.map(jnp.add, sums, part(n)), start)
