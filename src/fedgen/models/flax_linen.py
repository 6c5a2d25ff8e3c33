"""A network of Flax's linen as functions of its numbers."""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from fedgen.core.contract import Array
from fedgen.models.check import saying
from fedgen.models.network import (
    Named,
    Network,
    Ran,
    first_changed,
    form_of,
    init_of,
    mode_arguments,
    sort_numbers,
)

_PARAMS = "params/"


def linen_network(module: nn.Module, sample: Any) -> Network:
    """The network of a linen module, with names such as "params/Dense_0/kernel" and "batch_stats/norm/mean"."""
    form = form_of(sample)
    paths: dict[str, tuple[str, ...]] = {}  # name -> where it is: WeightNorm's own names have a "/", too

    def flat(variables: Any) -> Named:
        # What a module sows, in whatever collection, is a tuple of what it gave, and no number of the network.
        found = {path: a for path, a in flatten_dict(nn.unbox(variables)).items() if not isinstance(a, tuple)}
        paths.update({"/".join(path): path for path in found})
        return {"/".join(path): a for path, a in found.items()}

    def everything(key: Array) -> Named:
        x = jnp.zeros((1, *form.shape), form.dtype)
        return flat(module.init(key, x, **mode_arguments(module.__call__, False)))

    variances: dict[str, None] = {}

    def find_variances(call: Any, arguments: Any, named: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, nn.BatchNorm):
            variances["/".join(("batch_stats", *context.module.path, "var"))] = None
        return call(*arguments, **named)

    kind = f"the Flax network {type(module).__name__}"
    with (
        saying(f"{kind} does not take samples of shape {form.shape} of {form.dtype}"),
        nn.intercept_methods(find_variances),
    ):
        numbers = sort_numbers(everything, lambda name: name.startswith(_PARAMS))
    changing = sorted({name.partition("/")[0] for name in numbers.state})  # collections

    def run(
        parameters: Named, state: Named, x: Array, train: bool, key: Array, watch: Any = (), z: Array | None = None
    ) -> Ran:
        called: list[str] = []
        got: list[Array] = []

        def note(given: Array) -> Array:
            got.append(given)
            return given if z is None else z

        def intercept(call: Any, arguments: Any, named: Any, context: nn.module.InterceptorContext) -> Any:
            name = ".".join(context.module.path)
            if context.method_name == "__call__" and name in watch:
                called.append(name)
                arguments, named = first_changed(note, arguments, named)
            return call(*arguments, **named)

        variables = unflatten_dict({paths[name]: a for name, a in numbers.together(parameters, state).items()})
        # Whatever a module draws with ("dropout", or any other name), linen takes this key where there is no other.
        options = {"rngs": {"params": key}, "mutable": changing} if train else {"mutable": False}
        with nn.intercept_methods(intercept):
            result = module.apply(variables, x, **mode_arguments(module.__call__, train), **options)
        output, updated = result if train else (result, {})
        after = {**state, **flat(updated)}
        return Ran(output, {name: after[name] for name in state}, called, got[0] if len(watch) == 1 and got else None)

    layers = dict.fromkeys(".".join(paths[name][1:-1]) for name in numbers.parameters)
    return Network(kind, init_of(everything, numbers), run, tuple(layers), tuple(variances), numbers.types)
