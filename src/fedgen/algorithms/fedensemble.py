"""FedEnsemble: FedAvg whose prediction is the ensemble of the users' own models (a baseline of the FedGen paper)."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import Parts, Upload, fedavg, taken
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.aggregate import combine_given
from fedgen.core.losses import infer
from fedgen.errors import FedgenError


class Members(NamedTuple):
    """The last model of each user."""

    params: fl.Params  # [user, ...]
    statistics: fl.Tree  # [user, ...]
    member: fl.Array  # [user] 1.0 where the model takes part in the ensemble


def fedensemble(task: fl.Task, federation: fl.Federation, *, members: Literal["all", "active"] = "all") -> fl.Algorithm:
    """Train as FedAvg; predict with the mean logits of all users' last models (or the last cohort's)."""
    if federation.share != "all":
        raise FedgenError("fedensemble combines whole models, so it needs --share all")
    base = fedavg(task, federation)

    def server_init(key: fl.Array) -> Members:
        initial = base.server_init(key)
        alike = jax.tree.map(lambda a: jnp.broadcast_to(a, (federation.users, *a.shape)), initial)
        return Members(alike.params, alike.statistics, jnp.zeros(federation.users))

    def server_update(server: With, average: Parts, uploads: Upload, round: fl.Round) -> tuple[With, fl.Metrics]:
        own: Members = server.own
        cohort = taken(server.base, uploads, federation)
        remembered = jax.tree.map(lambda a, new: a.at[round.cohort].set(new), Parts(own.params, own.statistics), cohort)
        before = own.member if members == "all" else jnp.zeros_like(own.member)
        return With(average, Members(remembered.params, remembered.statistics, before.at[round.cohort].set(1.0))), {}

    def predict_global(server: With, x: fl.Array) -> fl.Array:
        own: Members = server.own
        if federation.aggregation != "mean":
            logits = jax.lax.map(
                lambda of_user: infer(task.model, of_user[0], of_user[1], x), (own.params, own.statistics)
            )
            given = jnp.broadcast_to(own.member[:, None] > 0, logits.shape[:2])
            return combine_given(logits, given, federation)

        def add(total: fl.Array, user: tuple[fl.Params, fl.Tree, fl.Array]) -> tuple[fl.Array, None]:
            params, statistics, member = user
            # Users that have not taken part yet have the initial model here, with weight 0.
            return total + member * infer(task.model, params, statistics, x), None

        total, _ = jax.lax.scan(add, jnp.zeros((x.shape[0], task.classes)), own)
        return total / jnp.maximum(jnp.sum(own.member), 1.0)

    return wrap(
        base,
        server_init=server_init,
        server_update=server_update,
        predict_global=predict_global,
        predict_local=None,  # users do not receive the ensemble that they predict with
        personal=False,  # also where they keep their own statistics
        needs=fl.Needs(individual_uploads=True),
    )
