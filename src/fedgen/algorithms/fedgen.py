"""FedGen (Zhu, Hong, Zhou 2021): a generator of latent features, learned from predictors and label counts alone.

The server trains it on the users' predictors (eq. 4 with the supplement's label weights); users train
against its samples (eq. 5). Equation numbers are those of the ICML paper. The defaults are the paper's;
the other values of the switches are what the authors' released code does (docs/algorithms/fedgen.md).
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.algorithms.fedavg import fedavg, taken
from fedgen.core.aggregate import combine_given
from fedgen.core.contract import Algorithm, Array, Batch, Clock, Count, Federation, Params, Round, Scalar, Task, Tree
from fedgen.core.losses import cross_entropy, diversity_loss, kl, label_weights, supervised, teacher_loss
from fedgen.core.optimise import descend
from fedgen.core.privacy import is_private
from fedgen.core.streams import stream
from fedgen.core.trees import is_off
from fedgen.models.generator import Generator, draw_labels, draw_noise, generate, generator_init


class Server(NamedTuple):
    """FedAvg's server, the generator with its optimiser, and the label distribution."""

    base: Any
    generator: Generator
    optimizer: Any
    prior: Array  # [label] p(y), uniform before the first round


class Broadcast(NamedTuple):
    """FedAvg's broadcast, the generator and p(y)."""

    base: Any
    generator: Generator
    prior: Array


class Upload(NamedTuple):
    """FedAvg's upload and c_k: how often each label was drawn in this round."""

    base: Any
    counts: Array  # [label]


class Ahead(NamedTuple):
    """The generator's samples for a local step."""

    labels: Array
    generated: Tree  # of these labels, or None (the term of weight w)
    matched: Tree  # of the batch's labels, or None (the term of weight beta)


def fedgen(
    task: Task,
    federation: Federation,
    *,
    w: Scalar = 1.0,
    w_decay: Scalar = 1.0,
    beta: Scalar = 0.0,
    beta_decay: Scalar = 1.0,
    client_batch: Count = 32,
    skip_first_round: bool = False,
    stop_after: int = 0,
    noise: Literal["normal", "uniform"] = "normal",
    labels: Literal["prior", "uniform"] = "prior",
    counts_start: int = 0,
    teacher: Literal["logits", "losses", "losses-broadcast"] = "logits",
    weights: Literal["counts", "equal"] = "counts",
    diversity: Literal["same-label", "all-pairs"] = "same-label",
    eta: Scalar = 1.0,
    generator_steps: Count = 50,
    generator_batch: Count = 128,
    generator_lr: Scalar = 1e-4,
    generator_lr_decay: Scalar = 1.0,
    generator_weight_decay: Scalar = 0.0,
    noise_size: Count = 32,
    hidden: Count = 256,
) -> Algorithm:
    """FedAvg, and a generator of latent features that carries knowledge between users without data."""
    base, model, classes = fedavg(task, federation), task.model, task.classes
    latent = task.latent_size()

    def target(prior: Array) -> Array:
        return prior if labels == "prior" else jnp.full(classes, 1 / classes)

    def optimizer(round: Array) -> optax.GradientTransformation:
        rate = generator_lr * jnp.power(jnp.asarray(generator_lr_decay, jnp.float32), round)
        return optax.chain(optax.add_decayed_weights(generator_weight_decay), optax.adam(rate))

    def server_init(key: Array) -> Server:
        generator = generator_init(stream(key, "generator"), classes, noise_size, hidden, latent)
        state = optimizer(jnp.zeros((), jnp.int32)).init(generator.params)
        return Server(base.server_init(key), generator, state, jnp.full(classes, 1 / classes))

    def broadcast(server: Server, round: Array) -> Broadcast:
        return Broadcast(base.broadcast(server.base, round), server.generator, server.prior)

    def local_start(received: Broadcast, client: Any) -> tuple[Params, tuple[Tree, Array]]:
        params, statistics = base.local_start(received.base, client)
        return params, (statistics, jnp.full(classes, counts_start))

    def ahead(received: Broadcast, batch_labels: Array, clock: Clock) -> Ahead:
        # Users never change the generator, so that its samples for all their steps can be made at once.
        def sample(purpose: str, y: Array) -> Array:
            eps = draw_noise(stream(clock.key, purpose), (y.shape[0], noise_size), noise)
            return generate(received.generator, eps, y, classes, False)[0]

        labels = draw_labels(stream(clock.key, "generated"), client_batch, target(received.prior))
        return Ahead(
            labels,
            None if is_off(w) else sample("generated", labels),
            None if is_off(beta) else sample("matched", batch_labels),
        )

    def local_loss(
        params: Params, memo: tuple[Tree, Array], batch: Batch, received: Broadcast, client: Any, clock: Clock
    ) -> tuple[Array, tuple[Tree, Array]]:
        statistics, counts = memo
        loss, forward = supervised(model, params, statistics, batch)
        counts = counts + jnp.sum(jax.nn.one_hot(batch.y, classes, dtype=counts.dtype), axis=0)

        made = ahead(received, batch.y, clock) if clock.ahead is None else clock.ahead
        use = jnp.float32(1.0)
        if skip_first_round:
            use = jnp.where(clock.round == 0, 0.0, use)
        if stop_after:
            use = jnp.where(clock.step < stop_after, use, 0.0)
        if not is_off(w):  # eq. 5: + w CE(h(G(eps, y)), y), y ~ p(y)
            generated = jnp.mean(cross_entropy(model.predict(params.predictor, made.generated), made.labels))
            loss = loss + use * w * jnp.power(jnp.asarray(w_decay, jnp.float32), clock.round) * generated
        if not is_off(beta):  # the authors' code only: + beta KL(h(G(eps, y_batch)) || h(x_batch))
            detached = jax.lax.stop_gradient(model.predict(params.predictor, made.matched))
            matched = jnp.mean(kl(detached, forward.logits))
            loss = loss + use * beta * jnp.power(jnp.asarray(beta_decay, jnp.float32), clock.round) * matched
        return loss, (forward.statistics, counts)

    def local_finish(
        params: Params, memo: tuple[Tree, Array], received: Broadcast, client: Any, samples: Array
    ) -> tuple[Upload, Any]:
        statistics, counts = memo
        sent, kept = base.local_finish(params, statistics, received.base, client, samples)
        return Upload(sent, counts), kept

    def server_update(server: Server, uploads: Upload, round: Round) -> tuple[Server, dict[str, Array]]:
        average, metrics = base.server_update(server.base, uploads.base, round)
        counts = uploads.counts.astype(jnp.float32)  # [user, label]
        prior = jnp.sum(counts, axis=0) / jnp.sum(counts)
        if is_private(federation):  # noise may have made all of them 0
            prior = jnp.where(jnp.sum(counts) > 0, prior, 1 / classes)
        predictors = taken(server.base, uploads.base, federation)[0].predictor
        lam = label_weights(counts) if weights == "counts" else jnp.full_like(counts, 1 / counts.shape[0])

        def robust_loss(logits: Array, y: Array) -> Array:
            """The same with each user counting once: a few cannot outweigh the others by their counts or logits."""
            heard = (counts > counts_start)[:, y] | (weights == "equal")  # [user, sample]
            if teacher == "logits":
                return jnp.mean(cross_entropy(combine_given(logits, heard, federation), y))
            return jnp.mean(combine_given(cross_entropy(logits, y[None])[..., None], heard, federation))

        def draw(key: Array) -> tuple[Array, Array]:
            y = jnp.sort(draw_labels(key, generator_batch, target(prior)))  # sorted for diversity_loss
            return y, draw_noise(key, (generator_batch, noise_size), noise)

        def loss(params: Tree, statistics: Tree, drawn: tuple[Array, Array]) -> tuple[Array, Tree]:
            y, eps = drawn
            z, statistics = generate(Generator(params, statistics), eps, y, classes, True)
            logits = jax.vmap(lambda p: model.predict(p, z))(predictors)
            mean = federation.aggregation == "mean"
            fit = teacher_loss(logits, lam[:, y], y, teacher) if mean else robust_loss(logits, y)
            return fit + eta * diversity_loss(z, eps, y, diversity), statistics

        draws = jax.vmap(draw)(jax.random.split(stream(round.key, "generator"), generator_steps))
        params, statistics, state, losses = descend(
            loss, server.generator.params, server.generator.statistics, optimizer(round.number), server.optimizer, draws
        )
        metrics = {**metrics, "generator_loss": jnp.mean(losses)}
        return Server(average, Generator(params, statistics), state, prior), metrics

    def check_upload(sent: Upload) -> dict[str, Array]:
        drawn = federation.local_steps * federation.batch_size + counts_start * classes
        others = base_check(sent.base) if base_check else {}
        if is_private(federation):  # with noise, counts need not add up
            loud = jnp.max(sent.counts) > drawn * (1 + 10 * federation.dp_count_noise)
            return {**others, f"its label counts are more than those of {drawn} draws and their noise": loud}
        # No count alone may be more than the draws: a sum of such could wrap around to the right number.
        outside = (jnp.min(sent.counts) < counts_start) | (jnp.max(sent.counts) > drawn)
        wrong = outside | (jnp.sum(sent.counts) != drawn)
        return {**others, f"its label counts are not those of {drawn} draws": wrong}

    predict_global, predict_local, base_check = base.predict_global, base.predict_local, base.check_upload
    predict_received = base.predict_received
    return Algorithm(
        server_init,
        base.client_init,
        broadcast,
        local_start,
        local_loss,
        local_finish,
        server_update,
        predict_global and (lambda server, x: predict_global(server.base, x)),
        predict_local and (lambda received, client, x: predict_local(received.base, client, x)),
        ahead=ahead,
        check_upload=check_upload,
        predict_received=predict_received and (lambda received, client, x: predict_received(received.base, client, x)),
    )
