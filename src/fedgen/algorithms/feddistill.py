"""FedDistill (Jeong et al. 2018) and FedDistill+: users share the mean logits of each label.

FedDistill shares no parameters at all; FedDistill+, the FedGen paper's stronger baseline, shares the
model as FedAvg does and the logits beside it. Both are the same wrapper around another kind of sharing.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import fedavg
from fedgen.core.aggregate import bounded, combine_given
from fedgen.core.contract import Algorithm, Array, Batch, Clock, Federation, Params, Round, Scalar, Task, Tree
from fedgen.core.losses import kl, supervised
from fedgen.core.trees import is_off
from fedgen.errors import FedgenError


class Server(NamedTuple):
    """The wrapped algorithm's server and what is known of each label."""

    base: Any
    logits: Array  # [label, class] the mean logit vector of each label
    known: Array  # [label] 1.0 once some user has sent the label


Broadcast = Server  # the same three things travel down, the first as the wrapped broadcast


class Tally(NamedTuple):
    """Logits summed while training, per label of the sample."""

    logits: Array  # [label, class]
    samples: Array  # [label]


class Client(NamedTuple):
    """The wrapped client, and the tally where it is never reset."""

    base: Any
    tally: Tally | None


class Upload(NamedTuple):
    """The wrapped upload, the mean logits of each label and which labels were seen."""

    base: Any
    logits: Array  # [label, class]
    seen: Array  # [label] bool


def feddistill(
    task: Task,
    federation: Federation,
    *,
    gamma: Scalar = 0.1,
    reset: bool = True,
    unseen_as_zeros: bool = False,
    counts_start: int = 0,
) -> Algorithm:
    """Share the mean logits of each label and nothing else; users keep their own models."""
    if federation.share != "all":
        raise FedgenError("feddistill shares no parameters, so --share does not apply; use feddistill+")
    alone = federation.with_values(share="nothing")
    return feddistill_plus(
        task, alone, gamma=gamma, reset=reset, unseen_as_zeros=unseen_as_zeros, counts_start=counts_start
    )


def feddistill_plus(
    task: Task,
    federation: Federation,
    *,
    gamma: Scalar = 0.1,
    reset: bool = True,
    unseen_as_zeros: bool = False,
    counts_start: int = 0,
) -> Algorithm:
    """FedAvg and FedDistill together: share the model and the mean logits of each label.

    Users add gamma * KL(softmax(mean logits of label y) || h(x)) to their loss. `reset=False` keeps the
    logit sums over all rounds, `unseen_as_zeros` averages a user's unseen labels in as zeros and
    `counts_start=1` counts one sample too many per label: the three habits of the authors' code.
    """
    base = fedavg(task, federation)
    classes = task.classes

    def empty_tally() -> Tally:
        return Tally(jnp.zeros((classes, classes)), jnp.full(classes, float(counts_start)))

    def server_init(key: Array) -> Server:
        return Server(base.server_init(key), jnp.zeros((classes, classes)), jnp.zeros(classes))

    def client_init(key: Array) -> Client:
        return Client(base.client_init(key), None if reset else empty_tally())

    def broadcast(server: Server, round: Array) -> Broadcast:
        return Broadcast(base.broadcast(server.base, round), server.logits, server.known)

    def local_start(received: Broadcast, client: Client) -> tuple[Params, tuple[Tree, Tally]]:
        params, statistics = base.local_start(received.base, client.base)
        return params, (statistics, empty_tally() if client.tally is None else client.tally)

    def local_loss(
        params: Params, memo: tuple[Tree, Tally], batch: Batch, received: Broadcast, client: Client, clock: Clock
    ) -> tuple[Array, tuple[Tree, Tally]]:
        statistics, tally = memo
        loss, forward = supervised(task.model, params, statistics, batch)
        labels = jax.nn.one_hot(batch.y, classes)  # [sample, label]
        if not is_off(gamma):
            divergence = kl(labels @ received.logits, forward.logits)
            loss = loss + gamma * jnp.mean(divergence * (labels @ received.known))
        seen = jax.lax.stop_gradient(forward.logits)
        tally = Tally(tally.logits + labels.T @ seen, tally.samples + jnp.sum(labels, axis=0))
        return loss, (forward.statistics, tally)

    def local_finish(
        params: Params, memo: tuple[Tree, Tally], received: Broadcast, client: Client, samples: Array
    ) -> tuple[Upload, Client]:
        statistics, tally = memo
        sent, kept = base.local_finish(params, statistics, received.base, client.base, samples)
        means = tally.logits / jnp.maximum(tally.samples, 1.0)[:, None]
        return Upload(sent, means, tally.samples > counts_start), Client(kept, None if reset else tally)

    def server_update(server: Server, uploads: Upload, round: Round) -> tuple[Server, dict[str, Array]]:
        average, metrics = base.server_update(server.base, uploads.base, round)
        given = jnp.ones_like(uploads.seen) if unseen_as_zeros else uploads.seen  # [user, label]
        sent = jnp.where(given[..., None], uploads.logits, server.logits)
        means = combine_given(bounded(sent, server.logits, federation.clip), given, federation)
        # A label that nobody saw this round keeps what was known of it.
        heard = jnp.any(given, axis=0)
        return Server(
            average,
            jnp.where(heard[:, None], means, server.logits),
            jnp.maximum(server.known, heard.astype(jnp.float32)),
        ), metrics

    predict_global, predict_local, check = base.predict_global, base.predict_local, base.check_upload
    predict_received = base.predict_received
    return Algorithm(
        server_init,
        client_init,
        broadcast,
        local_start,
        local_loss,
        local_finish,
        server_update,
        predict_global and (lambda server, x: predict_global(server.base, x)),
        predict_local and (lambda received, client, x: predict_local(received.base, client.base, x)),
        check_upload=check and (lambda sent: check(sent.base)),
        predict_received=predict_received
        and (lambda received, client, x: predict_received(received.base, client.base, x)),
    )
