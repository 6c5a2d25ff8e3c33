"""Whether a network is one that can be trained here, by shapes alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.core.contract import Params, Task, Tree
from fedgen.core.trees import named
from fedgen.errors import FedgenError

_BATCH = 2  # samples that the shapes are found with


def check_model(task: Task) -> None:
    """Refuse a model that does not give what it should for the task's samples and classes."""
    model, key = task.model, jax.random.key(0)
    with saying("the model's init fails"):
        made = jax.eval_shape(model.init, key)
    params, statistics = _checked_start(made)
    if unknown := set(model.never_negative) - set(named(statistics)):
        raise FedgenError(
            f"the model says that its statistics {min(unknown)} are never negative; it has"
            f" {', '.join(named(statistics)) or 'none'}"
        )
    with saying("the samples cannot be prepared"):
        x = jax.eval_shape(task.prepare, jax.ShapeDtypeStruct((_BATCH, *task.sample.shape), task.sample.dtype))
    samples = f"samples of shape {task.sample.shape} of {x.dtype}"
    with saying(f"the model does not take {samples}"):
        found = jax.eval_shape(lambda *a: model.extract(*a, False), params.extractor, statistics, x)
        trained = jax.eval_shape(model.extract_in_training, params.extractor, statistics, x, key)
    z = _checked_features(found, statistics, "extract")
    _check_type(z, "extract gives features", "z.astype(jnp.float32)")
    if _form(_checked_features(trained, statistics, "extract in training")) != _form(z):
        raise FedgenError("the model's extract gives features of another shape or type in training than in evaluation")
    with saying(f"the model's predict does not take features of shape {z.shape[1:]}"):
        logits = jax.eval_shape(model.predict, params.predictor, z)
    if not is_floating(logits) or logits.ndim != 2 or len(logits) != _BATCH:
        raise FedgenError(f"the model's predict gives {described(logits)}; it must give a number for each class")
    _check_type(logits, "predict gives logits", "logits.astype(jnp.float32)")
    if logits.shape[1] != task.classes:
        raise FedgenError(
            f"the model has {logits.shape[1]} outputs and the data {task.classes} classes; they must be as many"
        )


def _checked_start(made: Any) -> tuple[Params, Tree]:
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], Params):
        raise FedgenError(f"the model's init gives {described(made)}; it must give (fedgen.Params(...), statistics)")
    for what, tree in (("parameters", made[0]), ("statistics", made[1])):
        wrong = [a for a in jax.tree.leaves(tree) if not is_floating(a)]
        if wrong:
            raise FedgenError(f"the model's {what} include {described(wrong[0])}; all must be floating-point arrays")
    if not jax.tree.leaves(made[0]):
        raise FedgenError("the model has no parameters, so there is nothing to train")
    for a in jax.tree.leaves(made[0]):
        _check_type(a, "init gives parameters", "a.astype(jnp.float32), and round them in extract and predict")
    return made


def _check_type(a: Any, what: str, right: str) -> None:
    if a.dtype != jnp.float32:
        raise FedgenError(f"the model's {what} of {a.dtype}; they must be of float32: give {right}")


def _checked_features(found: Any, statistics: Tree, what: str) -> Any:
    if not isinstance(found, tuple) or len(found) != 2:
        raise FedgenError(f"the model's {what} gives {described(found)}; it must give (z, statistics)")
    z = vectors(found[0], f"what the model's {what} gives")
    if _form(found[1]) != _form(statistics):
        raise FedgenError(
            f"the model's {what} gives statistics of another form than those that init gives and that it got"
        )
    return z


def vectors(z: Any, what: str) -> Any:
    """z itself, if it is a vector of floating-point numbers for each sample of a batch."""
    if not is_floating(z) or z.ndim != 2 or len(z) != _BATCH:
        raise FedgenError(
            f"{what} is {described(z)}; the features of each sample must be a vector of floating-point numbers,"
            " [batch, size]"
        )
    return z


def _form(tree: Tree) -> tuple[Any, ...]:
    """Equal for trees of one structure whose arrays have the same shapes and types."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(tuple(a.shape), a.dtype) for a in leaves]


def is_floating(a: Any) -> bool:
    """Whether this is an array, or the form of one, of floating-point numbers."""
    return hasattr(a, "dtype") and jnp.issubdtype(a.dtype, jnp.floating)


def described(found: Any) -> str:
    """What a function gave instead, in a few words."""
    if hasattr(found, "shape") and hasattr(found, "dtype"):
        return f"an array of shape {found.shape} of {found.dtype}" + (f" for {_BATCH} samples" if found.shape else "")
    if isinstance(found, tuple) and type(found) is tuple:
        return f"a tuple of {len(found)} ({', '.join(type(part).__name__ for part in found)})"
    return "None" if found is None else f"a {type(found).__name__}"


@contextmanager
def saying(what: str) -> Iterator[None]:
    """Whatever goes wrong in a user's network is one sentence that begins so."""
    try:
        yield
    except FedgenError:
        raise
    except Exception as error:  # of any type: it comes from the user's code, or from a framework
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise FedgenError(f"{what}: {lines[0] if lines else type(error).__name__}") from error
