"""FedDyn (Acar et al. 2021): each user's objective is corrected so that all users' optima agree with that of the whole.

A user minimises L_k(theta) - <h_k, theta> + (mu/2) ||theta - theta_received||^2 and then sets
h_k <- h_k - mu (theta_k - theta_received). The server adds up what users moved,
h <- h - mu (A/K) (mean theta_k - theta), and sends mean theta_k - h / mu. Only what is shared is corrected.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import Parts, fedavg
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.trees import is_off, join, split


class Drift(NamedTuple):
    """h at the server, h_k at a user."""

    drift: fl.Params


def feddyn(task: fl.Task, federation: fl.Federation, *, mu: fl.Scalar = 0.1) -> fl.Algorithm:
    """FedAvg with dynamic regularisation: users and server accumulate the drift, and correct for it."""
    base = fedavg(task, federation)
    if is_off(mu):
        return base

    def shared(params: fl.Params) -> fl.Params:
        return split(params, federation.share)[0]

    def none_yet(key: fl.Array) -> Drift:
        return Drift(jax.tree.map(jnp.zeros_like, shared(task.model.init(key)[0])))

    def local_gradient(gradient: fl.Params, params: fl.Params, local: fl.Local, step: fl.Step) -> fl.Params:
        part, rest = split(gradient, federation.share)
        moved = jax.tree.map(jnp.subtract, shared(params), shared(local.start))
        return join(jax.tree.map(lambda g, h, m: g - h + mu * m, part, local.client.own.drift, moved), rest)

    def local_finish(params: fl.Params, memo: fl.Tree, local: fl.Local) -> tuple[None, Drift]:
        moved = jax.tree.map(jnp.subtract, shared(params), shared(local.start))
        return None, Drift(jax.tree.map(lambda h, m: h - mu * m, local.client.own.drift, moved))

    def server_update(server: With, average: Parts, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        part = round.cohort.shape[0] / federation.users  # the fraction of users that took part
        moved = jax.tree.map(jnp.subtract, average.params, server.base.params)
        drift = jax.tree.map(lambda h, m: h - mu * part * m, server.own.drift, moved)
        params = jax.tree.map(lambda mean, h: mean - h / mu, average.params, drift)
        return With(average._replace(params=params), Drift(drift)), {}

    return wrap(
        base,
        server_init=none_yet,
        client_init=none_yet,
        local_gradient=local_gradient,
        local_finish=local_finish,
        server_update=server_update,
        needs=fl.Needs(accumulates=True),
    )
