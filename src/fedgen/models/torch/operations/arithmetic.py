"""Operations on each number by itself: arithmetic, comparisons, activations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Scalar
from fedgen.models.torch.registry import operation

_UNARY: dict[str, Callable[[Array], Array]] = {
    "acos": jnp.arccos, "asin": jnp.arcsin, "atan": jnp.arctan, "atanh": jnp.arctanh,
    "bitwise_not": jnp.bitwise_not, "ceil": jnp.ceil, "cos": jnp.cos, "cosh": jnp.cosh, "erf": jax.lax.erf,
    "exp": jnp.exp, "expm1": jnp.expm1, "floor": jnp.floor, "isfinite": jnp.isfinite, "isinf": jnp.isinf,
    "isnan": jnp.isnan, "log": jnp.log, "log10": jnp.log10, "log1p": jnp.log1p, "log2": jnp.log2,
    "logical_not": jnp.logical_not, "mish": jax.nn.mish, "neg": jnp.negative, "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu, "round": jnp.round, "rsqrt": jax.lax.rsqrt, "sigmoid": jax.nn.sigmoid, "sign": jnp.sign,
    "silu": jax.nn.silu, "sin": jnp.sin, "sinh": jnp.sinh, "sqrt": jnp.sqrt, "square": jnp.square, "tan": jnp.tan,
    "tanh": jnp.tanh, "trunc": jnp.trunc,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Array]] = {
    "atan2": jnp.arctan2, "hypot": jnp.hypot, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor, "maximum": jnp.maximum, "minimum": jnp.minimum,
}  # fmt: skip
_BINARY_BY_NUMBERS_TOO: dict[str, Callable[[Any, Any], Array]] = {
    "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or, "bitwise_xor": jnp.bitwise_xor, "eq": jnp.equal,
    "fmod": jnp.fmod, "ge": jnp.greater_equal, "gt": jnp.greater, "le": jnp.less_equal, "lt": jnp.less,
    "mul": jnp.multiply, "ne": jnp.not_equal, "remainder": jnp.remainder,
}  # fmt: skip
for _name, _one in _UNARY.items():
    operation(f"aten.{_name}.default")(_one)
for _name, _two in _BINARY.items():
    operation(f"aten.{_name}.default")(_two)
for _name, _two in _BINARY_BY_NUMBERS_TOO.items():
    operation(f"aten.{_name}.Tensor", f"aten.{_name}.Scalar")(_two)
operation("aten.floor_divide.default", "aten.floor_divide.Scalar")(jnp.floor_divide)


@operation("aten.abs.default")
def absolute(x: Array) -> Array:
    """|x|; as in PyTorch, the derivative at 0 is 0."""
    return jnp.where(x == 0, 0, jnp.abs(x)).astype(x.dtype)


@operation("aten.add.Tensor", "aten.add.Scalar")
def add(x: Array, other: Any, alpha: Scalar = 1) -> Array:
    """x + alpha * other."""
    return jnp.add(x, other if alpha == 1 else alpha * other)


@operation("aten.sub.Tensor", "aten.sub.Scalar")
def subtract(x: Array, other: Any, alpha: Scalar = 1) -> Array:
    """x - alpha * other."""
    return jnp.subtract(x, other if alpha == 1 else alpha * other)


@operation("aten.rsub.Tensor", "aten.rsub.Scalar")
def subtract_from(x: Array, other: Any, alpha: Scalar = 1) -> Array:
    """other - alpha * x."""
    return jnp.subtract(other, x if alpha == 1 else alpha * x)


@operation("aten.div.Tensor", "aten.div.Scalar", "aten.div.Tensor_mode", "aten.div.Scalar_mode")
def divide(x: Array, other: Any, rounding_mode: str | None = None) -> Array:
    """x / other, rounded down or towards 0 where asked."""
    if rounding_mode == "floor":
        return jnp.floor_divide(x, other)
    quotient = jnp.true_divide(x, other)
    return quotient if rounding_mode is None else jnp.trunc(quotient).astype(jnp.result_type(x, other))


@operation("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", "aten.pow.Scalar")
def power(x: Any, exponent: Any) -> Array:
    """x ** exponent; a whole exponent has a derivative everywhere."""
    if isinstance(exponent, float) and exponent.is_integer():
        exponent = int(exponent)
    return jnp.power(x, exponent)


@operation("aten.clamp.default", "aten.clamp.Tensor")
def clamp(x: Array, smallest: Any = None, largest: Any = None) -> Array:
    """x within bounds; as in PyTorch, the derivative at a bound is 1."""
    x = x if smallest is None else jnp.where(x < smallest, smallest, x)
    return x if largest is None else jnp.where(x > largest, largest, x)


@operation("aten.clamp_min.default", "aten.clamp_min.Tensor")
def clamp_min(x: Array, smallest: Any) -> Array:
    """x, or the bound where it is below it."""
    return clamp(x, smallest)


@operation("aten.clamp_max.default", "aten.clamp_max.Tensor")
def clamp_max(x: Array, largest: Any) -> Array:
    """x, or the bound where it is above it."""
    return clamp(x, None, largest)


@operation("aten.hardtanh.default")
def hardtanh(x: Array, smallest: Scalar = -1.0, largest: Scalar = 1.0) -> Array:
    """x within bounds (ReLU6 is 0 to 6); as in PyTorch, the derivative at a bound is 0."""
    return jnp.where(x <= smallest, smallest, jnp.where(x >= largest, largest, x)).astype(x.dtype)


@operation("aten.relu6.default")
def relu6(x: Array) -> Array:
    """x within 0 and 6."""
    return hardtanh(x, 0.0, 6.0)


@operation("aten.leaky_relu.default")
def leaky_relu(x: Array, slope: Scalar = 0.01) -> Array:
    """x where it is positive, and a part of it elsewhere."""
    return jnp.where(x > 0, x, slope * x)


@operation("aten._prelu_kernel.default")
def prelu(x: Array, weight: Array) -> Array:
    """A leaky ReLU whose slope is learned."""
    return jnp.where(x > 0, x, weight * x)


@operation("aten.elu.default")
def elu(x: Array, alpha: Scalar = 1.0, scale: Scalar = 1.0, input_scale: Scalar = 1.0) -> Array:
    """ELU, and SELU by its two factors."""
    negative = jnp.where(x > 0, 0.0, x)  # exp of a large x would make the other branch's derivative NaN
    return jnp.where(x > 0, scale * x, scale * alpha * jnp.expm1(input_scale * negative)).astype(x.dtype)


@operation("aten.gelu.default")
def gelu(x: Array, approximate: str = "none") -> Array:
    """GELU, exact or by tanh."""
    return jax.nn.gelu(x, approximate=approximate == "tanh")


@operation("aten.softplus.default")
def softplus(x: Array, beta: Scalar = 1.0, threshold: Scalar = 20.0) -> Array:
    """log(1 + exp(beta x)) / beta, and x itself beyond the threshold."""
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(beta * x) / beta)


@operation("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def where(condition: Array, yes: Any, no: Any) -> Array:
    """One or the other."""
    return jnp.where(condition, yes, no)


@operation("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    """The value where the mask says so."""
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


@operation("aten.nan_to_num.default")
def nan_to_num(x: Array, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Array:
    """Finite numbers in place of those that are not."""
    return jnp.nan_to_num(x, nan=0.0 if nan is None else nan, posinf=posinf, neginf=neginf)
