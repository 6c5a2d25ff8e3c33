"""FedProto (Tan et al. 2022): users share the mean features of each label, prototypes, and no parameters at all.

To a user's loss comes lam * |z - c_y|^2 / d, c_y the label's prototype over all users. A user predicts the label whose
prototype is nearest to z.
"""

from typing import Literal, NamedTuple

import jax.numpy as jnp

from fedgen.algorithms import class_means
from fedgen.algorithms.class_means import Sums
from fedgen.algorithms.fedavg import averaging
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.losses import infer
from fedgen.core.trees import is_off
from fedgen.errors import FedgenError


class Prototypes(NamedTuple):
    """At the server and in a broadcast."""

    prototypes: fl.Array  # [label, latent]
    known: fl.Array  # [label] 1.0 once some user has sent the label


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
    model, classes, counted = task.model, task.classes, average == "samples"

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        received: Prototypes = local.received.own
        labels = batch.one_hot(classes)
        distance = jnp.mean((loss.z - labels @ received.prototypes) ** 2, axis=-1)
        return loss._replace(value=loss.value + lam * class_means.of_known(distance, batch, labels, received.known))

    def after(params: fl.Params, statistics: fl.Tree, batch: fl.Batch, local: fl.Local) -> Sums:
        z, _ = model.extract(params.extractor, statistics, batch.x, False)
        return class_means.sums_of(z, batch.one_hot(classes))

    def local_finish(params: fl.Params, memo: fl.Tree, local: fl.Local) -> tuple[Sums, None]:
        return local.after if counted else class_means.each_once(local.after), None

    def server_update(server: With, new: fl.Tree, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        means, seen = class_means.pooled(uploads.own, federation, counted=counted)
        return With(new, Prototypes(*class_means.renewed(means, seen, *server.own))), {}

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
        check_upload=lambda sent: class_means.check_sums(sent, counted=counted),
        predict_local=predict_local,
    )
