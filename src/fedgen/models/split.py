"""A network of another framework as a model: split at a layer into extractor and predictor, or given as two."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, Var, jaxpr_as_fun

from fedgen.core.contract import Array, Model, Params, Tree
from fedgen.errors import FedgenError
from fedgen.models.check import saying, vectors
from fedgen.models.network import (
    Named,
    Network,
    as_numpy,
    as_statistics,
    form_of,
    in_float32,
    in_own_type,
    in_own_types,
    restored,
    stored,
    zeros,
)


def split(network: Network, sample: Any, layer: str | None) -> Model:
    """The model whose predictor begins with this layer: by default the last one that has parameters."""
    form, key = form_of(sample), jax.random.key(0)
    x = jax.ShapeDtypeStruct((2, *form.shape), form.dtype)
    with saying(f"{network.kind} does not take samples of shape {form.shape} of {form.dtype}"):
        forms = jax.eval_shape(network.init, key)
        cut = _divide_at_last(network, forms, x) if layer is None else _divide(network, forms, x, layer)
    missing = {name: a for name, a in forms[0].items() if name in cut.predictor}
    present = {name: a for name, a in forms[0].items() if name not in cut.predictor}

    def init(key: Array) -> tuple[Params, Tree]:
        made, state = network.init(key)
        return Params({name: made[name] for name in present}, {name: made[name] for name in missing}), stored(state)

    def extract(params: Tree, statistics: Tree, x: Array, train: bool, key: Array | None = None) -> tuple[Array, Tree]:
        whole = {**params, **zeros(missing, params)}
        ran = network.run(whole, restored(statistics, forms[1]), x, train, _or_any(key), (cut.layer,))
        assert ran.z is not None
        return in_float32(ran.z), stored(ran.state) if train else statistics

    def from_layer_on(params: Tree, z: Array) -> Array:
        # What comes before the layer is computed from zeros, and z put in its place.
        whole = {**zeros(present, params), **params}
        nothing = zeros({"x": jax.ShapeDtypeStruct((z.shape[0], *form.shape), form.dtype)}, params)["x"]
        state = {name: jnp.zeros(a.shape, a.dtype) for name, a in forms[1].items()}
        return network.run(whole, state, nothing, False, _or_any(None), (cut.layer,), z).output

    def predict(params: Tree, z: Array) -> Array:
        return in_float32(_only_what_is_needed(from_layer_on, params, in_own_type(z, cut.type)))

    def state_dict(params: Params, statistics: Tree) -> dict[str, Any]:
        kept = {**(params.extractor or {}), **(params.predictor or {}), **restored(statistics, forms[1])}
        return as_numpy(in_own_types(kept, network.types))

    return Model(init, extract, predict, cut.random, state_dict, never_negative=as_statistics(network.never_negative))


def joined(extractor: Network, predictor: Callable[[jax.ShapeDtypeStruct], Network], sample: Any) -> Model:
    """The model of two networks, x -> z and z -> logits; the second is made for what the first gives."""
    form, key = form_of(sample), jax.random.key(0)
    x = jax.ShapeDtypeStruct((2, *form.shape), form.dtype)
    with saying(f"{extractor.kind} does not take samples of shape {form.shape} of {form.dtype}"):
        first = jax.eval_shape(extractor.init, key)
        z = jax.eval_shape(lambda *given: extractor.run(*given, False, key).output, *first, x)
        random = _used(lambda *given: extractor.run(*given[:3], True, given[3])[:2], *first, x, key)[3]
    vectors(z, "what the extractor gives")
    last = predictor(jax.ShapeDtypeStruct(z.shape[1:], z.dtype))
    with saying(f"the predictor does not take features of shape {z.shape[1:]}"):
        second = jax.eval_shape(last.init, key)
        draws = _used(lambda *given: last.run(*given[:3], True, given[3]).output, *second, z, key)[3]
    _check_predictor("the predictor", sorted(second[1]), draws)

    def init(key: Array) -> tuple[Params, Tree]:
        keys = jax.random.split(key)
        params, state = extractor.init(keys[0])
        return Params(dict(params), dict(last.init(keys[1])[0])), stored(state)

    def extract(params: Tree, statistics: Tree, x: Array, train: bool, key: Array | None = None) -> tuple[Array, Tree]:
        ran = extractor.run(params, restored(statistics, first[1]), x, train, _or_any(key))
        return in_float32(ran.output), stored(ran.state) if train else statistics

    def predict(params: Tree, given: Array) -> Array:
        return in_float32(last.run(params, {}, in_own_type(given, z.dtype), False, _or_any(None)).output)

    def state_dict(params: Params, statistics: Tree) -> dict[str, Any]:
        kept = {**(params.extractor or {}), **restored(statistics, first[1])}
        parts = {
            "extractor": in_own_types(kept, extractor.types),
            "predictor": in_own_types(params.predictor or {}, last.types),
        }
        return as_numpy({f"{part}/{name}": a for part, named in parts.items() for name, a in named.items()})

    return Model(init, extract, predict, random, state_dict, never_negative=as_statistics(extractor.never_negative))


class _Cut(NamedTuple):
    layer: str
    type: Any  # of what the layer gets
    predictor: tuple[str, ...]  # the parameters that are used from the layer on
    random: bool  # whether what comes before it draws in training


def _divide_at_last(network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct) -> _Cut:
    """The cut at the last layer that has parameters."""
    try:
        called = _called(network, forms, x, False, network.layers)
    except FedgenError:
        raise
    except Exception:  # of any type: a framework's transform does not take a layer that is watched
        _called(network, forms, x, False)  # raises where it is the network itself that fails
        return _divide_outside_transforms(network, forms, x)
    if not called:
        raise FedgenError(f"{network.kind} has no layer with parameters, so there is nothing to train")
    return _divide(network, forms, x, called[-1])


def _divide_outside_transforms(network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct) -> _Cut:
    """The cut at the last layer that has parameters, if no layer within a transform follows it."""
    outside = [layer for layer in network.layers if _can_be_watched(network, forms, x, layer)]
    if called := _called(network, forms, x, False, outside):
        used = _used_since(network, forms, x, called[-1], _given(network, forms, x, called[-1]), False)[0]
        if {name.rpartition(".")[0] for name in used if used[name]}.issubset(outside):
            return _divide(network, forms, x, called[-1])
    raise FedgenError(
        f"{network.kind} ends with layers within a transform (as nnx.RNN and nnx.scan), where it cannot be split; name"
        ' the layer at which to split, as predictor="head", or give the predictor as a second network'
    )


def _called(
    network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct, train: bool, watch: Sequence[str] = ()
) -> list[str]:
    """Which of the watched layers are called, in this order."""
    called: list[str] = []

    def run(parameters: Named, state: Named, x: Array) -> Array:
        ran = network.run(parameters, state, x, train, _or_any(None), watch)
        called.extend(ran.called)
        return ran.output

    jax.eval_shape(run, *forms, x)
    return called


def _can_be_watched(network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct, layer: str) -> bool:
    try:
        _called(network, forms, x, False, (layer,))
    except Exception:  # of any type, from the framework: the network takes x where the layer is not watched
        return False
    return True


def _divide(network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct, layer: str) -> _Cut:
    """What is used before a layer and what from it on, after checking that the layer divides the network."""
    z = vectors(_given(network, forms, x, layer), f"what layer '{layer}' gets")
    before = _used(_until(network, layer), *forms, x, jax.random.key(0))
    training, evaluating = (_used_since(network, forms, x, layer, z, train) for train in (True, False))
    where = f"the part of {network.kind} from layer '{layer}' on"
    if training[2] or evaluating[2]:
        raise FedgenError(f"{where} also uses what comes before it; split it at another layer")
    _check_predictor(where, [name for name in forms[1] if training[1][name] or evaluating[1][name]], training[3])
    after = [name for name in forms[0] if training[0][name] or evaluating[0][name]]
    if both := [name for name in after if before[0][name]]:
        raise FedgenError(f"parameter '{both[0]}' is used before layer '{layer}' and after; split at another layer")
    return _Cut(layer, z.dtype, tuple(after), before[3])


def _until(network: Network, layer: str) -> Callable[..., tuple[Array | None, Named]]:
    """A function of parameters, state, x and a key: what the layer gets in training, and the new state."""

    def until(parameters: Named, state: Named, x: Array, key: Array) -> tuple[Array | None, Named]:
        ran = network.run(parameters, state, x, True, key, (layer,))
        if len(ran.called) != 1:
            raise FedgenError(
                f"{network.kind} calls a layer '{layer}' {len(ran.called)} times, and is split at one that it calls"
                f" once; its layers with parameters are {', '.join(network.layers)}"
            )
        return ran.z, ran.state

    return until


def _given(network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct, layer: str) -> Any:
    """The form of what a layer gets."""
    try:
        return jax.eval_shape(_until(network, layer), *forms, x, jax.random.key(0))[0]
    except FedgenError:
        raise
    except Exception as error:  # of any type, from the framework
        _called(network, forms, x, True)  # raises where it is the network itself that fails
        raise FedgenError(
            f"{network.kind} calls layer '{layer}' where a network cannot be split, as within a transform (a scan,"
            " nnx.RNN); name a layer that is outside"
        ) from error


def _used_since(
    network: Network, forms: tuple[Named, Named], x: jax.ShapeDtypeStruct, layer: str, z: Any, train: bool
) -> tuple[Any, ...]:
    """Which of parameters, state, x and the key are used from a layer on, which gets z."""

    def since(parameters: Named, state: Named, x: Array, key: Array, z: Array) -> Array:
        return network.run(parameters, state, x, train, key, (layer,), z).output

    return _used(since, *forms, x, jax.random.key(0), z)


def _check_predictor(what: str, state: Sequence[str], random: bool) -> None:
    """Refuse a predictor that is more than a function z -> logits, for FedGen calls it on features that it made up."""
    if state:
        raise FedgenError(f"{what} has state, '{state[0]}'; split the network after its last BatchNorm")
    if random:
        raise FedgenError(f"{what} draws at random in training; split the network after its last dropout")


def _used(f: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """The arguments with, in place of each array, whether the result depends on it."""
    jaxpr = jax.make_jaxpr(f)(*arguments).jaxpr
    needed = _needed(jaxpr)
    flags = [v in needed for v in jaxpr.invars]
    found: tuple[Any, ...] = jax.tree.unflatten(jax.tree.structure(arguments), flags)
    return found


def _only_what_is_needed(f: Callable[..., Any], *arguments: Any) -> Any:
    """f of the arguments, without the operations that its result does not depend on."""
    traced, form = jax.make_jaxpr(f, return_shape=True)(*arguments)
    needed = _needed(traced.jaxpr)
    kept = [equation for equation in traced.jaxpr.eqns if needed.intersection(equation.outvars)]
    shorter = traced.replace(jaxpr=traced.jaxpr.replace(eqns=kept))
    return jax.tree.unflatten(jax.tree.structure(form), jaxpr_as_fun(shorter)(*jax.tree.leaves(arguments)))


def _needed(jaxpr: Jaxpr) -> set[Var]:
    """The variables that the results depend on."""
    needed = {v for v in jaxpr.outvars if isinstance(v, Var)}
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            needed.update(v for v in equation.invars if isinstance(v, Var))
    return needed


def _or_any(key: Array | None) -> Array:
    """The key; where nothing is drawn, any."""
    return jax.random.key(0) if key is None else key
