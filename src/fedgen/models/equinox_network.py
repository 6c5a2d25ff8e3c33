"""A network of Equinox as functions of its numbers."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.models.check import saying
from fedgen.models.network import Named, Network, Ran, first_changed, init_of, mode_arguments, sort_numbers


def equinox_network(given: Any) -> Network:
    """The network of what `from_equinox` takes, with names such as "layers.0.weight" and "norm.batch_state_index.1"."""
    make = given if callable(given) and not isinstance(given, eqx.Module) else lambda key: given
    with saying("the Equinox network cannot be made"):
        form, state_form = eqx.filter_eval_shape(lambda key: _with_state(make(key)), jax.random.key(0))
    kind = f"the Equinox network {type(form).__name__}"
    places, structure = jax.tree_util.tree_flatten_with_path(form)
    fixed = {_name(place): leaf for place, leaf in places if not _is_array(leaf)}  # functions, flags
    names = [_name(place) for place, _ in places]
    states = _state_names(form, state_form)
    state_structure = jax.tree.structure(state_form)
    axis = _batch_axis(form)

    def everything(key: Array) -> Named:
        module, state = _with_state(make(key))
        arrays = dict(zip(names, jax.tree.leaves(module), strict=True))
        own = {name: a for name, a in arrays.items() if name not in fixed}
        return {**own, **dict(zip(states, jax.tree.leaves(state), strict=True))}

    numbers = sort_numbers(everything, lambda name: name not in states)
    averages = _averages(form)  # of BatchNorm, which gets float32 in every network
    numbers = numbers._replace(types={name: own for name, own in numbers.types.items() if name not in averages})

    def run(
        parameters: Named, state: Named, x: Array, train: bool, key: Array, watch: Sequence[str] = (), z: Any = None
    ) -> Ran:
        called: list[str] = []

        def one(arrays: Named, x: Array, key: Array, z: Any) -> tuple[Any, Any, Any]:
            values = {**fixed, **arrays}
            module = jax.tree.unflatten(structure, [values[name] for name in names])
            module = eqx.nn.inference_mode(module, value=not train)
            held = jax.tree.unflatten(state_structure, [values[name] for name in states])
            got: list[Array] = []

            def note(name: str, given: Array) -> Array:
                called.append(name)
                got.append(given)
                return given if z is None else z

            watched = _watched(_with_norms_in_float32(module), watch, note, kind, layers)
            output, after = _called(watched, module, x, held, key, train, bool(states))
            return output, after, got[0] if len(watch) == 1 and got else None

        batched = jax.vmap(one, in_axes=(None, 0, 0, 0), out_axes=(0, None, 0), axis_name=axis)
        arrays = numbers.together(parameters, state)
        output, after, seen = _traced_apart(batched, arrays, x, jax.random.split(key, x.shape[0]), z)
        new = dict(zip(states, jax.tree.leaves(after), strict=True))
        return Ran(output, {name: new[name] for name in state}, called, seen)

    layers = dict.fromkeys(name.rpartition(".")[0] for name in numbers.parameters)
    variances = _never_negative(form, states)
    return Network(kind, init_of(everything, numbers), run, tuple(layers), variances, numbers.types)


def _traced_apart(f: Callable[..., Any], *arguments: Any) -> Any:
    """f of the arguments, traced as if there were one device.

    On a mesh of devices the type of an array says where it is, and Equinox takes it for a change of type when a layer
    sets a constant as its new state (as BatchNorm does, with mode "ema").
    """
    leaves, structure = jax.tree.flatten(arguments)
    forms = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves])
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        traced, form = jax.make_jaxpr(f, return_shape=True)(*forms)
    found = zip(jaxpr_as_fun(traced)(*leaves), jax.tree.leaves(form), strict=True)
    return jax.tree.unflatten(jax.tree.structure(form), [jnp.asarray(a, wanted.dtype) for a, wanted in found])


def _with_state(made: Any) -> tuple[Any, Any]:
    """The module without its initial state, and the state."""
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], eqx.nn.State):
        return made
    if not isinstance(made, eqx.Module):
        raise FedgenError(
            "from_equinox takes a module, (module, state), or a function that makes one of a key, not a"
            f" {type(made).__name__}"
        )
    try:
        state = eqx.nn.State(made)
    except ValueError as error:  # eqx.nn.make_with_state has taken it out
        raise FedgenError(
            f"the Equinox network {type(made).__name__} is given without its state; give both as a pair, (module,"
            " state), which eqx.nn.make_with_state makes"
        ) from error
    return eqx.nn.delete_init_state(made), state


def _called(
    call: Callable[..., Any], module: Any, x: Array, state: Any, key: Array, train: bool, stateful: bool
) -> tuple[Any, Any]:
    """Call a module with those of state, key and mode that it takes; its output and the state after it."""
    has = inspect.signature(module.__call__).parameters
    options = mode_arguments(module.__call__, train) | ({"key": key} if "key" in has else {})
    return call(x, state, **options) if stateful else (call(x, **options), state)


class _Norm(eqx.nn.BatchNorm):
    """BatchNorm in float32, which gives the type that it gets; by itself it compares averages of two types."""

    def __call__(self, x: Array, state: eqx.nn.State, **options: Any) -> tuple[Array, eqx.nn.State]:
        """Normalise."""
        y, state = super().__call__(x.astype(jnp.float32), state, **options)
        return y.astype(x.dtype), state


def _with_norms_in_float32(module: Any) -> Any:
    def changed(part: Any) -> Any:
        if type(part) is not eqx.nn.BatchNorm:
            return part
        norm = object.__new__(_Norm)  # of the same fields; a new one would be initialised
        for field in fields(part):
            object.__setattr__(norm, field.name, getattr(part, field.name))
        return norm

    return jax.tree.map(changed, module, is_leaf=lambda part: isinstance(part, eqx.nn.BatchNorm))


class _Noting(eqx.nn.StatefulLayer):
    """A layer that notes what it gets, or gets something else; all but a call of it is the layer's own."""

    _layer: Any
    _note: Callable[[Array], Array] = eqx.field(static=True)

    def is_stateful(self) -> bool:
        """As the layer itself, which is what `eqx.nn.Sequential` asks for."""
        return isinstance(self._layer, eqx.nn.StatefulLayer) and self._layer.is_stateful()

    def __getattr__(self, name: str) -> Any:
        if name == "_layer":  # not yet there
            raise AttributeError(name)
        return getattr(self._layer, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the layer."""
        arguments, named = first_changed(self._note, arguments, named)
        return self._layer(*arguments, **named)


def _watched(module: Any, watch: Sequence[str], note: Callable[[str, Array], Array], kind: str, layers: Any) -> Any:
    """The module with those layers replaced by ones that note what they get."""
    for name in sorted(watch, key=len, reverse=True):  # what is inside another first
        path = name.split(".") if name else []
        try:
            layer = _at(module, path)
        except (AttributeError, IndexError, KeyError, ValueError):
            known = ", ".join(filter(None, layers))
            raise FedgenError(f"{kind} has no layer '{name}'; its layers with parameters are {known}") from None
        noting = _Noting(layer, partial(note, name))
        module = eqx.tree_at(lambda tree, path=path: _at(tree, path), module, noting) if path else noting
    return module


def _at(tree: Any, path: Sequence[str]) -> Any:
    for place in path:
        if isinstance(tree, dict):
            tree = tree[place]
        elif isinstance(tree, list | tuple):
            tree = tree[int(place)]
        else:
            tree = getattr(tree, place)
    return tree


def _state_names(module: Any, state: Any) -> list[str]:
    """A name for each array of the state: of the layer's index, and of the place in its value."""
    found = jax.tree_util.tree_flatten_with_path(module, is_leaf=_is_index)[0]
    index_of = {leaf.marker: _name(place) for place, leaf in reversed(found) if _is_index(leaf)}
    values, markers = state.tree_flatten()
    return [
        ".".join(filter(None, [index_of[marker], _name(place)]))
        for marker, value in zip(markers, values, strict=True)
        for place, _ in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


def _norms(module: Any) -> dict[str, eqx.nn.BatchNorm]:
    """The BatchNorm layers."""
    found = jax.tree_util.tree_flatten_with_path(module, is_leaf=lambda part: isinstance(part, eqx.nn.BatchNorm))[0]
    return {_name(place): part for place, part in found if isinstance(part, eqx.nn.BatchNorm)}


def _never_negative(module: Any, states: Sequence[str]) -> tuple[str, ...]:
    """The variances of BatchNorm, and in mode "batch" its counter, by which the sum of variances is divided."""
    names = _of_norms(module, "ema_state_index.1", "batch_state_index.1", "batch_counter")
    return tuple(name for name in states if name in names)


def _averages(module: Any) -> set[str]:
    """The running means and variances of BatchNorm."""
    return _of_norms(module, *(f"{mode}_state_index.{place}" for mode in ("ema", "batch") for place in (0, 1)))


def _of_norms(module: Any, *own: str) -> set[str]:
    """The state that each BatchNorm layer has by these names, by the network's names."""
    return {".".join(filter(None, [norm, name])) for norm in _norms(module) for name in own}


def _batch_axis(module: Any) -> Any:
    """What BatchNorm layers call the axis of the samples."""
    axes = {norm.axis_name for norm in _norms(module).values()}
    if len(axes) > 1:
        raise FedgenError(f"the BatchNorm layers name several axes ({sorted(map(str, axes))}); samples are along one")
    return next(iter(axes), "batch")


def _is_index(part: Any) -> bool:
    return isinstance(part, eqx.nn.StateIndex)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct)


def _name(place: Sequence[Any]) -> str:
    """A path in a tree as "layers.0.weight"."""
    return jax.tree_util.keystr(tuple(place), simple=True, separator=".")
