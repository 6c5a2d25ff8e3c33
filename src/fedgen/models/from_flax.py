"""Flax networks, of linen or nnx, as models."""

from importlib.util import find_spec
from typing import Any

from fedgen.core.contract import Model
from fedgen.errors import FedgenError
from fedgen.models.adapt import refuse_others
from fedgen.models.check import described
from fedgen.models.network import Network
from fedgen.models.split import joined, split

Module = Any  # a linen or nnx module, or a function key -> nnx module


def from_flax(module: Module, predictor: str | Module | None = None, *, sample: Any) -> Model:
    """Take a Flax network as it is, as a model.

    Args:
        module: A linen module, an nnx module, or a function that makes an nnx module of a random key, so that each seed
            starts with other parameters.
        predictor: The name of the layer from which on the predictor begins (`"head"`, `"blocks.2"`); or a separate
            module that takes what `module` gives. Default: the last layer that has parameters.
        sample: One sample, or the shape of one where they are of floating-point numbers.

    Returns:
        A model whose `state_dict` gives the trained arrays by the framework's names.

    Examples:
        >>> import flax.linen as nn, fedgen
        >>> model = fedgen.from_flax(nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)]), sample=(4,))
    """
    if find_spec("flax") is None:
        raise FedgenError("from_flax needs Flax: pip install '.[flax]' in FedGen's folder")
    if predictor is None or isinstance(predictor, str):
        made = split(_network(module, sample), sample, predictor and predictor.replace("/", "."))
    else:
        made = joined(_network(module, sample), lambda z: _network(predictor, z), sample)
    return made._replace(framework="flax")


def _network(module: Module, sample: Any) -> Network:
    from flax import linen, nnx

    from fedgen.models.flax_linen import linen_network
    from fedgen.models.flax_nnx import nnx_network

    if isinstance(module, linen.Module):
        return linen_network(module, sample)
    if isinstance(module, nnx.Module):
        return nnx_network(lambda key: nnx.clone(module))
    refuse_others(module, "flax")
    if callable(module):
        return nnx_network(module)
    raise FedgenError(f"from_flax takes a linen or nnx module, or a function that makes one, not {described(module)}")
