"""Whatever network a user brings, as a model."""

from collections.abc import Callable
from typing import Any, cast

import jax

from fedgen.core.contract import Model
from fedgen.errors import FedgenError
from fedgen.models.check import described
from fedgen.registry import load

# A module's framework -> what makes a model of it. By address, since a network's framework is all that need be there.
_BRIDGES = {"flax": "fedgen:from_flax", "equinox": "fedgen:from_equinox", "torch": "fedgen:from_torch"}


def as_model(thing: Any, sample: jax.ShapeDtypeStruct, classes: int) -> Model:
    """A model of a Flax, Equinox or PyTorch module, or of a function (sample's shape, classes) that gives one."""
    if isinstance(thing, Model):
        return thing
    # Equinox keeps a network's state apart from its module: (module, state).
    module = thing[0] if isinstance(thing, tuple) and thing else thing
    for kind in type(module).__mro__:
        framework = kind.__module__.partition(".")[0]
        if framework in _BRIDGES:
            bridge = cast(Callable[..., Model], load(_BRIDGES[framework]))
            return bridge(thing, sample=sample)
    if callable(thing) and not isinstance(thing, type):
        return as_model(thing(sample.shape, classes), sample, classes)
    raise FedgenError(
        f"a model is given as {described(thing)}; it must be a fedgen.Model, or a module of Flax, Equinox or PyTorch"
    )
