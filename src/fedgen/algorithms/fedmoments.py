"""Class moments: FedGen's idea with a generator in closed form, a Gaussian of each label's latent features.

Users add up number, sum and outer products of the latent vectors z of each label, and upload these sums. The server
makes mean mu_y and covariance Sigma_y of them and broadcasts these. A user minimises

    CE + w * CE(h(z'), y') + lam * |z - mu_y|^2 / (d * mean variance)

with y' uniform over the known labels and z' ~ N(mu_y', Sigma_y'), corrected as in FedDyn (of weight `dyn`) or, with
`control`, as in SCAFFOLD. The server predicts with its model (or a running mean, `ema`) after fitting the predictor
again on such z'; users never get that.
"""

import jax.numpy as jnp

from fedgen.algorithms import gaussians as moments
from fedgen.algorithms.class_means import of_known
from fedgen.algorithms.feddyn import feddyn
from fedgen.algorithms.gaussians import Gaussians
from fedgen.algorithms.scaffold import scaffold
from fedgen.algorithms.wrap import With, with_predictor, wrap
from fedgen.core import contract as fl
from fedgen.core.losses import cross_entropy
from fedgen.core.trees import is_off


def fedmoments(
    task: fl.Task,
    federation: fl.Federation,
    *,
    w: fl.Scalar = 0.1,
    lam: fl.Scalar = 0.03,
    dyn: fl.Scalar = 0.1,
    control: bool = False,
    memory: fl.UpTo1 = 0.5,
    virtual: fl.Count = 32,
    collect: moments.Collect = "training",
    reach: fl.Scalar = 0.0,
    noise: fl.Scalar = 0.0,
    refit_steps: int = 50,
    refit_batch: fl.Count = 256,
    refit_lr: fl.Scalar = 1e-3,
) -> fl.Algorithm:
    """FedDyn or SCAFFOLD, and Gaussians of each label's features, learned from sums, that all users train against."""
    model, classes = task.model, task.classes

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
            value = value + lam * of_known(distance, batch, labels, received.known)
        loss = moments.added_up(loss, labels, reach) if collect == "training" else loss
        return loss._replace(value=value)

    def server_update(server: With, average: fl.Tree, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        sums = moments.remembered(server.own.sums, uploads.own, memory, federation)
        return With(average, moments.moments_of(sums)), {}

    def calibrate(server: With, shown: With, round: fl.Round) -> With:
        how = (server.own.gaussians, round.key, refit_steps, refit_batch, refit_lr)
        return with_predictor(shown, lambda predictor: moments.refit(model, predictor, *how))

    return wrap(
        scaffold(task, federation) if control else feddyn(task, federation, mu=dyn),
        server_init=lambda key: moments.moments_of(moments.packed(moments.no_sums(classes, task.latent_size()))),
        broadcast=lambda own, round: moments.needed(own.gaussians, draws=not is_off(w), means=not is_off(lam)),
        ahead=None if is_off(w) else ahead,
        local_loss=local_loss,
        server_update=server_update,
        calibrate=calibrate if refit_steps else None,
        **moments.collecting(task, federation, collect, reach, noise),
    )
