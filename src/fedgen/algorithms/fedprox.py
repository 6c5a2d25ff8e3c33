"""FedProx (Li et al. 2020): FedAvg with a proximal term that holds users near the model they received."""

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import wrap
from fedgen.core import contract as fl
from fedgen.core.trees import is_off, squared_distance


def fedprox(task: fl.Task, federation: fl.Federation, *, mu: fl.Scalar = 0.1) -> fl.Algorithm:
    """FedAvg plus (mu/2) * ||theta - theta_received||^2 in each user's loss."""
    base = fedavg(task, federation)
    if is_off(mu):
        return base

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        # A part that is not shared has no received value to stay near to.
        shared = [(now, then) for now, then in zip(params, local.received.params, strict=True) if then is not None]
        distance = sum(squared_distance(now, then) for now, then in shared)
        return loss._replace(value=loss.value + 0.5 * mu * distance)

    return wrap(base, local_loss=local_loss)
