"""A configuration's dataset, and how it is divided among the users."""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.config import READING, RunConfig
from fedgen.data.dataset import Dataset
from fedgen.data.federated import Division, assemble, divide, left_over, with_skew
from fedgen.data.partition import PARTITIONERS
from fedgen.data.partition_file import read_partition, write_partition
from fedgen.data.sources import load
from fedgen.data.sources.own import Reading
from fedgen.errors import FedgenError
from fedgen.registry import options_of

MOST_HELD_OUT = 5000  # where the configuration does not say how many


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
    reading = Reading(**{key: getattr(config, key) for key in READING})
    return load(
        config.dataset, data_dir=config.data_dir, user_file=config.user_file, reading=reading, **config.of("dataset")
    )


def check_finite(name: str, *samples: NDArray[Any]) -> None:
    """Refuse samples that no network can learn from."""
    for x in samples:
        if np.issubdtype(x.dtype, np.floating) and not np.isfinite(x).all():
            raise FedgenError(f"{name} has samples that are NaN or infinite; leave them out")


def _held_out(config: RunConfig, dataset: Dataset) -> int:
    """How many samples are held out: as many as the configuration says, or, with 0, those that are not the users'."""
    if config.evaluate_on != "validation":
        return 0
    if config.validation:
        return config.validation
    left = left_over(dataset, config.users, train_fraction=config.train_fraction, class_limit=config.class_limit)
    if not left:
        raise FedgenError(
            f"no training samples are left for validation with train_fraction {config.train_fraction:g}; lower it, or"
            " say with validation how many of those that no user holds are held out"
        )
    return min(left, MOST_HELD_OUT)


def divide_all(config: RunConfig, dataset: Dataset) -> dict[int, Division]:
    """Each seed's division: made as the configuration says, or read from its partition file where that exists."""
    partitioner = PARTITIONERS[config.partition]
    options = dict(config.of("partition"))
    if "alpha" in options_of(partitioner):
        options["alpha"] = config.alpha
    rest: dict[str, Any] = {"validation": _held_out(config, dataset), "proxy_limit": config.proxy_limit}
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
