"""FedNTD (Lee et al. 2022): distillation of the received model on the labels that a sample does not have.

To the loss comes beta * t^2 * KL(q_received || q) over all labels but the true one, q = softmax(logits / t) without it:
a user that lacks a label does not forget it. What the received model says is computed ahead.
"""

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import wrap
from fedgen.core import contract as fl
from fedgen.core.losses import infer, kl
from fedgen.core.trees import is_off

_NEVER = -1e9  # a logit that softmax makes 0


def fedntd(
    task: fl.Task, federation: fl.Federation, *, beta: fl.Scalar = 1.0, temperature: fl.Above0 = 1.0
) -> fl.Algorithm:
    """FedAvg with distillation of the received model on the labels that a sample does not have."""
    base, model = fedavg(task, federation), task.model
    if is_off(beta):
        return base

    def ahead(batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Array:
        return infer(model, *base.local_start(local), batch.x)  # [batch, class]

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        true = jax.nn.one_hot(batch.y, task.classes, dtype=bool)

        def others(logits: fl.Array) -> fl.Array:
            return jnp.where(true, _NEVER, logits / temperature)

        forgotten = batch.mean(kl(others(step.ahead), others(loss.logits)))
        return loss._replace(value=loss.value + beta * temperature**2 * forgotten)

    return wrap(base, ahead=ahead, local_loss=local_loss)
