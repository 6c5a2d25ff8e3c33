"""What a simulation holds: one copy of the data, and index arrays that say whose is what."""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset
from fedgen.data.partition import Partitioner
from fedgen.errors import FedgenError


@dataclass(frozen=True)
class Division:
    """How one seed divides the training samples: user k holds `index[offset[k] : offset[k] + size[k]]`."""

    index: NDArray[np.int32]  # rows of the training set, all users in turn
    offset: NDArray[np.int32]  # [user]
    size: NDArray[np.int32]  # [user]
    labels: NDArray[np.int64]  # [user, label] how many samples of each label
    proxy: NDArray[np.int32]  # rows that no user holds, but for the validation rows
    validation: NDArray[np.int32]  # rows held out to choose hyper-parameters on


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A NumPy generator of its own for each purpose."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode())])


def divide(
    dataset: Dataset,
    partitioner: Partitioner,
    users: int,
    seed: int,
    *,
    train_fraction: float,
    class_limit: bool,
    validation: int,
    **options: Any,
) -> Division:
    """Choose the part of the training set that the users get, and give it to them."""
    taken = _choose(dataset, users, seed, train_fraction, class_limit)
    shares = partitioner(dataset.y_train[taken], users, generator(seed, "partition"), **options)
    rest = generator(seed, "rest").permutation(np.setdiff1d(np.arange(len(dataset.y_train)), taken))
    if validation > len(rest):
        raise FedgenError(
            f"a validation set of {validation} needs as many training samples that no user holds,"
            f" and there are {len(rest)}; lower train_fraction or validation"
        )
    sizes = np.array([len(share) for share in shares])
    index = taken[np.concatenate(shares)]
    labels = np.zeros((users, dataset.classes), np.int64)
    np.add.at(labels, (np.repeat(np.arange(users), sizes), dataset.y_train[index]), 1)
    return Division(
        index.astype(np.int32),
        (np.cumsum(sizes) - sizes).astype(np.int32),
        sizes.astype(np.int32),
        labels,
        rest[validation:].astype(np.int32),
        rest[:validation].astype(np.int32),
    )


def _choose(dataset: Dataset, users: int, seed: int, fraction: float, class_limit: bool) -> NDArray[np.int64]:
    """The same fraction of each class, at random.

    `class_limit` is a habit of the authors' code: at most a K-th of the chosen total in each class, which
    halves MNIST's share to 25 % for 20 users.
    """
    rng = generator(seed, "choose")
    limit = int(fraction * len(dataset.y_train)) // users if class_limit else len(dataset.y_train)
    chosen = []
    for label in np.unique(dataset.y_train):
        rows = np.flatnonzero(dataset.y_train == label)
        chosen.append(rng.permutation(rows)[: min(round(fraction * len(rows)), limit)])
    return np.sort(np.concatenate(chosen))
