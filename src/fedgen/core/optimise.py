"""The one loop of gradient steps: clients, the generator and distillation all descend through it."""

from collections.abc import Callable

import jax
import optax

from fedgen.core.contract import Array, Tree

Loss = Callable[[Tree, Tree, Tree], tuple[Array, Tree]]  # params, memo, input -> loss, memo


def descend(
    loss: Loss, params: Tree, memo: Tree, optimizer: optax.GradientTransformation, state: Tree, inputs: Tree
) -> tuple[Tree, Tree, Tree, Array]:
    """One gradient step for each entry of `inputs`; gives params, memo, optimiser state and the losses."""

    def step(carry: tuple[Tree, Tree, Tree], item: Tree) -> tuple[tuple[Tree, Tree, Tree], Array]:
        params, memo, state = carry
        (value, memo), gradient = jax.value_and_grad(loss, has_aux=True)(params, memo, item)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), memo, state), value

    (params, memo, state), losses = jax.lax.scan(step, (params, memo, state), inputs)
    return params, memo, state, losses
