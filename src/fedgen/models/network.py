"""A network of another framework as functions of its numbers, which go by the names that they have there."""

import inspect
import operator
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.core.contract import Array
from fedgen.errors import FedgenError

Named = Mapping[str, Array]
_UNIT = 2.0**-20
_TRAINING = ("train", "training", "is_training")  # what networks call the argument that is true in training
_EVALUATING = ("deterministic", "use_running_average", "inference")  # and that which is true in evaluation


class Ran(NamedTuple):
    """What a network gave for a batch."""

    output: Array
    state: Named  # after the batch
    called: Sequence[str] = ()  # which of the watched layers were called, in this order
    z: Array | None = None  # what the watched layer got, where exactly one is watched


class Network(NamedTuple):
    """A network of another framework.

    `run(parameters, state, x, train, key, watch=(), z=None)` notes when the layers named by `watch` are called; with
    `z`, the one watched layer gets that in place of its input.
    """

    kind: str  # what errors call it
    init: Callable[[Array], tuple[Named, Named]]  # key -> parameters, state
    run: Callable[..., Ran]
    layers: tuple[str, ...]  # those that have parameters of their own
    never_negative: tuple[str, ...] = ()  # those of the state: variances of BatchNorm
    types: Mapping[str, Any] = {}  # of the numbers that it does not have in float32, in which they are kept here


class Numbers(NamedTuple):
    """The arrays of a network by what becomes of them."""

    parameters: tuple[str, ...]  # trained
    state: tuple[str, ...]  # changed by the network itself: BatchNorm's statistics, counters
    constants: Named  # other whole numbers and random keys: those that the network starts with
    types: Mapping[str, Any]  # of the floating-point ones that the network does not have in float32

    def together(self, parameters: Named, state: Named) -> dict[str, Array]:
        """All arrays of the network, as it has them: parameters and state are kept in float32 here."""
        return {**self.constants, **in_own_types({**parameters, **state}, self.types)}


def sort_numbers(everything: Callable[[Array], Named], is_trained: Callable[[str], bool]) -> Numbers:
    """Which arrays are what, for a function that makes all of them from a key."""
    key = jax.random.key(0)
    forms = jax.eval_shape(everything, key)
    constant = [n for n, a in forms.items() if not _is_floating(a) and (a.ndim or _is_key(a) or is_trained(n))]
    values = jax.jit(lambda key: {name: everything(key)[name] for name in constant})(key) if constant else {}
    rest = [name for name in forms if name not in values]
    trained = tuple(name for name in rest if is_trained(name))
    types = {n: forms[n].dtype for n in rest if _is_floating(forms[n]) and forms[n].dtype != jnp.float32}
    return Numbers(trained, tuple(name for name in rest if name not in trained), values, types)


def init_of(everything: Callable[[Array], Named], numbers: Numbers) -> Callable[[Array], tuple[Named, Named]]:
    """key -> parameters, state; in float32 whatever the network has, for small steps would not change bfloat16."""

    def init(key: Array) -> tuple[Named, Named]:
        made = {name: in_float32(a) for name, a in everything(key).items()}
        return {name: made[name] for name in numbers.parameters}, {name: made[name] for name in numbers.state}

    return init


def is_pixels(dtype: Any) -> bool:
    """Whether samples stored so are images, which are scaled before a network gets them: of 8 or of 16 bits."""
    return dtype in (jnp.uint8, jnp.uint16)


def form_of(sample: Any) -> jax.ShapeDtypeStruct:
    """One sample as a network gets it; `sample` is a shape, an array, or whatever else has a shape and a type.

    Pixels, of 8 or 16 bits, reach a network as float32 (they are scaled before), other whole numbers as int32.
    """
    if not hasattr(sample, "shape"):
        try:
            return jax.ShapeDtypeStruct(tuple(operator.index(length) for length in sample), jnp.float32)
        except TypeError:
            raise FedgenError(
                f"sample is {reprlib.repr(sample)}; give the shape of one sample, such as (3, 32, 32) or (8,), or an"
                " array that is one"
            ) from None
    whole = jnp.issubdtype(sample.dtype, jnp.integer) and not is_pixels(sample.dtype)
    return jax.ShapeDtypeStruct(tuple(sample.shape), jnp.int32 if whole else jnp.float32)


def mode_arguments(call: Callable[..., Any], train: bool) -> dict[str, bool]:
    """The arguments by which a network's `__call__` knows whether it is trained: those of them that it has."""
    has = inspect.signature(call).parameters
    return {name: train for name in _TRAINING if name in has} | {name: not train for name in _EVALUATING if name in has}


def stored(state: Named) -> dict[str, Array]:
    """State as the statistics of a model, which the server averages and may clip.

    Counters and flags (Equinox's BatchNorm has them) become small float32 numbers: by how much they change in a round
    must not count in the length of an update.
    """
    return {name: in_float32(a) if _is_floating(a) else a.astype(jnp.float32) * _UNIT for name, a in state.items()}


def restored(statistics: Named, forms: Named) -> dict[str, Array]:
    """The inverse of `stored`; an averaged counter is rounded."""

    def back(a: Array, form: Array) -> Array:
        return a if _is_floating(form) else jnp.round(a / _UNIT).astype(form.dtype)

    return {name: back(statistics[name], form) for name, form in forms.items()}


def as_statistics(names: Iterable[str]) -> tuple[str, ...]:
    """What the arrays by these names are called among a model's statistics (`Model.never_negative`)."""
    return tuple(f"[{name!r}]" for name in names)


def zeros(forms: Mapping[str, Any], like: Named) -> dict[str, Array]:
    """Arrays that are not at hand and whose values do not matter, floating-point ones of the type of those that are."""
    kept = next(iter(like.values())).dtype if like else jnp.float32
    return {n: jnp.zeros(form.shape, kept if _is_floating(form) else form.dtype) for n, form in forms.items()}


def in_float32(a: Array) -> Array:
    """Floating-point numbers in float32, others as they are."""
    a = jnp.asarray(a)  # a parameter may be a number of Python's
    return a.astype(jnp.float32) if _is_floating(a) else a


def in_own_type(a: Array, own: Any) -> Array:
    """An array as a network has it, which may compute in bfloat16 there; where it does not, as it is."""
    return a if own == jnp.float32 else a.astype(own)


def in_own_types(named: Named, types: Mapping[str, Any]) -> dict[str, Array]:
    """The arrays as the network has them."""
    return {name: in_own_type(a, types.get(name, jnp.float32)) for name, a in named.items()}


def first_changed(
    change: Callable[[Array], Array], arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments with the first of them changed."""
    if arguments:
        return (change(arguments[0]), *arguments[1:]), dict(named)
    return (), {name: change(a) if place == 0 else a for place, (name, a) in enumerate(named.items())}


def as_numpy(named: Named) -> dict[str, Any]:
    """The arrays on the host."""
    return {name: np.asarray(a) for name, a in named.items()}


def _is_floating(a: Any) -> bool:
    return bool(jnp.issubdtype(a.dtype, jnp.floating))


def _is_key(a: Any) -> bool:
    return bool(jnp.issubdtype(a.dtype, jax.dtypes.prng_key))
