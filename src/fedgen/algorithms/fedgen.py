"""FedGen (Zhu, Hong, Zhou 2021): a generator of latent features, learned from predictors and label counts alone.

The server trains it on the users' predictors (the ICML paper's eq. 4, the supplement's label weights), users train
against its samples (eq. 5). Defaults are the paper's, other values the authors' code's (docs/algorithms/fedgen.md).
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.algorithms.fedavg import Parts, fedavg, taken
from fedgen.algorithms.wrap import With, need_predictor, wrap
from fedgen.core import contract as fl
from fedgen.core.aggregate import fair
from fedgen.core.losses import cross_entropy, diversity_loss, kl, label_weights, robust_teacher_loss, teacher_loss
from fedgen.core.optimise import descend
from fedgen.core.privacy import is_private
from fedgen.core.streams import stream
from fedgen.core.trees import is_off
from fedgen.models.generator import Generator, draw_labels, draw_noise, generate, generator_init


class Server(NamedTuple):
    """The generator with its optimiser, and the label distribution; in a broadcast without the optimiser."""

    generator: Generator
    optimizer: Any
    prior: fl.Array  # [label] p(y), uniform before the first round


class Upload(NamedTuple):
    """c_k: how often each label was drawn in this round."""

    counts: fl.Array  # [label]


class Ahead(NamedTuple):
    """The generator's samples for a local step."""

    labels: fl.Array
    generated: fl.Tree  # of these labels, or None (the term of weight w)
    matched: fl.Tree  # of the batch's labels, or None (the term of weight beta)


def fedgen(
    task: fl.Task,
    federation: fl.Federation,
    *,
    w: fl.Scalar = 1.0,
    w_decay: fl.Scalar = 1.0,
    beta: fl.Scalar = 0.0,
    beta_decay: fl.Scalar = 1.0,
    client_batch: fl.Count = 32,
    skip_first_round: bool = False,
    stop_after: int = 0,
    noise: Literal["normal", "uniform"] = "normal",
    labels: Literal["prior", "uniform"] = "prior",
    counts_start: int = 0,
    teacher: Literal["logits", "losses", "losses-broadcast"] = "logits",
    weights: Literal["counts", "equal"] = "counts",
    diversity: Literal["same-label", "all-pairs"] = "same-label",
    eta: fl.Scalar = 1.0,
    generator_steps: fl.Count = 50,
    generator_batch: fl.Count = 128,
    generator_lr: fl.Scalar = 1e-4,
    generator_lr_decay: fl.Scalar = 1.0,
    generator_weight_decay: fl.Scalar = 0.0,
    noise_size: fl.Count = 32,
    hidden: fl.Count = 256,
) -> fl.Algorithm:
    """FedAvg, and a generator of latent features that carries knowledge between users without data."""
    need_predictor(federation, "fedgen learns its generator from the users' predictors")
    base, model, classes = fedavg(task, federation), task.model, task.classes

    def target(prior: fl.Array) -> fl.Array:
        return prior if labels == "prior" else jnp.full(classes, 1 / classes)

    def optimizer(round: fl.Array) -> optax.GradientTransformation:
        rate = generator_lr * jnp.power(jnp.asarray(generator_lr_decay, jnp.float32), round)
        return optax.chain(optax.add_decayed_weights(generator_weight_decay), optax.adam(rate))

    def server_init(key: fl.Array) -> Server:
        generator = generator_init(stream(key, "generator"), classes, noise_size, hidden, task.latent_size())
        return Server(generator, optimizer(jnp.int32(0)).init(generator.params), jnp.full(classes, 1 / classes))

    def ahead(batch: fl.Batch, local: fl.Local, step: fl.Step) -> Ahead:
        # Users never change the generator, so that its samples for all their steps can be made at once.
        received: Server = local.received.own

        def sample(purpose: str, y: fl.Array) -> fl.Array:
            eps = draw_noise(stream(step.key, purpose), (y.shape[0], noise_size), noise)
            return generate(received.generator, eps, y, classes, False)[0]

        drawn = draw_labels(stream(step.key, "generated"), client_batch, target(received.prior))
        generated = None if is_off(w) else sample("generated", drawn)
        return Ahead(drawn, generated, None if is_off(beta) else sample("matched", batch.y))

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        value, made = loss.value, step.ahead
        use = jnp.where(local.round == 0, 0.0, 1.0) if skip_first_round else jnp.float32(1.0)
        if stop_after:
            use = jnp.where(step.number < stop_after, use, 0.0)

        def weight(value: fl.Scalar, decay: fl.Scalar) -> fl.Array:
            return use * value * jnp.power(jnp.asarray(decay, jnp.float32), local.round)

        if not is_off(w):  # eq. 5: + w CE(h(G(eps, y)), y), y ~ p(y)
            generated = jnp.mean(cross_entropy(model.predict(params.predictor, made.generated), made.labels))
            value = value + weight(w, w_decay) * generated
        if not is_off(beta):  # the authors' code only: + beta KL(h(G(eps, y_batch)) || h(x_batch))
            detached = jax.lax.stop_gradient(model.predict(params.predictor, made.matched))
            value = value + weight(beta, beta_decay) * batch.mean(kl(detached, loss.logits))
        counts = loss.memo + jnp.sum(batch.one_hot(classes, loss.memo.dtype), axis=0)
        return loss._replace(value=value, memo=counts)

    def server_update(server: With, average: Parts, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        sent = uploads.own.counts.astype(jnp.float32)  # [user, label]
        counts = sent * fair(jnp.sum(sent, axis=1), federation)[:, None]
        prior = jnp.sum(counts, axis=0) / jnp.sum(counts)
        if is_private(federation):  # noise may have made all of them 0
            prior = jnp.where(jnp.sum(counts) > 0, prior, 1 / classes)
        predictors = taken(server.base, uploads.base, federation).params.predictor
        lam = label_weights(counts) if weights == "counts" else jnp.full_like(counts, 1 / counts.shape[0])
        counted = (sent > counts_start) | (weights == "equal")  # [user, label]

        def draw(key: fl.Array) -> tuple[fl.Array, fl.Array]:
            y = jnp.sort(draw_labels(key, generator_batch, target(prior)))  # sorted for diversity_loss
            return y, draw_noise(key, (generator_batch, noise_size), noise)

        def loss(params: fl.Tree, statistics: fl.Tree, drawn: tuple[fl.Array, fl.Array]) -> tuple[fl.Array, fl.Tree]:
            y, eps = drawn
            z, statistics = generate(Generator(params, statistics), eps, y, classes, True)
            logits = jax.vmap(lambda p: model.predict(p, z))(predictors)
            if federation.aggregation == "mean":
                fit = teacher_loss(logits, lam[:, y], y, teacher)
            else:
                fit = robust_teacher_loss(logits, counted[:, y], y, teacher, federation)
            return fit + eta * diversity_loss(z, eps, y, diversity), statistics

        before = server.own.generator
        draws = jax.vmap(draw)(jax.random.split(stream(round.key, "generator"), generator_steps))
        trained = descend(loss, before.params, before.statistics, optimizer(round.number), server.own.optimizer, draws)
        own = Server(Generator(trained.params, trained.memo), trained.state, prior)
        return With(average, own), {"generator_loss": trained.loss}

    def check_upload(sent: Upload) -> dict[str, fl.Array]:
        if federation.local_epochs:  # then only the user knows how many draws there were
            return {"it has counted a label less than no times": jnp.min(sent.counts) < counts_start}
        drawn = federation.local_steps * federation.batch_size + counts_start * classes
        if is_private(federation):  # with noise, counts need not add up
            loud = jnp.max(sent.counts) > drawn * (1 + 10 * federation.dp_count_noise)
            return {f"its label counts are more than those of {drawn} draws and their noise": loud}
        # No count alone may be more than the draws: a sum of such could wrap around to the right number.
        outside = (jnp.min(sent.counts) < counts_start) | (jnp.max(sent.counts) > drawn)
        return {f"its label counts are not those of {drawn} draws": outside | (jnp.sum(sent.counts) != drawn)}

    return wrap(
        base,
        server_init=server_init,
        broadcast=lambda own, round: own._replace(optimizer=None),
        local_start=lambda local: jnp.full(classes, counts_start),
        ahead=ahead,
        local_loss=local_loss,
        local_finish=lambda params, counts, local: (Upload(counts), None),
        server_update=server_update,
        check_upload=check_upload,
        needs=fl.Needs(individual_uploads=True),
    )
