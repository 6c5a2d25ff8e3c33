"""A network's convolutions and pools, replaced before it is differentiated: its own code stays as it is.

The network is traced once more and its operations are carried out one by one, those in `REPLACED` by
`fedgen.models.convolution`. A network without any is called as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from fedgen.core.contract import Array, Model, Tree
from fedgen.models.convolution import Window, convolve, max_pool, sum_pool

LARGEST_POOL = 16  # places of a window; XLA pools larger ones


class Convolution(NamedTuple):
    """A convolution that a network contains: [in, *places, sample] with [*window, in / groups, out]."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: str
    window: Window

    @property
    def flops(self) -> int:
        """Floating-point operations of its forward pass, for one sample."""
        return 2 * prod(self.weight) * prod(self.window.outputs(self.x[1:-1]))


Choose = Callable[[Convolution], bool]  # whether a convolution becomes a product of patches


def rewritten_model(model: Model, choose: Choose) -> Model:
    """The same network with its pools, and the convolutions that `choose` picks, replaced."""

    def extract(extractor: Tree, statistics: Tree, x: Array, train: bool, *key: Array) -> tuple[Array, Tree]:
        inner = rewritten(lambda e, s, x, *k: model.extract(e, s, x, train, *k), choose)
        return inner(extractor, statistics, x, *key)

    return model._replace(extract=extract, predict=rewritten(model.predict, choose))


def rewritten(f: Callable[..., Tree], choose: Choose) -> Callable[..., Tree]:
    """f of arrays, with its pools, and the convolutions that `choose` picks, replaced."""

    def replaced(*arguments: Tree) -> Tree:
        closed, form = jax.make_jaxpr(f, return_shape=True)(*arguments)
        if not has_any(closed.jaxpr, REPLACED):
            return f(*arguments)
        results = _carried_out(closed.jaxpr, closed.consts, jax.tree.leaves(arguments), choose)
        return jax.tree.unflatten(jax.tree.structure(form), results)

    return replaced


def has_any(jaxpr: core.Jaxpr, names: Iterable[str]) -> bool:
    """Whether operations of these names are in a traced function, at any depth."""
    return any(equation.primitive.name in names or _within(equation, names) for equation in jaxpr.eqns)


def _within(equation: core.JaxprEqn, names: Iterable[str]) -> bool:
    return any(has_any(inner, names) for inner in core.jaxprs_in_params(equation.params))


def _carried_out(jaxpr: core.Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], choose: Choose) -> list[Any]:
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)

    def value(v: Any) -> Any:
        return v.val if isinstance(v, core.Literal) else values[v]

    for equation in jaxpr.eqns:
        name = equation.primitive.name
        results = None
        if name in REPLACED:
            results = REPLACED[name](choose, *map(value, equation.invars), **equation.params)
        elif name in _ENTERED and _within(equation, REPLACED):
            results = _ENTERED[name](choose, *map(value, equation.invars), **equation.params)
        if results is None:  # as it is
            free = list(dict.fromkeys(v for v in equation.invars if not isinstance(v, core.Literal)))
            alone = core.Jaxpr((), free, equation.outvars, [equation], equation.effects, jaxpr.debug_info)
            results = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*map(value, free))
        values |= zip(equation.outvars, results, strict=True)
    return [value(v) for v in jaxpr.outvars]


def _convolution(
    choose: Choose,
    x: Array,
    weight: Array,
    *,
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    precision: Any,
    preferred_element_type: Any,
    **_: Any,
) -> list[Array] | None:
    """XLA's convolution, whatever the order of its axes."""
    of_x, of_weight, of_y = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
    dimensions = x.ndim - 2
    ours = x.transpose(of_x[1], *of_x[2:], of_x[0])  # [in, *places, sample]
    kernel = weight.transpose(*of_weight[2:], of_weight[1], of_weight[0])  # [*window, in / groups, out]
    if any(step != 1 for step in lhs_dilation):  # a transposed convolution: zeros between the places
        between = [(0, 0, 0), *((0, 0, step - 1) for step in lhs_dilation), (0, 0, 0)]
        ours = lax.pad(ours, jnp.zeros((), x.dtype), between)
    window = Window(
        kernel.shape[:dimensions],
        tuple(window_strides),
        tuple((int(before), int(after)) for before, after in padding),
        tuple(rhs_dilation),
        feature_group_count,
        precision,
    )
    form = Convolution(ours.shape, kernel.shape, str(x.dtype), window)
    if batch_group_count != 1 or 0 in (*x.shape, *weight.shape) or not choose(form):
        return None
    y = convolve(ours, kernel, window, preferred_element_type)
    order = [0] * y.ndim
    for axis, place in enumerate((dimensions + 1, 0, *range(1, dimensions + 1))):  # sample, out, *places
        order[of_y[axis]] = place
    return [y.transpose(order)]


def _pool(how: Callable[[Array, Window], Array]) -> Callable[..., list[Array] | None]:
    def pool(
        choose: Choose,
        x: Array,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
        **_: Any,
    ) -> list[Array] | None:
        plain = all(step == 1 for step in base_dilation) and jnp.issubdtype(x.dtype, jnp.floating)
        if not plain or prod(window_dimensions) > LARGEST_POOL:
            return None
        window = Window(
            tuple(window_dimensions),
            tuple(window_strides),
            tuple((int(before), int(after)) for before, after in padding),
            tuple(window_dilation),
        )
        return [how(x, window)]

    return pool


REPLACED: dict[str, Callable[..., list[Array] | None]] = {
    "conv_general_dilated": _convolution,
    "reduce_window_max": _pool(max_pool),
    "reduce_window_sum": _pool(sum_pool),
}


def _function(closed: Any, choose: Choose) -> Callable[..., list[Any]]:
    """A traced function as one of arrays, rewritten."""
    jaxpr, constants = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
    return lambda *arguments: _carried_out(jaxpr, constants, arguments, choose)


def _call(choose: Choose, *arguments: Any, jaxpr: Any, **_: Any) -> list[Any]:
    return _function(jaxpr, choose)(*arguments)


def _checkpoint(
    choose: Choose, *arguments: Any, jaxpr: Any, policy: Any = None, prevent_cse: Any = True, **_: Any
) -> list[Any]:
    prevent = prevent_cse if isinstance(prevent_cse, bool) else any(prevent_cse)
    return jax.checkpoint(_function(jaxpr, choose), policy=policy, prevent_cse=prevent)(*arguments)


def _scan(
    choose: Choose,
    *arguments: Any,
    jaxpr: Any,
    num_consts: int,
    num_carry: int,
    length: int,
    reverse: bool,
    unroll: int,
    **_: Any,
) -> list[Any]:
    constants, carried = arguments[:num_consts], num_consts + num_carry
    body = _function(jaxpr, choose)

    def step(carry: Sequence[Any], x: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*constants, *carry, *x)
        return results[:num_carry], results[num_carry:]

    last, ys = lax.scan(step, list(arguments[num_consts:carried]), list(arguments[carried:]), length, reverse, unroll)
    return [*last, *ys]


def _cond(choose: Choose, index: Array, *arguments: Any, branches: Sequence[Any], **_: Any) -> list[Any]:
    return list(lax.switch(index, [_function(branch, choose) for branch in branches], *arguments))


# Operations with functions within, into which the replacing goes; into others (a gradient written by hand) it does not.
_ENTERED: dict[str, Callable[..., list[Any]]] = {
    "jit": _call,
    "pjit": _call,
    "checkpoint": _checkpoint,
    "remat2": _checkpoint,
    "scan": _scan,
    "cond": _cond,
}
