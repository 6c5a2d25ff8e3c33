"""A network of Flax's nnx as functions of its numbers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.models.check import described, saying
from fedgen.models.network import Named, Network, Ran, first_changed, init_of, mode_arguments, sort_numbers

Path = tuple[str | int, ...]


def nnx_network(make: Callable[[Array], nnx.Module]) -> Network:
    """The network of the nnx module that is made of a key, with names such as "layers.0.kernel" and "norm.mean"."""
    with saying("the Flax network cannot be made"):
        module = nnx.eval_shape(lambda: make(jax.random.key(0)))
    if not isinstance(module, nnx.Module):
        raise FedgenError(f"from_flax takes a function that makes an nnx module of a key, not {described(module)}")
    kind = f"the Flax network {type(module).__name__}"
    graphs = {}
    for train in (False, True):
        (module.train if train else module.eval)()
        graphs[train], state = nnx.split(module)
    leaves: dict[Path, Any] = dict(nnx.to_flat_state(state))
    # Random streams are no numbers of the network: each run begins them with the key that it gets.
    streams = [place for place, leaf in leaves.items() if isinstance(leaf, nnx.RngState)]
    trained = {_name(place) for place, leaf in leaves.items() if isinstance(leaf, nnx.Param)}

    variances = tuple(
        _name(place) for place in leaves if place[-1] == "var" and isinstance(_at(module, place[:-1]), nnx.BatchNorm)
    )

    def everything(key: Array) -> Named:
        return {_name(p): _value(leaf) for p, leaf in _flat(make(key)) if p not in streams}

    numbers = sort_numbers(everything, trained.__contains__)

    def run(
        parameters: Named, state: Named, x: Array, train: bool, key: Array, watch: Sequence[str] = (), z: Any = None
    ) -> Ran:
        called: list[str] = []
        got: list[Array] = []

        def note(name: str, given: Array) -> Array:
            called.append(name)
            got.append(given)
            return given if z is None else z

        values = {**numbers.together(parameters, state), **_begun(streams, leaves, key)}
        filled = {p: _filled(leaf, values[_name(p)]) for p, leaf in leaves.items()}
        network = nnx.merge(graphs[train], nnx.from_flat_state(filled))
        _keep_type(network)
        with _watching(network, watch, note, kind) as call:
            output = call(x, **mode_arguments(network.__call__, train))
        after = {_name(p): leaf for p, leaf in _flat(network)}  # with what the module sows
        new = {name: _value(after[name]) for name in state}
        return Ran(output, new, called, got[0] if len(watch) == 1 and got else None)

    layers = dict.fromkeys(name.rpartition(".")[0] for name in numbers.parameters)
    return Network(kind, init_of(everything, numbers), run, tuple(layers), variances, numbers.types)


class _Noting:
    """A layer that notes what it gets, or gets something else; all but a call of it is the layer's own."""

    def __init__(self, layer: Any, note: Callable[[Array], Array]) -> None:
        self._layer, self._note = layer, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the layer."""
        arguments, named = first_changed(self._note, arguments, named)
        return self._layer(*arguments, **named)


@contextmanager
def _watching(
    network: nnx.Module, watch: Sequence[str], note: Callable[[str, Array], Array], kind: str
) -> Iterator[Callable[..., Any]]:
    """The network as a function, whose watched layers for the time being note what they get."""

    def noting(name: str, layer: Any) -> _Noting:
        return _Noting(layer, partial(note, name))

    modules = {_name(place): place for place, _ in nnx.iter_modules(network)}
    if unknown := [name for name in watch if name not in modules]:
        known = ", ".join(name for name in modules if name)
        raise FedgenError(f"{kind} has no layer '{unknown[0]}'; its layers are {known}")
    replaced = []
    for name in sorted(set(watch) - {""}, key=len, reverse=True):  # what is inside another first
        *outer, last = modules[name]
        holder = _at(network, outer)
        layer = _at(holder, [last])
        replaced.append((holder, last, layer))
        _put(holder, last, noting(name, layer))
    try:
        yield noting("", network) if "" in watch else network
    finally:
        for holder, last, layer in reversed(replaced):
            _put(holder, last, layer)


def _keep_type(network: nnx.Module) -> None:
    """Let BatchNorm give the type of its parameters; by itself it would give that of its statistics, float32."""
    for _, layer in nnx.iter_modules(network):
        if isinstance(layer, nnx.BatchNorm) and layer.dtype is None and layer.scale is not None:
            layer.dtype = layer.scale.dtype


def _at(holder: Any, path: Sequence[str | int]) -> Any:
    for place in path:
        holder = holder[place] if isinstance(place, int) or isinstance(holder, dict) else getattr(holder, place)
    return holder


def _put(holder: Any, place: str | int, value: Any) -> None:
    if isinstance(place, int) or isinstance(holder, dict):
        holder[place] = value
    else:
        setattr(holder, place, value)


def _begun(streams: Sequence[Path], leaves: dict[Path, Any], key: Array) -> Named:
    """Random streams that begin with a key: another for each."""
    return {
        _name(place): jax.random.fold_in(key, number)
        if isinstance(leaves[place], nnx.RngKey)
        else jnp.zeros(leaves[place].shape, leaves[place].dtype)
        for number, place in enumerate(streams)
    }


def _flat(module: nnx.Module) -> Any:
    return nnx.to_flat_state(nnx.state(module))


def _name(place: Path) -> str:
    return ".".join(map(str, place))


def _value(leaf: Any) -> Array:
    return leaf[...] if isinstance(leaf, nnx.Variable) else leaf


def _filled(leaf: Any, value: Array) -> Any:
    return leaf.replace(value) if isinstance(leaf, nnx.Variable) else value
