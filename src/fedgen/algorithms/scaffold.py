"""SCAFFOLD (Karimireddy et al. 2020): control variates correct each step for the drift of a user from the others.

User k steps along g - c_k + c, where c_k estimates its own mean gradient and c that of all users. Both are learned as
the paper's option II does it, from what a round moved. Only what is shared has control variates.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import Parts, fedavg
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.aggregate import bounded, clipped, combine
from fedgen.core.trees import join, split


class Control(NamedTuple):
    """c at the server and in a broadcast, c_k at a user; in an upload c plus the change of c_k."""

    control: fl.Params


def scaffold(task: fl.Task, federation: fl.Federation) -> fl.Algorithm:
    """FedAvg with control variates: users correct their steps for what the others' data would have said."""

    def shared(params: fl.Params) -> fl.Params:
        return split(params, federation.share)[0]

    def none_yet(key: fl.Array) -> Control:
        return Control(jax.tree.map(jnp.zeros_like, shared(task.model.init(key)[0])))

    def local_gradient(gradient: fl.Params, params: fl.Params, local: fl.Local, step: fl.Step) -> fl.Params:
        everyone, mine = local.received.own.control, local.client.own.control
        part, rest = split(gradient, federation.share)
        return join(jax.tree.map(lambda g, c, c_k: g - c_k + c, part, everyone, mine), rest)

    def local_finish(params: fl.Params, memo: fl.Tree, local: fl.Local) -> tuple[Control, Control]:
        # (x - y_k) / (K eta), the mean of the K corrected gradients, is c plus the change of c_k; unknown at rate 0.
        everyone, moves = local.received.own.control, local.rate > 0
        way = local.steps * jnp.where(moves, local.rate, 1.0)
        mean = jax.tree.map(
            lambda x, y, c: jnp.where(moves, (x - y) / way, c), shared(local.start), shared(params), everyone
        )
        kept = jax.tree.map(lambda c_k, c, m: c_k - c + m, local.client.own.control, everyone, mean)
        return Control(mean), Control(kept)

    def server_update(server: With, average: Parts, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        part = round.cohort.shape[0] / federation.users  # the fraction of users that took part
        taken = bounded(clipped(uploads.own, server.own, federation.clip), server.own, federation)
        sent = combine(taken, None, federation)
        return With(average, jax.tree.map(lambda c, m: c + part * (m - c), server.own, sent)), {}

    return wrap(
        fedavg(task, federation),
        server_init=none_yet,
        client_init=none_yet,
        broadcast=lambda own, round: own,
        local_gradient=local_gradient,
        local_finish=local_finish,
        server_update=server_update,
        needs=fl.Needs(accumulates=True),
    )
