"""Equinox networks as models."""

from importlib.util import find_spec
from typing import Any

from fedgen.core.contract import Model
from fedgen.errors import FedgenError
from fedgen.models.adapt import refuse_others
from fedgen.models.split import joined, split

Module = Any  # an Equinox module, (module, state), or a function key -> either


def from_equinox(module: Module, predictor: str | Module | None = None, *, sample: Any) -> Model:
    """Take an Equinox network as it is, as a model.

    Args:
        module: A module that takes one sample, a pair (module, state) as `eqx.nn.make_with_state` gives it, or a
            function that makes either of a random key, so that each seed starts with other parameters.
        predictor: The name of the layer from which on the predictor begins (`"head"`, `"blocks.2"`); or a separate
            module that takes what `module` gives. Default: the last layer that has parameters.
        sample: One sample, or the shape of one where they are of floating-point numbers.

    Returns:
        A model whose `state_dict` gives the trained arrays by the framework's names.

    Examples:
        >>> import equinox as eqx, fedgen
        >>> model = fedgen.from_equinox(lambda key: eqx.nn.MLP(4, 3, 16, 2, key=key), sample=(4,))
    """
    if find_spec("equinox") is None:
        raise FedgenError("from_equinox needs Equinox: pip install '.[equinox]' in FedGen's folder")
    from fedgen.models.equinox_network import equinox_network

    refuse_others(module, "equinox")
    if predictor is None or isinstance(predictor, str):
        made = split(equinox_network(module), sample, predictor)
    else:
        refuse_others(predictor, "equinox")
        made = joined(equinox_network(module), lambda z: equinox_network(predictor), sample)
    return made._replace(framework="equinox")
