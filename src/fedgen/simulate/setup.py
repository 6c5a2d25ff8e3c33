"""From a configuration to what the engine takes: the task, the data on the devices, each seed's division."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build, options_of
from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Array, Federation, Model, Task
from fedgen.data.dataset import Dataset
from fedgen.data.federated import Division, assemble, divide, gather, with_skew
from fedgen.data.partition import PARTITIONERS
from fedgen.data.partition_file import read_partition, write_partition
from fedgen.data.sources import load
from fedgen.errors import FedgenError
from fedgen.simulate.engine import Data, Inputs, Program, place
from fedgen.task import federation_of, hyper_parameters, task_of


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
        traced, _ = hyper_parameters(self.config, self.federation, algorithm)

        # Natural users' samples differ in number between seeds; what fills up is never drawn.
        width = max(len(d.index) for d in self.divisions.values())

        def stacked(arrays: Sequence[np.ndarray]) -> Array:
            return jnp.asarray(np.stack(arrays))

        chosen = [self.divisions[seed] for seed in seeds]
        return place(
            Inputs(
                jnp.stack([jax.random.key(seed) for seed in seeds]),
                stacked([np.pad(d.index, (0, width - len(d.index))) for d in chosen]),
                stacked([d.offset for d in chosen]),
                stacked([d.size for d in chosen]),
                stacked([d.proxy for d in chosen]),
                stacked([self.score_rows[seed] for seed in seeds]),
                {key: jnp.full(len(seeds), value, jnp.float32) for key, value in traced.items()},
            )
        )

    def program(self, algorithm: str, inputs: Inputs, batched: bool) -> Program:
        """The compiled algorithm."""
        _, fixed = hyper_parameters(self.config, self.federation, algorithm)

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


def prepare(config: RunConfig, dataset: Dataset | None = None, model: Model | None = None) -> Setup:
    """Load and divide the data; `dataset` and `model` replace those that the configuration names."""
    dataset = dataset or load_dataset(config)
    divisions = divide_all(config, dataset)
    task = task_of(config, model, dataset, proxy_samples=len(divisions[config.seed].proxy))
    federation = federation_of(config)
    holds_out = config.evaluate_on == "validation"
    whole = divisions
    x_train, y_train, divisions = gather(dataset, divisions)
    for samples in (x_train, dataset.x_test):
        if np.issubdtype(samples.dtype, np.floating) and not np.isfinite(samples).all():
            raise FedgenError(f"{dataset.name} has samples that are NaN or infinite; leave them out")
    x, y = place(x_train), place(y_train)
    scored = (x, y) if holds_out else (place(dataset.x_test), place(dataset.y_test))
    everything = np.arange(len(dataset.y_test), dtype=np.int32)
    rows = {seed: d.validation if holds_out else everything for seed, d in divisions.items()}
    setup = Setup(config, task, federation, Data(x, y, *scored), divisions, rows)
    setup.check()
    keep_partition(config, dataset, whole)
    return setup


def keep_partition(config: RunConfig, dataset: Dataset, divisions: Mapping[int, Division]) -> None:
    """Write the partition file that the configuration names, where there is none yet."""
    if config.partition_file and not Path(config.partition_file).exists():
        write_partition(Path(config.partition_file), dataset, divisions, _partition_settings(config, dataset))


def _partition_settings(config: RunConfig, dataset: Dataset) -> dict[str, Any]:
    """What a partition depends on, apart from the samples, the seed and the number of users."""
    settings = {
        "partition": config.partition,
        **config.of("partition"),
        "train_fraction": config.train_fraction,
        "class_limit": config.class_limit,
    }
    if "alpha" in options_of(PARTITIONERS[config.partition]):
        settings["alpha"] = config.alpha
    if config.partition == "natural" and dataset.user_train is not None:
        settings["natural_users"] = zlib.crc32(dataset.user_train.astype("<i8").tobytes())
    return settings


def load_dataset(config: RunConfig) -> Dataset:
    """The dataset that a configuration names."""
    return load(config.dataset, data_dir=config.data_dir, user_file=config.user_file, **config.of("dataset"))


def divide_all(config: RunConfig, dataset: Dataset) -> dict[int, Division]:
    """Each seed's division: made as the configuration says, or read from its partition file where that exists."""
    partitioner = PARTITIONERS[config.partition]
    options = dict(config.of("partition"))
    if "alpha" in options_of(partitioner):
        options["alpha"] = config.alpha
    held_out = config.validation if config.evaluate_on == "validation" else 0
    rest: dict[str, Any] = {"validation": held_out, "proxy_limit": config.proxy_limit}
    file = Path(config.partition_file) if config.partition_file else None
    if file is not None and file.exists():
        kept = read_partition(file, dataset, _partition_settings(config, dataset))
        for seed in config.run_seeds:
            if seed not in kept:
                raise FedgenError(f"partition file {file} has seeds {', '.join(map(str, kept))}, not {seed}")
            if len(kept[seed][1]) != config.users:
                raise FedgenError(f"partition file {file} is for {len(kept[seed][1])} users, not {config.users}")
        divisions = {seed: assemble(dataset, *kept[seed], seed, **rest) for seed in config.run_seeds}
    else:
        divisions = {
            seed: divide(
                dataset,
                partitioner,
                config.users,
                seed,
                train_fraction=config.train_fraction,
                class_limit=config.class_limit,
                **rest,
                **options,
            )
            for seed in config.run_seeds
        }
    return {seed: with_skew(dataset, division, partitioner, options) for seed, division in divisions.items()}
