"""From a configuration to what the engine takes: the task, the data on the devices, each seed's division."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build, options_of
from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Array, Federation, Model, Task
from fedgen.data.dataset import Dataset
from fedgen.data.federated import Division, divide
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.simulate.engine import Data, Inputs, Program, place


@dataclass(frozen=True)
class Setup:
    """A run, ready to be compiled."""

    config: RunConfig
    task: Task
    federation: Federation
    data: Data
    divisions: Mapping[int, Division]  # by seed
    score_rows: Mapping[int, np.ndarray]  # by seed: the rows that are evaluated

    def inputs(self, algorithm: str, seeds: Sequence[int]) -> Inputs:
        """The arguments of these runs, stacked."""
        traced, _ = self._options(algorithm)

        def stacked(arrays: Sequence[np.ndarray]) -> Array:
            return jnp.asarray(np.stack(arrays))

        chosen = [self.divisions[seed] for seed in seeds]
        return place(
            Inputs(
                jnp.stack([jax.random.key(seed) for seed in seeds]),
                stacked([d.index for d in chosen]),
                stacked([d.offset for d in chosen]),
                stacked([d.size for d in chosen]),
                stacked([d.proxy for d in chosen]),
                stacked([self.score_rows[seed] for seed in seeds]),
                {key: jnp.full(len(seeds), value, jnp.float32) for key, value in traced.items()},
            )
        )

    def program(self, algorithm: str, inputs: Inputs, batched: bool) -> Program:
        """The compiled algorithm."""
        _, fixed = self._options(algorithm)

        def configure(hyper: Mapping[str, Any]) -> tuple[Algorithm, Federation]:
            return build(ALGORITHMS[algorithm], self.task, self.federation, {**fixed, **hyper})

        return Program(
            configure,
            self.task,
            self.config.active,
            self.data,
            inputs,
            score_users=min(self.config.users, self.config.score_users),
            batched=batched,
        )

    def totals(self, seed: int) -> np.ndarray:
        """How many evaluated samples each class has."""
        labels = np.asarray(self.data.y_score)[self.score_rows[seed]]
        return np.bincount(labels, minlength=self.task.classes)

    def check(self) -> None:
        """Raise now what building an algorithm would raise later."""
        try:
            self.task.latent_size()
        except (TypeError, ValueError) as error:
            raise FedgenError(f"the model does not take samples of shape {self.task.sample.shape}: {error}") from error
        for algorithm in self.config.algorithms:
            build(ALGORITHMS[algorithm], self.task, self.federation, self.config.of(algorithm))

    def _options(self, algorithm: str) -> tuple[dict[str, float], dict[str, Any]]:
        """The hyper-parameters that are arguments of the compiled program, and those fixed in it.

        Floats are arguments, so that other values need no new compilation; but a 0 switches a term off
        and stays a constant, so that what is off costs nothing.
        """
        rates = {key: getattr(self.federation, key) for key in ("lr", "lr_decay", "weight_decay")}
        options = {**rates, **self.config.of(algorithm)}
        traced = {k: v for k, v in options.items() if isinstance(v, float) and v != 0}
        return traced, {k: v for k, v in options.items() if k not in traced}


def prepare(config: RunConfig, dataset: Dataset | None = None, model: Model | None = None) -> Setup:
    """Load and divide the data; `dataset` and `model` replace those that the configuration names."""
    dataset = dataset or DATASETS[config.dataset]()
    partitioner = PARTITIONERS[config.partition]
    options = dict(config.of("partition"))
    if "alpha" in options_of(partitioner):
        options["alpha"] = config.alpha
    holds_out = config.evaluate_on == "validation"
    divisions = {
        seed: divide(
            dataset,
            partitioner,
            config.users,
            seed,
            train_fraction=config.train_fraction,
            class_limit=config.class_limit,
            validation=config.validation if holds_out else 0,
            **options,
        )
        for seed in config.run_seeds
    }
    sample = dataset.x_train.shape[1:]
    model = model or MODELS[config.model](sample, dataset.classes, **config.of("model"))
    task = Task(
        model,
        dataset.classes,
        jax.ShapeDtypeStruct(sample, dataset.x_train.dtype),
        normalise,
        proxy_samples=len(divisions[config.seed].proxy),
    )
    federation = Federation(
        config.users,
        config.local_steps,
        config.batch_size,
        config.share,
        config.lr,
        config.lr_decay,
        config.weight_decay,
        config.weighting,
        config.statistics,
    )
    x, y = place(dataset.x_train), place(dataset.y_train)
    scored = (x, y) if holds_out else (place(dataset.x_test), place(dataset.y_test))
    everything = np.arange(len(dataset.y_test), dtype=np.int32)
    rows = {seed: d.validation if holds_out else everything for seed, d in divisions.items()}
    setup = Setup(config, task, federation, Data(x, y, *scored), divisions, rows)
    setup.check()
    return setup


def normalise(x: Array) -> Array:
    """Stored bytes as (x/255 - 0.5) / 0.5; other numbers as they are."""
    return (x.astype(jnp.float32) / 255 - 0.5) / 0.5 if x.dtype == jnp.uint8 else x.astype(jnp.float32)
