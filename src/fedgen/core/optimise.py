"""The one loop of gradient steps: clients, the generator and distillation all descend through it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedgen.core.contract import Array, Tree

LossFunction = Callable[[Tree, Tree, Tree], tuple[Array, Tree]]  # params, memo, input -> loss, memo
Correct = Callable[[Tree, Tree, Tree], Tree]  # gradient, params, input -> gradient


class Descended(NamedTuple):
    """Where the steps led to."""

    params: Tree
    memo: Tree
    state: Tree  # of the optimiser
    loss: Array  # the mean over the steps


def descend(
    loss: LossFunction,
    params: Tree,
    memo: Tree,
    optimizer: optax.GradientTransformation,
    state: Tree,
    inputs: Tree,
    *,
    correct: Correct | None = None,
    steps: Array | None = None,
) -> Descended:
    """One gradient step for each entry of `inputs`, or for the first `steps` of them.

    `correct` may change a gradient before the optimiser gets it.
    """

    def step(carry: tuple[Tree, Tree, Tree], item: Tree) -> tuple[tuple[Tree, Tree, Tree], Array]:
        params, memo, state = carry
        (value, memo), gradient = jax.value_and_grad(loss, has_aux=True)(params, memo, item)
        if correct is not None:
            gradient = correct(gradient, params, item)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), memo, state), value

    if steps is None:
        (params, memo, state), losses = jax.lax.scan(step, (params, memo, state), inputs)
        return Descended(params, memo, state, jnp.mean(losses))

    def one_more(number: Array, carry: tuple[tuple[Tree, Tree, Tree], Array]) -> tuple[tuple[Tree, Tree, Tree], Array]:
        reached, total = carry
        reached, value = step(reached, jax.tree.map(lambda a: a[number], inputs))
        return reached, total + value

    begin = (params, memo, state), jnp.zeros(())
    (params, memo, state), total = jax.lax.fori_loop(0, steps, one_more, begin)
    return Descended(params, memo, state, total / jnp.maximum(steps, 1))
