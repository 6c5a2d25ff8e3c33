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


def task_of(config: RunConfig, model: Model | None, dataset: Dataset, proxy_samples: int) -> Task:
    """The task of learning this dataset with the configured model, or with the given one."""
    sample = dataset.x_train.shape[1:]
    return Task(
        model or model_by_name(config.model, sample, dataset.classes, config.of("model")),
        dataset.classes,
        jax.ShapeDtypeStruct(sample, dataset.x_train.dtype),
        partial(PREPARE[dataset.scale], white=dataset.max_value),
        proxy_samples,
    )


def model_by_name(name: str, sample: tuple[int, ...], classes: int, options: Mapping[str, Any]) -> Model:
    """A model of the registry, or of a `package.module:function`, for samples of this shape."""
    builder = MODELS.find(name)
    try:
        inspect.signature(builder).bind(sample, classes, **options)
    except TypeError as error:
        raise FedgenError(f"model '{name}' with options {dict(options)}: {error}") from error
    model = builder(sample, classes, **options)
    if not isinstance(model, Model):
        raise FedgenError(f"model '{name}' gives a {type(model).__name__}; its function must give a fedgen.Model")
    return model


def federation_of(config: RunConfig) -> Federation:
    """Who takes part and how a client trains; one algorithm's own values come on top when it is built."""
    return Federation.model_construct(**{name: getattr(config, name) for name in Federation.model_fields})


def normalise(x: Array, white: int = 255) -> Array:
    """Stored bytes, or numbers of 16 bits, as (x/white - 0.5) / 0.5; other numbers as they are."""
    return (unit(x, white) - 0.5) / 0.5 if _is_whole(x) else unit(x)


def unit(x: Array, white: int = 255) -> Array:
    """Stored bytes, or numbers of 16 bits, as x/white; other numbers as they are."""
    return x.astype(jnp.float32) / white if _is_whole(x) else x.astype(jnp.float32)


def _is_whole(x: Array) -> bool:
    return x.dtype in (jnp.uint8, jnp.uint16)


# How a dataset's samples become the model's input.
PREPARE: dict[str, Callable[..., Array]] = {"signed": normalise, "unit": unit}
