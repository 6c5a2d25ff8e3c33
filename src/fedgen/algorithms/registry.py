"""How an algorithm is built from its options and the settings of the run that it overrides."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fedgen.algorithms.predicting import predicting
from fedgen.core.aggregate import check_aggregation
from fedgen.core.augment import check_augmentation
from fedgen.core.client import finetuning, keeping_optimizer
from fedgen.core.contract import Algorithm, Federation, Task
from fedgen.core.privacy import check_privacy
from fedgen.core.recipe import check_recipe
from fedgen.errors import FedgenError

Builder = Callable[..., Algorithm]  # (task, federation, *, hyper-parameters) -> Algorithm


def build(
    builder: Builder, task: Task, federation: Federation, options: Mapping[str, Any]
) -> tuple[Algorithm, Federation]:
    """The algorithm with these hyper-parameters, and the federation with those that belong to it overridden."""
    shared = {k: v for k, v in options.items() if k in Federation.model_fields}
    own = {k: v for k, v in options.items() if k not in Federation.model_fields}
    federation = federation.with_values(**shared)
    check_aggregation(federation)
    check_recipe(federation)
    check_augmentation(task, federation)
    algorithm = predicting(_called(builder, task, federation, own), federation)
    if algorithm.needs.proxy and task.proxy_samples == 0:
        raise FedgenError(
            "this algorithm needs unlabelled samples that no user holds, and there are none; give less of the training"
            " set to the users (--train-fraction 0.5)"
        )
    if federation.optimizer_state == "kept":
        algorithm = keeping_optimizer(algorithm, task, federation)
    if federation.finetune_steps:
        algorithm = finetuning(algorithm)
    check_privacy(algorithm, task, federation)
    return algorithm, federation


def _called(builder: Builder, task: Task, federation: Federation, options: Mapping[str, Any]) -> Algorithm:
    """What a builder gives, which may be anybody's function."""
    due = "an algorithm is a function of (task, federation, *, options) that returns a fedgen.Algorithm"
    name = getattr(builder, "__name__", repr(builder))
    try:
        inspect.signature(builder).bind(task, federation, **options)
    except (TypeError, ValueError) as error:
        raise FedgenError(f"{due}, and {name} cannot be called so: {error}") from None
    algorithm = builder(task, federation, **options)
    if not isinstance(algorithm, Algorithm):
        raise FedgenError(f"{due}, and {name} returned an object of type {type(algorithm).__name__}")
    return algorithm
