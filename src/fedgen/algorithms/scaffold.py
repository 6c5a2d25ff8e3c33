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
from fedgen.core.aggregate import combine
from fedgen.core.trees import join, split


class Control(NamedTuple):
    """A control variate: c at the server and in a broadcast, c_k at a user, and what c_k changed by in an upload."""

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
        # c_k+ = c_k - c + (x - y_k) / (K eta): the mean gradient over the K steps of this round.
        scale = 1 / (local.steps * local.rate)
        moved = jax.tree.map(lambda x, y: scale * (x - y), shared(local.start), shared(params))
        change = jax.tree.map(lambda c, m: m - c, local.received.own.control, moved)
        kept = jax.tree.map(lambda c_k, d: c_k + d, local.client.own.control, change)
        return Control(change), Control(kept)

    def server_update(server: With, average: Parts, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        part = round.cohort.shape[0] / federation.users  # the fraction of users that took part
        change = combine(uploads.own.control, None, federation)
        control = jax.tree.map(lambda c, d: c + part * d, server.own.control, change)
        return With(average, Control(control)), {}

    return wrap(
        fedavg(task, federation),
        server_init=none_yet,
        client_init=none_yet,
        broadcast=lambda own, round: own,
        local_gradient=local_gradient,
        local_finish=local_finish,
        server_update=server_update,
    )
