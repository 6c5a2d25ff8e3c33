"""FedEnsemble: FedAvg whose prediction is the ensemble of the users' own models (a baseline of the FedGen paper)."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import Server as AverageServer
from fedgen.algorithms.fedavg import Upload, fedavg, taken
from fedgen.core.aggregate import combine_given
from fedgen.core.contract import Algorithm, Array, Federation, Params, Round, Task, Tree
from fedgen.core.losses import infer
from fedgen.errors import FedgenError


class Server(NamedTuple):
    """FedAvg's server, and the last model of each user."""

    base: AverageServer
    params: Params  # [user, ...]
    statistics: Tree  # [user, ...]
    member: Array  # [user] 1.0 where the model takes part in the ensemble


def fedensemble(task: Task, federation: Federation, *, members: Literal["all", "active"] = "all") -> Algorithm:
    """Train as FedAvg; predict with the mean logits of all users' last models (or the last cohort's)."""
    if federation.share != "all":
        raise FedgenError("fedensemble combines whole models, so it needs --share all")
    base = fedavg(task, federation)

    def server_init(key: Array) -> Server:
        initial = base.server_init(key)
        per_user = jax.tree.map(
            lambda a: jnp.broadcast_to(a, (federation.users, *a.shape)), (initial.params, initial.statistics)
        )
        params, statistics = per_user
        return Server(initial, params, statistics, jnp.zeros(federation.users))

    def server_update(server: Server, uploads: Upload, round: Round) -> tuple[Server, dict[str, Array]]:
        average, metrics = base.server_update(server.base, uploads, round)
        params, statistics = taken(server.base, uploads, federation)

        def remember(all_users: Tree, cohort: Tree) -> Tree:
            return jax.tree.map(lambda a, new: a.at[round.cohort].set(new), all_users, cohort)

        before = server.member if members == "all" else jnp.zeros_like(server.member)
        return Server(
            average,
            remember(server.params, params),
            remember(server.statistics, statistics),
            before.at[round.cohort].set(1.0),
        ), metrics

    def predict_global(server: Server, x: Array) -> Array:
        if federation.aggregation != "mean":
            logits = jax.lax.map(
                lambda of_user: infer(task.model, of_user[0], of_user[1], x), (server.params, server.statistics)
            )
            given = jnp.broadcast_to(server.member[:, None] > 0, logits.shape[:2])
            return combine_given(logits, given, federation)

        def add(total: Array, user: tuple[Params, Tree, Array]) -> tuple[Array, None]:
            params, statistics, member = user
            # Users not heard of yet hold the initial model, which counts nothing.
            return total + member * infer(task.model, params, statistics, x), None

        start = jnp.zeros((x.shape[0], task.classes))
        total, _ = jax.lax.scan(add, start, (server.params, server.statistics, server.member))
        return total / jnp.maximum(jnp.sum(server.member), 1.0)

    return base._replace(
        server_init=server_init,
        broadcast=lambda server, round: base.broadcast(server.base, round),
        server_update=server_update,
        predict_global=predict_global,
        predict_local=None,  # users predict with the ensemble, also where they keep their own statistics
        predict_received=None,  # and they do not receive it
    )
