"""Class moments: FedGen's idea with a generator in closed form, a Gaussian of each label's latent features.

Users add up number, sum and outer products of the latent vectors z of each label, and upload these sums. The server
makes mean mu_y and covariance Sigma_y of them and broadcasts these. A user minimises

    CE + w * CE(h(z'), y') + lam * |z - mu_y|^2 / (d * mean variance)

with y' uniform over the known labels and z' ~ N(mu_y', Sigma_y'), and FedDyn's correction of weight `dyn`. The server
predicts with its model (with `ema`: a running mean of them) after its predictor was fitted again on such z'; users
receive the model as it is.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms import gaussians as moments
from fedgen.algorithms.feddyn import feddyn
from fedgen.algorithms.gaussians import Gaussians, Sums
from fedgen.algorithms.wrap import With, innermost, with_innermost, wrap
from fedgen.core import contract as fl
from fedgen.core.losses import cross_entropy
from fedgen.core.trees import is_off


class Moments(NamedTuple):
    """What the server keeps."""

    sums: Sums
    gaussians: Gaussians


def fedmoments(
    task: fl.Task,
    federation: fl.Federation,
    *,
    w: fl.Scalar = 0.1,
    lam: fl.Scalar = 0.03,
    dyn: fl.Scalar = 0.1,
    memory: fl.Scalar = 0.5,
    virtual: fl.Count = 32,
    collect: moments.Collect = "training",
    refit_steps: int = 50,
    refit_batch: fl.Count = 256,
    refit_lr: fl.Scalar = 1e-3,
) -> fl.Algorithm:
    """FedDyn, and Gaussians of each label's features, learned from sums alone, that all users train against."""
    base, model, classes, latent = feddyn(task, federation, mu=dyn), task.model, task.classes, task.latent_size()
    in_training = collect == "training"

    def server_init(key: fl.Array) -> Moments:
        nothing = moments.packed(moments.no_sums(classes, latent))
        return Moments(nothing, moments.gaussians_of(nothing))

    def ahead(batch: fl.Batch, local: fl.Local, step: fl.Step) -> tuple[fl.Array, fl.Array]:
        received: Gaussians = local.received.own
        return moments.draw(received, moments.factors(received), step.key, virtual)

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        received: Gaussians = local.received.own
        value = loss.value
        if not is_off(w):
            z, y = step.ahead
            value = value + w * jnp.mean(cross_entropy(model.predict(params.predictor, z), y))
        labels = batch.one_hot(classes)
        if not is_off(lam):
            distance = jnp.mean((loss.z - labels @ received.mean) ** 2, axis=-1) / received.spread
            value = value + lam * batch.mean(distance * (labels @ received.known))
        if in_training:
            seen = moments.sums_of(jax.lax.stop_gradient(loss.z), labels)
            loss = loss._replace(memo=jax.tree.map(jnp.add, loss.memo, seen))
        return loss._replace(value=value)

    def local_finish(params: fl.Params, memo: fl.Tree, local: fl.Local) -> tuple[Sums, None]:
        return moments.packed(memo if in_training else getattr(local, collect)), None

    def server_update(server: With, average: fl.Tree, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        sums = moments.remembered(server.own.sums, uploads.own, memory, federation)
        return With(average, Moments(sums, moments.gaussians_of(sums))), {}

    def calibrate(server: With, shown: With, round: fl.Round) -> With:
        parts = innermost(shown)
        predictor = moments.refit(
            model, parts.params.predictor, server.own.gaussians, round.key, refit_steps, refit_batch, refit_lr
        )
        return with_innermost(shown, parts._replace(params=parts.params._replace(predictor=predictor)))

    drawn = federation.local_steps * federation.batch_size if in_training and not federation.local_epochs else 0
    return wrap(
        base,
        server_init=server_init,
        broadcast=lambda own, round: own.gaussians,
        local_start=(lambda local: moments.no_sums(classes, latent)) if in_training else None,
        ahead=None if is_off(w) else ahead,
        local_loss=local_loss,
        local_finish=local_finish,
        server_update=server_update,
        check_upload=lambda sent: moments.check_sums(sent, drawn),
        calibrate=calibrate if refit_steps else None,
        before=moments.summing(task) if collect == "before" else None,
        after=moments.summing(task) if collect == "after" else None,
    )
