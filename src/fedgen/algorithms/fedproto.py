"""FedProto (Tan et al. 2022): users share the mean features of each label, prototypes, and no parameters at all.

To a user's loss comes lam * |z - c_y|^2 / d, c_y the label's prototype over all users. A user predicts the label whose
prototype is nearest to z.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp

from fedgen.algorithms.fedavg import averaging
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.aggregate import combine, fair
from fedgen.core.losses import infer
from fedgen.core.trees import is_off
from fedgen.errors import FedgenError


class Prototypes(NamedTuple):
    """At the server and in a broadcast."""

    prototypes: fl.Array  # [label, latent]
    known: fl.Array  # [label] 1.0 once some user has sent the label


class Sums(NamedTuple):
    """Of a user's features, per label; or its own prototypes, with a weight of 1 for each label that it has."""

    first: fl.Array  # [label, latent]
    weight: fl.Array  # [label]


def fedproto(
    task: fl.Task,
    federation: fl.Federation,
    *,
    lam: fl.Scalar = 1.0,
    predict: Literal["prototype", "head"] = "prototype",
    average: Literal["samples", "users"] = "samples",
) -> fl.Algorithm:
    """Share the mean features of each label and nothing else; users keep their own models."""
    if federation.share != "all":
        raise FedgenError("fedproto shares prototypes and no parameters; leave out --share")
    base = averaging(task, federation, download="nothing", upload="nothing")
    model, classes = task.model, task.classes

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        received: Prototypes = local.received.own
        labels = batch.one_hot(classes)
        distance = jnp.mean((loss.z - labels @ received.prototypes) ** 2, axis=-1)
        return loss._replace(value=loss.value + lam * batch.mean(distance * (labels @ received.known)))

    def after(params: fl.Params, statistics: fl.Tree, batch: fl.Batch, local: fl.Local) -> Sums:
        labels = batch.one_hot(classes)
        z, _ = model.extract(params.extractor, statistics, batch.x, False)
        return Sums(labels.T @ z, jnp.sum(labels, axis=0))

    def local_finish(params: fl.Params, memo: fl.Tree, local: fl.Local) -> tuple[Sums, None]:
        sums: Sums = local.after
        if average == "samples":
            return sums, None
        return Sums(sums.first / jnp.maximum(sums.weight, 1.0)[:, None], (sums.weight > 0).astype(jnp.float32)), None

    def fair_sums(sums: Sums) -> Sums:
        """Sums [user, ...] of which no user's count more, and no prototype is longer, than `max_update` allows."""
        has = sums.weight > 0  # [user, label]
        lengths = jnp.sqrt(jnp.sum(sums.first**2, axis=-1)) / jnp.where(has, sums.weight, 1.0)
        shorter = fair(lengths, federation, has)
        less = fair(jnp.sum(sums.weight, axis=1), federation)[:, None] if average == "samples" else jnp.ones(())
        return Sums(sums.first * (shorter * less)[..., None], sums.weight * less)

    def check_upload(sent: Sums) -> dict[str, fl.Array]:
        wrong = {"it has counted a label less than no times": jnp.min(sent.weight) < 0}
        if average == "users":
            wrong["it gives a label another weight than 0 or 1"] = jnp.any((sent.weight != 0) & (sent.weight != 1))
        return wrong

    def server_update(server: With, new: fl.Tree, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        sent: Sums = combine(fair_sums(uploads.own), None, federation)
        seen = sent.weight > 0  # a label that nobody has in this round keeps its prototype
        means = sent.first / jnp.where(seen, sent.weight, 1.0)[:, None]
        own: Prototypes = server.own
        kept = Prototypes(
            jnp.where(seen[:, None], means, own.prototypes), jnp.maximum(own.known, seen.astype(jnp.float32))
        )
        return With(new, kept), {}

    def predict_local(received: With, client: fl.Tree, x: fl.Array) -> fl.Array:
        if predict == "head":
            return infer(model, client.params, client.statistics, x)
        z, _ = model.extract(client.params.extractor, client.statistics, x, False)
        distance = jnp.sum((z[:, None] - received.own.prototypes) ** 2, axis=-1)  # [sample, label]
        return jnp.where(received.own.known > 0, -distance, -jnp.inf)

    return wrap(
        base,
        server_init=lambda key: Prototypes(jnp.zeros((classes, task.latent_size())), jnp.zeros(classes)),
        broadcast=lambda own, round: own,
        local_loss=None if is_off(lam) else local_loss,
        after=after,
        local_finish=local_finish,
        server_update=server_update,
        check_upload=check_upload,
        predict_local=predict_local,
    )
