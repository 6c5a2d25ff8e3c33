"""A network's convolutions and pools, replaced before it is differentiated: its own code stays as it is.

The network is traced once more and its operations are carried out one by one, those in `REPLACED` by
`fedgen.models.convolution`, or on a CPU by `fedgen.models.channels_last`; what comes between them is done in the order
of axes that suits them (`fedgen.models.laid`). A network without any is called as it is.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from fedgen.core.contract import Array, Model, Tree
from fedgen.models.channels_last import by_winograd, by_xla
from fedgen.models.convolution import Window, convolve, max_pool, sum_pool
from fedgen.models.deferring import Deferred, as_array, deferred
from fedgen.models.laid import Laid

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


How = Literal["patches", "xla", "winograd"]
Choose = Callable[[Convolution], How]  # how a convolution is computed


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
    return [as_array(result) for result in _deferring(jaxpr, constants, arguments, choose)]


def _deferring(jaxpr: core.Jaxpr, constants: Sequence[Any], arguments: Sequence[Any], choose: Choose) -> list[Any]:
    """The results, some of them perhaps in another order of axes (`fedgen.models.laid`)."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values |= zip(jaxpr.invars, arguments, strict=True)
    known: dict[Any, list[Any]] = {}  # operations whose results are at hand

    def value(v: Any) -> Any:
        return v.val if isinstance(v, core.Literal) else values[v]

    for equation in jaxpr.eqns:
        given = [value(v) for v in equation.invars]
        key = None
        if equation.primitive.name in _REPEATED:
            of = (f"{v.val} {v.aval}" if isinstance(v, core.Literal) else id(values[v]) for v in equation.invars)
            key = equation.primitive.name, *of, str(sorted(equation.params.items()))
        if key not in known:
            results = _computed(equation, given, choose, jaxpr.debug_info)
            if key is None:
                values |= zip(equation.outvars, results, strict=True)
                continue
            known[key] = results
        values |= zip(equation.outvars, known[key], strict=True)
    return [value(v) for v in jaxpr.outvars]


# What networks write down several times: x - mean for the variance and for the normalisation, say.
_REPEATED = ("broadcast_in_dim", "reshape", "squeeze", "add", "sub")


def _computed(equation: core.JaxprEqn, values: Sequence[Any], choose: Choose, about: Any) -> list[Any]:
    name = equation.primitive.name
    if name in REPLACED:
        results = REPLACED[name](choose, *values, **equation.params)
        if results is not None:
            return results
    is_deferred = any(isinstance(value, Deferred) for value in values)
    if is_deferred and (found := deferred(equation, values, about)) is not None:
        return [found]
    if name in _INLINED and (is_deferred or _within(equation, REPLACED)):
        jaxpr = equation.params["jaxpr"]
        return _deferring(jaxpr.jaxpr, jaxpr.consts, values, choose)
    arrays = [as_array(value) for value in values]
    if name in _ENTERED and _within(equation, REPLACED):
        return _ENTERED[name](choose, *arrays, **equation.params)
    # As it is.
    at_hand = {v: array for v, array in zip(equation.invars, arrays, strict=True) if not isinstance(v, core.Literal)}
    alone = core.Jaxpr((), list(at_hand), equation.outvars, [equation], equation.effects, about)
    return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*at_hand.values())


def _convolution(
    choose: Choose,
    x: Any,  # an array, or deferred
    weight: Any,
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
) -> list[Laid] | None:
    """XLA's convolution, whatever the order of its axes."""
    of_x, of_weight, of_y = dimension_numbers.lhs_spec, dimension_numbers.rhs_spec, dimension_numbers.out_spec
    x, weight, dimensions = x if isinstance(x, Laid) else as_array(x), as_array(weight), len(of_x) - 2
    kernel = weight.transpose(*of_weight[2:], of_weight[1], of_weight[0])  # [*window, in / groups, out]
    n = [x.shape[axis] for axis in of_x]
    places = [(size - 1) * step + 1 for size, step in zip(n[2:], lhs_dilation, strict=True)]
    window = Window(
        kernel.shape[:dimensions],
        tuple(window_strides),
        tuple((int(before), int(after)) for before, after in padding),
        tuple(rhs_dilation),
        feature_group_count,
        precision,
    )
    form = Convolution((n[1], *places, n[0]), kernel.shape, str(weight.dtype), window)
    if batch_group_count != 1 or 0 in (*x.shape, *weight.shape) or min(window.outputs(places)) < 1:
        return None
    how = choose(form)
    if how == "xla" and (jax.default_backend() != "cpu" or dimensions > 3):  # which knows best in which order
        return None
    channels_last = how != "patches"
    order = (of_x[0], *of_x[2:], of_x[1]) if channels_last else (of_x[1], *of_x[2:], of_x[0])
    ours = _ordered(x, order)
    if any(step != 1 for step in lhs_dilation):  # a transposed convolution: zeros between the places
        between = [(0, 0, 0), *((0, 0, step - 1) for step in lhs_dilation), (0, 0, 0)]
        ours = lax.pad(ours, jnp.zeros((), ours.dtype), between)
    if channels_last:
        y = (by_winograd if how == "winograd" else by_xla)(ours, kernel, window, preferred_element_type)
    else:
        y = convolve(ours, kernel, window, preferred_element_type)
    axes = [0] * y.ndim
    sample, out = (0, dimensions + 1) if channels_last else (dimensions + 1, 0)
    for axis, place in zip(of_y, (sample, out, *range(1, dimensions + 1)), strict=True):
        axes[axis] = place
    return [Laid(y, axes, out)]


def _ordered(x: Any, order: Sequence[int]) -> Array:
    """The network's axes in this order."""
    if isinstance(x, Laid) and None not in x.axes:
        return x.values.transpose([x.axes[axis] for axis in order])
    return as_array(x).transpose(order)


def _pool(how: Callable[[Array, Window], Array]) -> Callable[..., list[Any] | None]:
    def pool(
        choose: Choose,
        x: Any,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[tuple[int, int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
        **_: Any,
    ) -> list[Any] | None:
        laid = x if isinstance(x, Laid) and None not in x.axes else None
        values = as_array(x) if laid is None else laid.values
        plain = all(step == 1 for step in base_dilation) and jnp.issubdtype(values.dtype, jnp.floating)
        if not plain or prod(window_dimensions) > LARGEST_POOL:
            return None
        # For each axis of what is stored, which of the network's it is.
        order = range(values.ndim) if laid is None else [laid.axes.index(axis) for axis in range(values.ndim)]
        window = Window(
            tuple(window_dimensions[axis] for axis in order),
            tuple(window_strides[axis] for axis in order),
            tuple((int(padding[axis][0]), int(padding[axis][1])) for axis in order),
            tuple(window_dilation[axis] for axis in order),
        )
        pooled = how(values, window)
        return [pooled if laid is None else laid.with_values(pooled)]

    return pool


REPLACED: dict[str, Callable[..., list[Any] | None]] = {
    "conv_general_dilated": _convolution,
    "reduce_window_max": _pool(max_pool),
    "reduce_window_sum": _pool(sum_pool),
}


def _function(closed: Any, choose: Choose) -> Callable[..., list[Any]]:
    """A traced function as one of arrays, rewritten."""
    jaxpr, constants = (closed.jaxpr, closed.consts) if hasattr(closed, "consts") else (closed, ())
    return lambda *arguments: _carried_out(jaxpr, constants, arguments, choose)


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
_INLINED = ("jit", "pjit")
_ENTERED: dict[str, Callable[..., list[Any]]] = {
    "checkpoint": _checkpoint,
    "remat2": _checkpoint,
    "scan": _scan,
    "cond": _cond,
}
