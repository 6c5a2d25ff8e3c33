"""FedDistill+, a baseline of the FedGen paper: FedAvg, and users share the mean logits of each label beside it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms import class_means
from fedgen.algorithms.fedavg import averaging
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.aggregate import bounded, clipped, combine_given
from fedgen.core.losses import kl
from fedgen.core.trees import is_off


class Known(NamedTuple):
    """What is known of each label, at the server and in a broadcast."""

    logits: fl.Array  # [label, class] the mean logit vector of each label
    known: fl.Array  # [label] 1.0 once some user has sent the label


class Tally(NamedTuple):
    """Logits summed while training, per label of the sample."""

    logits: fl.Array  # [label, class]
    samples: fl.Array  # [label]


class Client(NamedTuple):
    """The tally where it is never reset."""

    tally: Tally


class Upload(NamedTuple):
    """The mean logits of each label and which labels were seen."""

    logits: fl.Array  # [label, class]
    seen: fl.Array  # [label] bool


def feddistill_plus(
    task: fl.Task,
    federation: fl.Federation,
    share: fl.Share | None = None,
    *,
    gamma: fl.Scalar = 0.1,
    reset: bool = True,
    unseen_as_zeros: bool = False,
    counts_start: int = 0,
) -> fl.Algorithm:
    """FedAvg and FedDistill together: share the model and the mean logits of each label.

    Users add gamma * KL(softmax(mean logits of label y) || h(x)) to their loss. `reset=False` keeps the
    logit sums over all rounds, `unseen_as_zeros` averages a user's unseen labels in as zeros and
    `counts_start=1` counts one sample too many per label: the three habits of the authors' code.
    """
    share = share or federation.share
    base = averaging(task, federation, download=share, upload=share)
    classes = task.classes

    def empty_tally() -> Tally:
        return Tally(jnp.zeros((classes, classes)), jnp.full(classes, float(counts_start)))

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        labels = batch.one_hot(classes)  # [sample, label]
        value, received = loss.value, local.received.own
        if not is_off(gamma):
            divergence = kl(labels @ received.logits, loss.logits)
            value = value + gamma * class_means.of_known(divergence, batch, labels, received.known)
        seen = class_means.sums_of(jax.lax.stop_gradient(loss.logits), labels)
        return loss._replace(value=value, memo=Tally(*map(jnp.add, loss.memo, seen)))

    def local_finish(params: fl.Params, tally: Tally, local: fl.Local) -> tuple[Upload, Client | None]:
        means = class_means.means_of(class_means.Sums(*tally))
        return Upload(means, tally.samples > counts_start), None if reset else Client(tally)

    def server_update(server: With, average: fl.Tree, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        own, sent = server.own, uploads.own
        given = jnp.ones_like(sent.seen) if unseen_as_zeros else sent.seen  # [user, label]
        logits = jnp.where(given[..., None], sent.logits, own.logits)
        taken = bounded(clipped(logits, own.logits, federation.clip), own.logits, federation)
        means = combine_given(taken, given, federation)
        return With(average, Known(*class_means.renewed(means, jnp.any(given, axis=0), *own))), {}

    return wrap(
        base,
        server_init=lambda key: Known(jnp.zeros((classes, classes)), jnp.zeros(classes)),
        client_init=lambda key: None if reset else Client(empty_tally()),
        broadcast=lambda own, round: own,
        local_start=lambda local: empty_tally() if reset else local.client.own.tally,
        local_loss=local_loss,
        local_finish=local_finish,
        server_update=server_update,
        needs=fl.Needs(individual_uploads=True),
    )
