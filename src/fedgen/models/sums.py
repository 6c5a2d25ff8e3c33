"""Sums of bfloat16 numbers in a network's gradient, made in float32.

Adding a bias to every sample and place has a sum over these as its derivative. XLA rounds such a sum to bfloat16 after
each addition, and 256 + 1 is 256 there: of many numbers next to nothing is right.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from fedgen.core.contract import Array, Tree


def sums_in_float32(f: Callable[..., Tree]) -> Callable[..., Tree]:
    """f of arrays; in its gradient sums over axes of bfloat16 numbers are rounded once, at their end."""

    def replaced(*arguments: Tree) -> Tree:
        leaves, form = jax.tree.flatten(arguments)
        is_float = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
        floats = tuple(leaf for leaf, yes in zip(leaves, is_float, strict=True) if yes)
        others = tuple(leaf for leaf, yes in zip(leaves, is_float, strict=True) if not yes)  # words, keys

        def of_both(floats: Sequence[Array], others: Sequence[Array]) -> Tree:
            left, right = iter(floats), iter(others)
            return f(*jax.tree.unflatten(form, [next(left) if yes else next(right) for yes in is_float]))

        def forward(floats: Sequence[Array], others: Sequence[Array]) -> tuple[Tree, Any]:
            return jax.vjp(lambda *floats: of_both(floats, others), *floats)

        def backward(back: Callable[[Tree], Tree], gradient: Tree) -> tuple[Tree, None]:
            closed, form = jax.make_jaxpr(back, return_shape=True)(gradient)
            found = _carried_out(closed.jaxpr, closed.consts, jax.tree.leaves(gradient))
            return jax.tree.unflatten(jax.tree.structure(form), found), None

        differentiable = jax.custom_vjp(of_both)
        differentiable.defvjp(forward, backward)
        return differentiable(floats, others)

    return replaced


def _carried_out(jaxpr: core.Jaxpr, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)
    for equation in jaxpr.eqns:
        names = [v for v in equation.invars if not isinstance(v, core.Literal)]
        given = [values[v] for v in names]
        if _is_coarse(equation):
            exact = jnp.sum(given[0].astype(jnp.float32), equation.params["axes"])
            values[equation.outvars[0]] = exact.astype(jnp.bfloat16)
            continue
        if _has_coarse(equation):
            equation = equation.replace(params={name: _exact(value) for name, value in equation.params.items()})
        at_hand = dict(zip(names, given, strict=True))
        alone = core.Jaxpr((), list(at_hand), equation.outvars, [equation], equation.effects, jaxpr.debug_info)
        results = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*at_hand.values())
        values |= zip(equation.outvars, results, strict=True)
    return [v.val if isinstance(v, core.Literal) else values[v] for v in jaxpr.outvars]


def _is_coarse(equation: core.JaxprEqn) -> bool:
    summed: Any = equation.invars[0].aval if equation.primitive.name == "reduce_sum" else None
    return summed is not None and bool(summed.dtype == jnp.bfloat16)


def _has_coarse(equation: core.JaxprEqn) -> bool:
    inner = core.jaxprs_in_params(equation.params)
    return any(_is_coarse(e) or _has_coarse(e) for jaxpr in inner for e in jaxpr.eqns)


def _exact(value: Any) -> Any:
    """An operation's parameter; where it is a function, or some, with their sums in float32."""
    if isinstance(value, tuple):
        return tuple(_exact(one) for one in value)
    if isinstance(value, core.Jaxpr):
        return _exact(core.ClosedJaxpr(value, ())).jaxpr
    if not isinstance(value, core.ClosedJaxpr):
        return value
    forms = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in value.jaxpr.invars]
    return jax.make_jaxpr(lambda *given: _carried_out(value.jaxpr, value.consts, given))(*forms)
