"""From a configuration to what an algorithm is built from: the task and the federation.

The simulator and a site of a real federation both start here.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.config import RunConfig
from fedgen.core.contract import Array, Federation, Model, Task
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.models.adapt import BUILDER, as_model, model_made_by
from fedgen.models.autotune import chooser
from fedgen.models.network import is_pixels
from fedgen.models.precision import at_precision
from fedgen.models.rewrite import rewritten_model
from fedgen.registry import needs_key


def task_of(config: RunConfig, model: Any, dataset: Dataset, proxy_samples: int) -> Task:
    """The task of learning this dataset with the given network (see `as_model`), or with the configured one."""
    sample = jax.ShapeDtypeStruct(dataset.x_train.shape[1:], dataset.x_train.dtype)
    if model is None:
        model = model_by_name(config.model, sample, dataset.classes, config.of("model"))
    else:
        model = as_model(model, sample, dataset.classes)
    samples = _samples_trained(config, dataset)
    model = rewritten_model(model, chooser(config.convolutions, samples, config.active, config.batch_size))
    model = at_precision(model, config.precision)
    prepare = partial(PREPARE[dataset.scale], white=dataset.max_value)
    return Task(model, dataset.classes, sample, prepare, proxy_samples)


def _samples_trained(config: RunConfig, dataset: Dataset) -> float:
    """About how many samples all users of a run train on, over all rounds."""
    steps = config.local_steps
    if config.local_epochs:
        steps = -(-config.local_epochs * len(dataset.y_train) // (config.users * config.batch_size))
    return float(config.rounds) * config.active * steps * config.batch_size


def model_by_name(name: str, sample: jax.ShapeDtypeStruct, classes: int, options: Mapping[str, Any]) -> Model:
    """A model of the registry, or of a `package.module:function`, for such samples."""
    builder = MODELS.find(name)
    key = {"key": None} if needs_key(builder) else {}
    try:
        inspect.signature(builder).bind(sample.shape, classes, **options, **key)
    except TypeError as error:
        if isinstance(builder, type):
            raise FedgenError(
                f"model '{name}' is a class that does not take (the sample's shape, the number of classes); {BUILDER}"
            ) from error
        raise FedgenError(f"model '{name}' with options {dict(options)}: {error}") from error
    try:
        return model_made_by(partial(builder, sample.shape, classes, **options), sample, classes)
    except FedgenError as error:
        if str(error).startswith(f"model '{name}' "):
            raise
        raise FedgenError(f"model '{name}': {error}") from error


def federation_of(config: RunConfig) -> Federation:
    """Who takes part and how a client trains; one algorithm's own values come on top when it is built."""
    return Federation.model_construct(**{name: getattr(config, name) for name in Federation.model_fields})


def normalise(x: Array, white: int = 255) -> Array:
    """Stored bytes, or numbers of 16 bits, as (x/white - 0.5) / 0.5; others as `unit` gives them."""
    return (unit(x, white) - 0.5) / 0.5 if is_pixels(x.dtype) else unit(x)


def unit(x: Array, white: int = 255) -> Array:
    """Stored bytes, or numbers of 16 bits, as x/white.

    Other whole numbers (words of a text, columns of a table) and float32 are taken as they are.
    """
    if is_pixels(x.dtype):
        return x.astype(jnp.float32) / white
    return x if jnp.issubdtype(x.dtype, jnp.integer) else x.astype(jnp.float32)


# How a dataset's samples become the model's input.
PREPARE: dict[str, Callable[..., Array]] = {"signed": normalise, "unit": unit}
