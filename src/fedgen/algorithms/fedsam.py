"""FedSAM (Qu et al. 2022; Caldarola et al. 2022): users step along the gradient at the worst point nearby.

That point is theta + rho * g / ||g||, g the mini-batch's gradient at theta (SAM, Foret et al. 2021).
"""

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import fedavg
from fedgen.core import contract as fl
from fedgen.core.trees import is_off, squared_distance


def fedsam(task: fl.Task, federation: fl.Federation, *, rho: fl.Scalar = 0.05) -> fl.Algorithm:
    """FedAvg whose users train by sharpness-aware minimisation."""
    base = fedavg(task, federation)
    if is_off(rho):
        return base

    def local_loss(params: fl.Params, memo: fl.Tree, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        here = jax.lax.stop_gradient(params)
        gradient = jax.grad(lambda p: base.local_loss(p, memo, batch, local, step).value)(here)
        length = jnp.sqrt(squared_distance(gradient, jax.tree.map(jnp.zeros_like, gradient)))
        scale = rho / jnp.maximum(length, 1e-12)
        worst = jax.tree.map(lambda p, g: p + scale * g, params, gradient)
        return base.local_loss(worst, memo, batch, local, step)

    return base._replace(local_loss=local_loss)
