"""Whatever network a user brings, as a model."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import jax

from fedgen.core.contract import Model
from fedgen.errors import FedgenError
from fedgen.models.check import described
from fedgen.models.seeding import torch_seeded
from fedgen.registry import load

# A module's framework -> what makes a model of it. By address, since a network's framework is all that need be there.
_BRIDGES = {"flax": "fedgen:from_flax", "equinox": "fedgen:from_equinox", "torch": "fedgen:from_torch"}


def as_model(thing: Any, sample: jax.ShapeDtypeStruct, classes: int, build: Callable[[], Any] | None = None) -> Model:
    """A model of a Flax, Equinox or PyTorch module, or of a function (sample's shape, classes) that gives one.

    `build` is what made the thing, if anything did: PyTorch's modules have weights from the start, so they are made
    again for each seed.
    """
    if isinstance(thing, Model):
        return thing
    # Equinox keeps a network's state apart from its module: (module, state).
    module = thing[0] if isinstance(thing, tuple) and thing else thing
    for kind in type(module).__mro__:
        framework = kind.__module__.partition(".")[0]
        if framework in _BRIDGES:
            bridge = cast(Callable[..., Model], load(_BRIDGES[framework]))
            return bridge(build if build and framework == "torch" else thing, sample=sample)
    if callable(thing) and not isinstance(thing, type):
        return _made_by(thing, sample, classes)
    raise FedgenError(
        f"a model is given as {described(thing)}; it must be a fedgen.Model, or a module of Flax, Equinox or PyTorch"
    )


def _made_by(function: Callable[..., Any], sample: jax.ShapeDtypeStruct, classes: int) -> Model:
    try:
        inspect.signature(function).bind(sample.shape, classes)
    except TypeError as error:
        raise FedgenError(
            f"a model is given as a function that does not take (the sample's shape, the number of classes): {error};"
            " write it as lambda sample, classes: network, or give the network itself"
        ) from error
    except ValueError:  # of some functions Python knows no signature
        pass
    build = partial(function, sample.shape, classes)
    with torch_seeded(0):
        made = build()
    return as_model(made, sample, classes, build)
