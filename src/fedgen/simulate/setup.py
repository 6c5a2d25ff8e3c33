"""From a configuration to what the engine takes: the task, the data on the devices, each seed's division."""

import json
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
from fedgen.privacy import guarantee
from fedgen.simulate.engine import Data, Inputs, Program
from fedgen.simulate.spread import place, place_samples
from fedgen.task import federation_of, task_of


@dataclass(frozen=True)
class Setup:
    """A run, ready to be compiled."""

    config: RunConfig
    task: Task
    federation: Federation
    data: Data
    divisions: Mapping[int, Division]  # by seed
    score_rows: Mapping[int, np.ndarray]  # by seed: the rows that are evaluated

    @property
    def rows_held(self) -> int:
        """The most rows that the users hold together in any seed."""
        return max(len(d.index) for d in self.divisions.values())

    def inputs(self, algorithm: str, seeds: Sequence[int], width: int | None = None) -> Inputs:
        """The arguments of these runs, stacked; with `width` at least that many rows."""
        traced, _ = options_for(self.config, algorithm)

        # Natural users' samples differ in number between seeds; what fills up is never drawn.
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
                stacked([d.proxy for d in chosen]),
                stacked([self.score_rows[seed] for seed in seeds]),
                {key: jnp.full(len(seeds), value, jnp.float32) for key, value in traced.items()},
            )
        )

    def program(self, algorithm: str, inputs: Inputs, batched: bool, at_once: int | None = None) -> Program:
        """The compiled algorithm."""
        _, fixed = options_for(self.config, algorithm)

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
            at_once=at_once,
        )

    def totals(self, seed: int) -> np.ndarray:
        """How many evaluated samples each class has."""
        labels = np.asarray(self.data.y_score)[self.score_rows[seed]]
        return np.bincount(labels, minlength=self.task.classes)

    def check(self) -> None:
        """Raise now what building an algorithm would raise later."""
        guarantee(self.config, 1)  # whether there is an accountant, where one is needed
        try:
            self.task.latent_size()
        except (TypeError, ValueError) as error:
            raise FedgenError(f"the model does not take samples of shape {self.task.sample.shape}: {error}") from error
        for algorithm in self.config.algorithms:
            build(ALGORITHMS[algorithm], self.task, self.federation, self.config.of(algorithm))


def options_for(config: RunConfig, algorithm: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The hyper-parameters that are arguments of the compiled program, and those fixed in it.

    Floats are arguments, so that other values need no new compilation; but a 0 switches a term off
    and stays a constant, so that what is off costs nothing.
    """
    rates = {key: getattr(config, key) for key in ("lr", "lr_decay", "weight_decay")}
    options = {**rates, **config.of(algorithm)}
    traced = {k: v for k, v in options.items() if isinstance(v, float) and v != 0}
    return traced, {k: v for k, v in options.items() if k not in traced}


# What a compiled program does not depend on; the rates are among the hyper-parameters.
_NOT_COMPILED = {"preset", "seed", "seeds", "alpha", "score", "lr", "lr_decay", "weight_decay", "options"}


def same_program(config: RunConfig) -> str:
    """Equal for configurations that one compiled program (of each algorithm) serves."""
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
        setup = Setup(config, task, federation_of(config), data, divisions, rows)
        setup.check()
        setups.append(setup)
    for config, divisions in zip(configs, made, strict=True):
        keep_partition(config, dataset, divisions)
    return tuple(setups)


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
