"""A `Model` from a PyTorch module, or from a function that makes one for each seed."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy

from fedgen.core.contract import Array, Model, Params, Tree
from fedgen.errors import FedgenError
from fedgen.models.adapt import why_not_taken
from fedgen.models.network import as_statistics, form_of
from fedgen.models.seeding import GENERATORS, torch_seeded
from fedgen.models.torch.layout import taken_by_module
from fedgen.models.torch.network import Network, arrays_of
from fedgen.models.torch.predictor import find_predictor


def build(
    source: nn.Module | Callable[[], nn.Module],
    sample: Sequence[int] | torch.Tensor | Array | NDArray[Any] | jax.ShapeDtypeStruct,
    predictor: str | None,
    channels_last: bool | None,
) -> Model:
    """See `fedgen.from_torch`."""
    if not isinstance(source, nn.Module) and not callable(source):
        raise _unfit(source)
    if isinstance(source, nn.Module):
        _refuse_compiled(source)
    example = _example(sample)
    if isinstance(sample, jax.ShapeDtypeStruct) and channels_last is None:
        channels_last = tuple(sample.shape) != tuple(example.shape) or example.ndim == 3
    module = (_copied(source) if isinstance(source, nn.Module) else _made(source, 0)).cpu()
    if lazy := [name for name, tensor in module.named_parameters() if is_lazy(tensor)]:
        raise FedgenError(
            f"the parameter '{lazy[0]}' has no shape before the module has seen a sample; call the module once with a"
            " batch, then give it to from_torch"
        )
    network = Network(module, find_predictor(module, predictor, example), example, channels_last)
    names = [*network.extractor, *network.predictor, *network.statistics]
    present = arrays_of(module)
    forms = [jax.ShapeDtypeStruct(present[name].shape, jnp.float32) for name in names]

    def weights(key: Array) -> list[np.ndarray]:
        arrays = present if isinstance(source, nn.Module) else arrays_of(_made(source, _seed(key)))
        return [arrays[name].astype(np.float32) for name in names]

    def init(key: Array) -> tuple[Params, Tree]:
        # `init` is traced, and PyTorch's weights are no constants of the compiled program: they may be large, and
        # depend on the key.
        found = jax.pure_callback(weights, forms, jax.random.key_data(key), vmap_method="sequential")
        by_name = dict(zip(names, found, strict=True))

        def of(some: Sequence[str]) -> dict[str, Array]:
            return {name: by_name[name] for name in some}

        return Params(of(network.extractor), of(network.predictor)), of(network.statistics)

    functions = init, network.extract, network.predict
    never_negative = as_statistics(network.never_negative)
    return Model(*functions, network.random, network.state_dict, "torch", never_negative)


def _example(sample: Any) -> torch.Tensor:
    """One sample as the module takes it."""
    if isinstance(sample, torch.Tensor):
        return sample.detach().cpu()
    form = form_of(sample)
    dtype = torch.int64 if jnp.issubdtype(form.dtype, jnp.integer) else torch.float32
    if isinstance(sample, jax.ShapeDtypeStruct):
        return torch.zeros(taken_by_module(sample), dtype=dtype)
    if hasattr(sample, "shape"):
        return torch.tensor(np.asarray(sample, form.dtype), dtype=dtype)
    return torch.zeros(form.shape, dtype=dtype)


def _copied(source: nn.Module) -> nn.Module:
    """The module, with the hooks of its parameters, which a copy loses."""
    try:
        module = copy.deepcopy(source)
    except RuntimeError as error:
        raise FedgenError(
            "the module keeps a tensor that PyTorch cannot copy, as torch.nn.utils.weight_norm does; use"
            " torch.nn.utils.parametrizations.weight_norm, or give a function that makes the module"
        ) from error
    for parameter, original in zip(module.parameters(), source.parameters(), strict=True):
        for hook in (original._backward_hooks or {}).values():
            parameter.register_hook(hook)
    return module


def _seed(key: Array) -> int:
    """A seed for PyTorch from the data of JAX's key."""
    return int.from_bytes(hashlib.sha256(np.asarray(key).tobytes()).digest()[:8], "little")


def _made(factory: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The factory's module under this seed; PyTorch's generator is left as it was."""
    if error := why_not_taken(factory):
        raise FedgenError(
            "from_torch takes an nn.Module or a function without arguments that makes one, as lambda: Net(width=32);"
            f" this one is {error}"
        )
    with GENERATORS, torch_seeded(seed):
        module = factory()
    if not isinstance(module, nn.Module):
        raise _unfit(module)
    _refuse_compiled(module)
    return module


def _refuse_compiled(module: nn.Module) -> None:
    if any(isinstance(inner, torch.jit.ScriptModule) for inner in module.modules()):
        raise FedgenError(
            "the module is, or has inside, one of torch.jit.script or torch.jit.trace, which torch.export does not"
            " follow; give the module that it was made from"
        )


def _unfit(thing: object) -> FedgenError:
    return FedgenError(f"from_torch takes an nn.Module or a function that makes one, not {type(thing).__name__}")
