"""FedProx (Li et al. 2020): FedAvg with a proximal term that holds users near the model they received."""

from fedgen.algorithms.fedavg import Broadcast, Client, fedavg
from fedgen.core.contract import Algorithm, Array, Batch, Clock, Federation, Params, Scalar, Task, Tree
from fedgen.core.trees import is_off, squared_distance


def fedprox(task: Task, federation: Federation, *, mu: Scalar = 0.1) -> Algorithm:
    """FedAvg plus (mu/2) * ||theta - theta_received||^2 in each user's loss."""
    base = fedavg(task, federation)
    if is_off(mu):
        return base

    def local_loss(
        params: Params, memo: Tree, batch: Batch, received: Broadcast, client: Client, clock: Clock
    ) -> tuple[Array, Tree]:
        loss, memo = base.local_loss(params, memo, batch, received, client, clock)
        # A part that is not shared has no received value to stay near to.
        distances = [
            squared_distance(now, then) for now, then in zip(params, received.params, strict=True) if then is not None
        ]
        return loss + 0.5 * mu * sum(distances), memo

    return base._replace(local_loss=local_loss)
