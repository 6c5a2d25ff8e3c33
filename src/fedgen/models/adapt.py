"""Whatever network a user brings, as a model."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import jax

from fedgen.core.contract import Model
from fedgen.errors import FedgenError
from fedgen.models.check import described
from fedgen.models.seeding import torch_seeded
from fedgen.registry import load, needs_key

# A module's framework -> what makes a model of it. By address, since a network's framework is all that need be there.
_BRIDGES = {"flax": "fedgen:from_flax", "equinox": "fedgen:from_equinox", "torch": "fedgen:from_torch"}
_CALLED = {"flax": "Flax", "equinox": "Equinox", "torch": "PyTorch"}
BUILDER = "name a function that makes the network: def build(sample, classes): return ..."


def as_model(thing: Any, sample: jax.ShapeDtypeStruct, classes: int, build: Callable[[], Any] | None = None) -> Model:
    """A model of a Flax, Equinox or PyTorch module, or of a function that gives one.

    A function takes (sample's shape, classes), a random key by the name `key`, or all three. `build` is what made the
    thing, if anything did: PyTorch's modules have weights from the start, so they are made again for each seed.
    """
    if isinstance(thing, Model):
        return thing
    if isinstance(thing, type):
        raise FedgenError(
            f"a model is given as the class {thing.__name__}; give the network, {thing.__name__}(...), or a function"
            " that makes it: lambda sample, classes: network"
        )
    if framework := framework_of(thing):
        return _bridge(framework)(build if build and framework == "torch" else thing, sample=sample)
    if callable(thing):
        return _made_by(thing, sample, classes)
    raise FedgenError(
        f"a model is given as {described(thing)}; it must be a fedgen.Model, or a module of Flax, Equinox or PyTorch"
    )


def model_made_by(build: Callable[..., Any], sample: jax.ShapeDtypeStruct, classes: int) -> Model:
    """The model of what a function makes, of nothing or of a key; of a key, each seed starts with other parameters."""
    if needs_key(build):
        return _made_of_key(build, sample)
    with _saying_what_it_raises(build), torch_seeded(0):
        made = build()
    return as_model(made, sample, classes, build)


def refuse_others(thing: Any, framework: str) -> None:
    """Refuse a module of another framework than this one."""
    found = framework_of(thing)
    if found not in (None, framework):
        raise FedgenError(
            f"from_{framework} takes modules of {_CALLED[framework]}, and {described(thing)} is of {_CALLED[found]}:"
            f" fedgen.from_{found} takes it"
        )


def _made_by(function: Callable[..., Any], sample: jax.ShapeDtypeStruct, classes: int) -> Model:
    key = {"key": None} if needs_key(function) else {}
    if key and why_not_taken(function, **key) is None:
        return model_made_by(function, sample, classes)
    if error := why_not_taken(function, sample.shape, classes, **key):
        raise FedgenError(
            f"a model is given as a function that does not take (the sample's shape, the number of classes): {error};"
            " write it as lambda sample, classes: network, for Equinox and nnx also as lambda key: network, or give"
            " the network itself"
        ) from error
    return model_made_by(partial(function, sample.shape, classes), sample, classes)


def why_not_taken(function: Callable[..., Any], *arguments: Any, **named: Any) -> TypeError | None:
    """Why a function does not take these arguments; None if it does."""
    try:
        inspect.signature(function).bind(*arguments, **named)
    except TypeError as error:
        return error
    except ValueError:  # of some functions Python knows no signature
        pass
    return None


def _made_of_key(make: Callable[..., Any], sample: jax.ShapeDtypeStruct) -> Model:
    found: list[Any] = []
    with _saying_what_it_raises(make):  # traced: only what kind of thing it is counts
        jax.eval_shape(lambda key: found.append(make(key=key)), jax.random.key(0))
    framework = framework_of(found[0])
    is_linen = any(kind.__module__.startswith("flax.linen") for kind in type(found[0]).__mro__)
    if framework not in ("flax", "equinox") or is_linen:
        raise FedgenError(
            f"a function of a key makes {described(found[0])}; it must make an nnx or Equinox module, and others need"
            " no key: the run's seed starts them"
        )
    return _bridge(framework)(lambda key: make(key=key), sample=sample)


def framework_of(thing: Any) -> str | None:
    """Whose module it is; Equinox keeps a network's state apart from its module: (module, state)."""
    module = thing[0] if isinstance(thing, tuple) and thing else thing
    frameworks = (kind.__module__.partition(".")[0] for kind in type(module).__mro__)
    return next((name for name in frameworks if name in _BRIDGES), None)


def _bridge(framework: str) -> Callable[..., Model]:
    return cast(Callable[..., Model], load(_BRIDGES[framework]))


@contextmanager
def _saying_what_it_raises(make: Callable[..., Any]) -> Iterator[None]:
    """Whatever a user's function raises is one sentence."""
    try:
        yield
    except FedgenError:
        raise
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        kind = type(error).__name__
        raised = f"raises {kind}{said and f': {said}'}"
        whole = make.func if isinstance(make, partial) else make
        if isinstance(whole, type):
            given = "(the sample's shape, the number of classes)"
            raise FedgenError(f"the class {whole.__name__} is called with {given} and {raised}; {BUILDER}") from error
        raise FedgenError(f"the function that makes the network {raised}") from error
