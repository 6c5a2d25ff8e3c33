"""FedLC (Zhang et al. 2022): a user's logits are calibrated by how many samples of each label it holds.

The cross-entropy is that of g_y - tau * n_y^(-1/4): labels that a user has few of are pushed less far down by the rest.
"""

import jax.numpy as jnp

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import wrap
from fedgen.core import contract as fl
from fedgen.core.losses import cross_entropy
from fedgen.core.trees import is_off

_ABSENT = 1e-8  # in place of 0 samples of a label: the margin is then a hundred times that of one sample


def fedlc(task: fl.Task, federation: fl.Federation, *, tau: fl.Scalar = 1.0) -> fl.Algorithm:
    """FedAvg whose users calibrate their logits by their own label counts."""
    base = fedavg(task, federation)
    if is_off(tau):
        return base

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        margin = tau * jnp.maximum(local.counts.astype(jnp.float32), _ABSENT) ** -0.25  # [label]
        return loss._replace(value=batch.mean(cross_entropy(loss.logits - margin, batch.y)))

    return wrap(base, local_loss=local_loss)
