"""FedOpt (Reddi et al. 2021; Hsu et al. 2019): an optimiser at the server steps along the mean of users' updates."""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.algorithms.fedavg import Parts, fedavg
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.trees import is_off


class Optimizer(NamedTuple):
    """The state of the server's optimiser."""

    optimizer: Any


def fedopt(
    task: fl.Task,
    federation: fl.Federation,
    *,
    server: Literal["sgd", "adam", "yogi"] = "sgd",
    server_lr: fl.Scalar = 0.0,
    server_momentum: fl.Below1 = 0.9,
    second_moment: fl.Below1 = 0.99,
    tau: fl.Scalar = 1e-3,
) -> fl.Algorithm:
    """FedAvg with an optimiser at the server: FedAvgM (sgd), FedAdam (adam) or FedYogi (yogi).

    The gradient is theta - mean theta_k. `server_lr` 0 means 1 with sgd and 0.01 with the others. `server_momentum`
    is sgd's momentum and the others' first moment's, `tau` the number that Adam and Yogi add to the root of the second
    moment. BatchNorm statistics are averaged as they are.
    """
    base = fedavg(task, federation)
    rate = server_lr if not is_off(server_lr) else 1.0 if server == "sgd" else 0.01
    step = {
        "sgd": lambda: optax.sgd(rate, server_momentum),
        "adam": lambda: optax.adam(rate, server_momentum, second_moment, tau),
        "yogi": lambda: optax.yogi(rate, server_momentum, second_moment, tau),
    }[server]()

    def server_update(state: With, average: Parts, uploads: fl.Tree, round: fl.Round) -> tuple[With, fl.Metrics]:
        before = state.base.params
        gradient = jax.tree.map(jnp.subtract, before, average.params)
        updates, kept = step.update(gradient, state.own.optimizer, before)
        return With(average._replace(params=optax.apply_updates(before, updates)), Optimizer(kept)), {}

    return wrap(
        base,
        server_init=lambda key: Optimizer(step.init(base.server_init(key).params)),
        server_update=server_update,
        needs=fl.Needs(accumulates=server != "sgd" or not is_off(server_momentum)),
    )
