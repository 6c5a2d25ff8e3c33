"""How operations act on activations in another order of axes (`fedgen.models.laid`), without making arrays of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from fedgen.core.contract import Array
from fedgen.models.laid import Laid

_EACH_ELEMENT = {
    "abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "convert_element_type", "copy", "cos", "div", "eq", "erf",
    "erf_inv", "erfc", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p",
    "logistic", "lt", "max", "min", "mul", "ne", "neg", "nextafter", "not", "or", "pow", "reduce_precision", "rem",
    "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor"
}  # fmt: skip
_REDUCING = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or")


class Squares:
    """The squares of an activation; mostly only their sum is wanted."""

    def __init__(self, of: Laid) -> None:
        self.of = of

    @property
    def array(self) -> Array:
        """As the network has it."""
        return jnp.square(self.of.array)


class Part:
    """The sum over all places, [sample, channel], times a number; mostly the sum over the samples follows."""

    def __init__(self, of: Laid | Squares, axes: tuple[int, ...], times: float = 1.0) -> None:
        self.of, self.axes, self.times = of, axes, times

    @property
    def array(self) -> Array:
        """As the network has it."""
        laid, values = (self.of, self.of.values) if isinstance(self.of, Laid) else (self.of.of, self.of.of.values)
        values = values if isinstance(self.of, Laid) else jnp.square(values)
        found = _reduced(laid, values, self.axes, jnp.sum)
        return found if self.times == 1 else found * self.times

    @property
    def total(self) -> Array:
        """Over the samples too, [channel]."""
        return _total(self.of) * self.times


Deferred = Laid | Squares | Part


def as_array(value: Any) -> Any:
    """What the network has there, in its own order."""
    return value.array if isinstance(value, Deferred) else value


def deferred(equation: core.JaxprEqn, values: Sequence[Any], about: Any) -> Any:
    """The result of an operation on values some of which are deferred; None: arrays are needed.

    `about` is what JAX knows of the function that it is from.
    """
    if len(equation.outvars) != 1:
        return None
    name, form = equation.primitive.name, _form(equation)
    if any(isinstance(value, Part) for value in values):
        return _of_part(name, equation.params, values)
    if name in _REDUCING:
        return _reduction(name, equation, values[0])
    if any(isinstance(value, Squares) for value in values):
        return None
    if name in ("reshape", "squeeze", "broadcast_in_dim"):
        plain = isinstance(values[0], Laid) and (name != "reshape" or equation.params.get("dimensions") is None)
        return _reshaped(values[0], form.shape) if plain else None
    if name == "transpose":
        laid = values[0]
        return _reordered(laid, [laid.axes[axis] for axis in equation.params["permutation"]])
    if name == "custom_jvp_call":
        return _each_element(equation, values, about) if _is_of_each_element(equation, about) else None
    if name not in _EACH_ELEMENT:
        return None
    if (found := _squared(name, equation.params, values) or _scaled(name, form, values)) is not None:
        return found
    return _each_element(equation, values, about)


def _form(equation: core.JaxprEqn) -> Any:
    """Shape and type of the result."""
    return equation.outvars[0].aval


def _of_part(name: str, params: Any, values: Sequence[Any]) -> Any:
    """A part's multiple, or its sum over the samples."""
    part = values[0]
    if not isinstance(part, Part):
        return None
    if name == "div" and np.ndim(values[1]) == 0 and not isinstance(values[1], Array):
        return Part(part.of, part.axes, part.times / float(values[1]))
    if name in ("psum", "reduce_sum") and tuple(params["axes"]) == (0,) and not params.get("axis_index_groups"):
        laid = part.of if isinstance(part.of, Laid) else part.of.of
        left = [axis for axis in range(len(laid.axes)) if axis not in part.axes]
        if len(left) == 2 and laid.axes[left[1]] == laid.channel:
            return part.total
    return None


def _reduction(name: str, equation: core.JaxprEqn, value: Laid | Squares) -> Any:
    laid = value if isinstance(value, Laid) else value.of
    axes = tuple(int(axis) for axis in equation.params["axes"])
    left = [axis for axis in range(len(laid.axes)) if axis not in axes]
    if name == "reduce_sum" and laid.stored.dtype == jnp.float32:
        if [laid.axes[axis] for axis in left] == [laid.channel]:
            return _total(value)
        if len(left) == 2:
            return Part(value, axes)
    if isinstance(value, Squares):
        return None

    def reduced(values: Array, axis: tuple[int, ...]) -> Array:
        return equation.primitive.bind(values, **{**equation.params, "axes": axis})

    return _reduced(laid, laid.values, axes, reduced)


def _total(value: Laid | Squares) -> Array:
    return value.total if isinstance(value, Laid) else value.of.total_of_squares


def _reduced(laid: Laid, values: Array, axes: tuple[int, ...], how: Callable[..., Array]) -> Array:
    """Along some of the network's axes; the others in the network's order."""
    gone = tuple(stored for axis in axes if (stored := laid.axes[axis]) is not None)
    found = how(values, axis=gone)
    left = [axis for axis in range(len(laid.axes)) if axis not in axes]
    kept = sorted(stored for axis in left if (stored := laid.axes[axis]) is not None)
    order = [kept.index(stored) for axis in left if (stored := laid.axes[axis]) is not None]
    return found.transpose(order).reshape([laid.shape[axis] for axis in left])


def _reshaped(laid: Laid, shape: tuple[int, ...]) -> Laid | None:
    """Where axes with one entry come or go."""
    if 1 in laid.stored.shape or [n for n in laid.shape if n != 1] != [n for n in shape if n != 1]:
        return None
    kept = iter([axis for axis in laid.axes if axis is not None])
    return _reordered(laid, [None if n == 1 else next(kept) for n in shape])


def _reordered(laid: Laid, axes: Sequence[int | None]) -> Laid:
    return Laid(laid.stored, axes, laid.channel, laid.centre, laid.factor, laid.shift)


def _squared(name: str, params: Any, values: Sequence[Any]) -> Squares | None:
    is_square = (
        name == "square" or (name == "integer_pow" and params["y"] == 2) or (name == "mul" and values[0] is values[1])
    )
    return Squares(values[0]) if is_square and values[0].stored.dtype == jnp.float32 else None


def _scaled(name: str, form: Any, values: Sequence[Any]) -> Laid | None:
    """Where a channel's values are all multiplied with a number, or one is added."""
    if name not in ("add", "sub", "mul", "div", "neg") or form.dtype != jnp.float32:
        return None
    if name == "neg":
        return values[0].times(jnp.full(values[0].channels, -1.0, form.dtype))
    laid, other = values if isinstance(values[0], Laid) else values[::-1]
    if isinstance(other, Laid) or (name == "div" and laid is not values[0]) or laid.shape != form.shape:
        return None
    if (vector := laid.by_channel(jnp.asarray(other))) is None or vector.dtype != form.dtype:
        return None
    if name == "sub" and laid is not values[0]:
        return laid.times(-jnp.ones_like(vector)).plus(vector)
    if name in ("add", "sub"):
        return laid.plus(vector, 1 if name == "add" else -1)
    return laid.times(vector if name == "mul" else 1 / vector)


def _each_element(equation: core.JaxprEqn, values: Sequence[Any], about: Any) -> Laid | None:
    """An operation on each element: on what is stored."""
    laid = next(value for value in values if isinstance(value, Laid))
    form = _form(equation)
    if form.shape != laid.shape:
        return None
    stored = []
    for value in values:
        if isinstance(value, Laid) and value.axes == laid.axes:
            stored.append(value.values)
        elif jnp.ndim(array := as_array(value)) in (0, len(laid.axes)):
            stored.append(laid.stored_like(jnp.asarray(array)))
        else:
            return None
    if not equation.primitive.name.startswith("custom"):
        return laid.with_values(equation.primitive.bind(*stored, **equation.params))
    # It was traced for the network's order, and no element knows of another: the order is only called that.
    given = [v for v in equation.invars if isinstance(v, core.Var)]
    if any(a.shape != laid.stored.shape for a in stored) or len(given) < len(stored):
        return None
    alone = core.Jaxpr((), given, equation.outvars, [equation], equation.effects, about)
    (found,) = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*(a.reshape(form.shape) for a in stored))
    return laid.with_values(found.reshape(laid.stored.shape))


def _is_of_each_element(equation: core.JaxprEqn, about: Any) -> bool:
    """Whether a function with a derivative of its own does the same with each element, and its derivative too."""
    given = list(dict.fromkeys(v for v in equation.invars if isinstance(v, core.Var)))
    forms: Any = [v.aval for v in given]
    if not all(jnp.issubdtype(form.dtype, jnp.floating) for form in forms):
        return False
    alone = core.jaxpr_as_fun(core.ClosedJaxpr(core.Jaxpr((), given, equation.outvars, [equation], set(), about), ()))
    at = tuple(jax.ShapeDtypeStruct(form.shape, form.dtype) for form in forms)
    both = jax.make_jaxpr(lambda at, along: jax.jvp(lambda *x: alone(*x)[0], at, along))(at, at)
    return all(np.ndim(constant) == 0 for constant in both.consts) and _each_alone(both.jaxpr)


def _each_alone(jaxpr: core.Jaxpr) -> bool:
    """Whether no operation of a traced function looks at an element's place or at another element."""
    for equation in jaxpr.eqns:
        inner = [getattr(one, "jaxpr", one) for one in core.jaxprs_in_params(equation.params)]
        consts = [c for one in equation.params.values() for c in getattr(one, "consts", ())]
        name = equation.primitive.name
        if inner and name in ("jit", "pjit", "custom_jvp_call"):
            if not all(map(_each_alone, inner)) or any(np.ndim(constant) for constant in consts):
                return False
        elif name == "broadcast_in_dim":
            of: Any = equation.invars[0].aval
            if of.shape:  # more than a number
                return False
        elif name not in _EACH_ELEMENT:
            return False
    return True
