"""The data of a simulation: one copy of the samples, and index arrays of each user's rows."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset
from fedgen.data.partition import Partitioner
from fedgen.data.partition.feature_noise import feature_noise, noise_levels
from fedgen.data.partition.natural import natural
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
    noise: NDArray[np.float64] | None = None  # [user] the standard deviation of what is added to its samples


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A separate NumPy generator for each purpose."""
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
    proxy_limit: int | None = None,
    **options: Any,
) -> Division:
    """Choose the part of the training set that the users get, and give it to them."""
    taken = _choose(dataset, users, seed, train_fraction, class_limit)
    owners = []
    if partitioner is natural:
        if dataset.user_train is None:
            raise FedgenError(
                f"dataset {dataset.name} has no natural users; give each training sample's user with"
                " --user-file FILE (of a table: --user COLUMN), or choose another partition"
            )
        owners = [dataset.user_train[taken]]
        options.setdefault("group", dataset.group)
    shares = partitioner(dataset.y_train[taken], users, generator(seed, "partition"), *owners, **options)
    sizes = np.array([len(share) for share in shares])
    return assemble(dataset, taken[np.concatenate(shares)], sizes, seed, validation=validation, proxy_limit=proxy_limit)


def with_skew(dataset: Dataset, division: Division, partitioner: Partitioner, options: Mapping[str, Any]) -> Division:
    """The division with what its scheme needs besides rows: users' noise, or proxy data of a fixed size."""
    if partitioner is feature_noise:
        if dataset.x_train.dtype == np.int32:
            raise FedgenError(
                f"{dataset.name} has whole numbers as samples, to which partition feature-noise cannot add noise; give"
                " measurements as float32"
            )
        return replace(division, noise=noise_levels(len(division.size), **options))
    if partitioner is natural and len(division.proxy):
        # How much is left differs between seeds, but runs of one program must have the same shape.
        return replace(division, proxy=np.resize(division.proxy, len(dataset.y_train)))
    return division


def assemble(
    dataset: Dataset,
    index: NDArray[np.int64],
    sizes: NDArray[np.int64],
    seed: int,
    *,
    validation: int,
    proxy_limit: int | None = None,
) -> Division:
    """The division in which the users hold these rows, so many each, and the server what is left."""
    rest = generator(seed, "rest").permutation(np.setdiff1d(np.arange(len(dataset.y_train)), index))
    if validation > len(rest):
        raise FedgenError(
            f"a validation set of {validation} needs as many training samples that no user holds,"
            f" and there are {len(rest)}; lower train_fraction or validation"
        )
    users = len(sizes)
    labels = np.zeros((users, dataset.classes), np.int64)
    np.add.at(labels, (np.repeat(np.arange(users), sizes), dataset.y_train[index]), 1)
    return Division(
        index.astype(np.int32),
        (np.cumsum(sizes) - sizes).astype(np.int32),
        sizes.astype(np.int32),
        labels,
        rest[validation:][:proxy_limit].astype(np.int32),
        rest[:validation].astype(np.int32),
    )


def gather(
    dataset: Dataset, divisions: Mapping[tuple[int, int], Division]
) -> tuple[NDArray[Any], NDArray[np.int32], dict[tuple[int, int], Division]]:
    """The training samples and labels that the divisions need, and the divisions in terms of these.

    Divisions are by number of the configuration and seed.

    Samples in memory are given as they are. Of memory-mapped ones only the rows in use are read. Where users
    have noise on their samples it is added here, once for each seed: a sample belongs to one user at most.
    """
    x, y = dataset.x_train, dataset.y_train
    noisy = any(division.noise is not None for division in divisions.values())
    if not noisy and not isinstance(x, np.memmap):
        return x, y, dict(divisions)
    groups = [[key] for key in divisions] if noisy else [list(divisions)]
    rows_of = [_rows([divisions[key] for key in keys]) for keys in groups]
    samples, renumbered, start = [], {}, 0
    for keys, rows in zip(groups, rows_of, strict=True):
        part = np.asarray(x[rows])
        for key in keys:
            division = _renumbered(divisions[key], rows)
            if division.noise is not None:
                part = _with_noise(part, division, generator(key[1], "feature-noise"), dataset.max_value)
            renumbered[key] = _shifted(division, start)
        samples.append(part)
        start += len(rows)
    return np.concatenate(samples), y[np.concatenate(rows_of)], renumbered


def _rows(divisions: Sequence[Division]) -> NDArray[np.int32]:
    return np.unique(np.concatenate([part for d in divisions for part in (d.index, d.proxy, d.validation)]))


def _renumbered(division: Division, rows: NDArray[np.int32]) -> Division:
    return _mapped(division, lambda part: np.searchsorted(rows, part).astype(np.int32))


def _shifted(division: Division, start: int) -> Division:
    return _mapped(division, lambda part: part + np.int32(start))


def _mapped(division: Division, f: Callable[[NDArray[np.int32]], NDArray[np.int32]]) -> Division:
    return replace(division, index=f(division.index), proxy=f(division.proxy), validation=f(division.validation))


def _with_noise(x: NDArray[Any], division: Division, rng: np.random.Generator, white: int) -> NDArray[Any]:
    """A copy of the samples with each user's noise on its own; bytes stay bytes, rounded and cut off at white."""
    assert division.noise is not None
    noisy = x.copy()
    for level, offset, size in zip(division.noise, division.offset, division.size, strict=True):
        rows = division.index[offset : offset + size]
        added = rng.normal(0, level, x[rows].shape)
        if x.dtype.kind == "u":
            noisy[rows] = np.clip(np.rint(x[rows] + white * added), 0, white)
        else:
            noisy[rows] = x[rows] + added
    return noisy


def _choose(dataset: Dataset, users: int, seed: int, fraction: float, class_limit: bool) -> NDArray[np.int64]:
    """The same fraction of each class, at random.

    `class_limit` is a habit of the authors' code: at most a K-th of the chosen total in each class, which
    halves MNIST's share to 25 % for 20 users.
    """
    rng = generator(seed, "choose")
    chosen = []
    for label, number in _numbers(dataset, users, fraction, class_limit).items():
        chosen.append(rng.permutation(np.flatnonzero(dataset.y_train == label))[:number])
    return np.sort(np.concatenate(chosen))


def left_over(dataset: Dataset, users: int, *, train_fraction: float, class_limit: bool) -> int:
    """How many training samples are not chosen for the users, the same with every seed."""
    return len(dataset.y_train) - sum(_numbers(dataset, users, train_fraction, class_limit).values())


def _numbers(dataset: Dataset, users: int, fraction: float, class_limit: bool) -> dict[int, int]:
    """How many samples of each class are chosen."""
    limit = int(fraction * len(dataset.y_train)) // users if class_limit else len(dataset.y_train)
    labels, counts = np.unique(dataset.y_train, return_counts=True)
    return {
        int(label): min(max(round(fraction * int(count)), 1), limit)
        for label, count in zip(labels, counts, strict=True)
    }
