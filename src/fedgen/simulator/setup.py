"""From a configuration to the engine's arguments: the task, the data on the devices, each seed's division."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import PER_ALGORITHM, RunConfig
from fedgen.core.contract import Algorithm, Array, Federation, Model, Task
from fedgen.data.dataset import DataForm, Dataset
from fedgen.data.federated import Division, gather
from fedgen.errors import FedgenError
from fedgen.runs.division import divide_all, keep_partition, load_dataset
from fedgen.runs.options import check_headline, options_for
from fedgen.runs.privacy import guarantee
from fedgen.runs.task import federation_of, task_of
from fedgen.simulator.engine import Data, Inputs, Program
from fedgen.simulator.sharding import place, place_samples


@dataclass(frozen=True)
class Setup:
    """A run, ready to be compiled."""

    config: RunConfig
    task: Task
    federation: Federation
    data: Data
    divisions: Mapping[int, Division]  # by seed
    score_rows: Mapping[int, np.ndarray]  # by seed: the rows that are evaluated
    form: DataForm  # how the samples are stored and scaled, and what their classes are called

    @property
    def rows_held(self) -> int:
        """The most rows that the users hold together in any seed."""
        return max(len(d.index) for d in self.divisions.values())

    def inputs(self, algorithm: str, seeds: Sequence[int], width: int | None = None) -> Inputs:
        """The arguments of these runs, stacked; with `width` at least that many rows."""
        traced, _ = options_for(self.config, algorithm)

        # Natural users' samples differ in number between seeds; the padding is never drawn.
        width = width or self.rows_held

        def stacked(arrays: Sequence[np.ndarray]) -> Array:
            return jnp.asarray(np.stack(arrays))

        chosen = [self.divisions[seed] for seed in seeds]
        return place(
            Inputs(
                jnp.stack([jax.random.key(seed) for seed in seeds]),
                stacked([np.pad(d.index, (0, width - len(d.index))) for d in chosen]),
                stacked([d.offset for d in chosen]),
                stacked([d.size for d in chosen]),
                stacked([d.labels.astype(np.int32) for d in chosen]),
                stacked([d.proxy for d in chosen]),
                stacked([self.score_rows[seed] for seed in seeds]),
                {key: jnp.full(len(seeds), value, jnp.float32) for key, value in traced.items()},
            )
        )

    @property
    def largest(self) -> int:
        """The most samples that a user holds in any seed."""
        return max(int(d.size.max()) for d in self.divisions.values())

    def program(
        self,
        algorithm: str,
        inputs: Inputs,
        batched: bool,
        at_once: int | None = None,
        largest: int | None = None,
    ) -> Program:
        """The compiled algorithm, for users with at most `largest` samples: by default those of this setup."""
        _, fixed = options_for(self.config, algorithm)

        def configure(hyper: Mapping[str, Any]) -> tuple[Algorithm, Federation]:
            return build(ALGORITHMS[algorithm], self.task, self.federation, {**fixed, **hyper})

        return Program(
            configure,
            self.task,
            self.config.active,
            self.data,
            inputs,
            largest=largest or self.largest,
            score_users=min(self.config.users, self.config.score_users),
            batched=batched,
            at_once=at_once,
        )

    def totals(self, seed: int) -> np.ndarray:
        """How many evaluated samples each class has."""
        labels = np.asarray(self.data.y_score)[self.score_rows[seed]]
        return np.bincount(labels, minlength=self.task.classes)

    def check(self) -> None:
        """Raise the errors of building the algorithms now rather than later."""
        guarantee(self.config, 1)  # whether there is an accountant, where one is needed
        try:
            self.task.latent_size()
        except (TypeError, ValueError) as error:
            raise FedgenError(f"the model does not take samples of shape {self.task.sample.shape}: {error}") from error
        for name in self.config.algorithms:
            algorithm, _ = build(ALGORITHMS[name], self.task, self.federation, self.config.of(name))
            check_headline(name, algorithm, self.config)


# Settings that a compiled program does not depend on, or that are among the options of each algorithm.
_NOT_COMPILED = {
    *("preset", "seed", "seeds", "alpha", "score", "headline", "patience", "keep_best", "options"),
    *PER_ALGORITHM,
}


def same_program(config: RunConfig) -> str:
    """Equal for configurations that can share one compiled program (of each algorithm)."""
    fixed = config.model_dump(exclude=_NOT_COMPILED)
    sections = {section: config.of(section) for section in ("dataset", "model", "partition")}
    hyper = {
        name: (sorted(options[0]), options[1]) for name in config.algorithms for options in [options_for(config, name)]
    }
    return json.dumps([fixed, sections, hyper], sort_keys=True)


def prepare(config: RunConfig, dataset: Dataset | None = None, model: Model | None = None) -> Setup:
    """Load and divide the data; `dataset` and `model` replace those that the configuration names."""
    (setup,) = prepare_together([config], dataset, model)
    return setup


def prepare_together(
    configs: Sequence[RunConfig], dataset: Dataset | None = None, model: Model | None = None
) -> tuple[Setup, ...]:
    """Setups of one dataset whose samples lie on the devices once."""
    dataset = dataset or load_dataset(configs[0])
    made = [divide_all(config, dataset) for config in configs]
    keyed = {(number, seed): d for number, divisions in enumerate(made) for seed, d in divisions.items()}
    x_train, y_train, gathered = gather(dataset, keyed)
    for samples in (x_train, dataset.x_test):
        if np.issubdtype(samples.dtype, np.floating) and not np.isfinite(samples).all():
            raise FedgenError(f"{dataset.name} has samples that are NaN or infinite; leave them out")
    x, y = place_samples(x_train), place(y_train)
    scored = {"validation": (x, y)}
    if any(config.evaluate_on == "test" for config in configs):
        scored["test"] = (place_samples(dataset.x_test), place(dataset.y_test))
    everything = np.arange(len(dataset.y_test), dtype=np.int32)
    setups = []
    for number, config in enumerate(configs):
        divisions = {seed: gathered[number, seed] for seed in config.run_seeds}
        task = task_of(config, model, dataset, proxy_samples=len(divisions[config.seed].proxy))
        rows = {s: d.validation if config.evaluate_on == "validation" else everything for s, d in divisions.items()}
        data = Data(x, y, *scored[config.evaluate_on])
        setup = Setup(config, task, federation_of(config), data, divisions, rows, dataset.form)
        setup.check()
        setups.append(setup)
    for config, divisions in zip(configs, made, strict=True):
        keep_partition(config, dataset, divisions)
    return tuple(setups)
