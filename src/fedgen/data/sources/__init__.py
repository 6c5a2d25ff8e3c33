"""Where datasets come from: one small file for each source."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset, numbered
from fedgen.data.download import Offer, by_hand
from fedgen.data.locate import MissingFileError, data_folder
from fedgen.data.sources.celeba import OFFER as CELEBA
from fedgen.data.sources.celeba import celeba
from fedgen.data.sources.cifar10 import OFFER as CIFAR10
from fedgen.data.sources.cifar10 import cifar10
from fedgen.data.sources.emnist import OFFER as EMNIST
from fedgen.data.sources.emnist import emnist
from fedgen.data.sources.fashion_mnist import OFFER as FASHION_MNIST
from fedgen.data.sources.fashion_mnist import fashion_mnist
from fedgen.data.sources.mnist import mnist
from fedgen.data.sources.own import own
from fedgen.errors import FedgenError, unknown

# name -> loader(folder of its files, *, options); the first docstring line is what `fedgen list` shows
DATASETS: dict[str, Callable[..., Dataset]] = {
    "mnist": mnist,
    "emnist": emnist,
    "celeba": celeba,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
}

# What `fedgen data download` can fetch; a dataset that is not here is shipped with the package.
OFFERS: dict[str, Offer] = {
    "emnist": EMNIST,
    "celeba": CELEBA,
    "fashion-mnist": FASHION_MNIST,
    "cifar10": CIFAR10,
}


def loader_of(name: str) -> Callable[..., Dataset]:
    """The loader of a dataset by its name, or of one's own data by its path."""
    if name in DATASETS:
        return DATASETS[name]
    if own_path(name) is not None:
        return own
    raise unknown("dataset", name, DATASETS)


def own_path(name: str) -> Path | None:
    """The path that a dataset's name is, or None: a name with a separator, one of a file, or of what is there."""
    if not name.strip():
        return None
    path = Path(name).expanduser()
    is_path = len(path.parts) > 1 or path.suffix == ".npz" or path.exists()
    return path.resolve() if name not in DATASETS and is_path else None


def load(name: str, *, data_dir: str = "", user_file: str = "", **options: Any) -> Dataset:
    """A dataset by its name or path; `user_file` says the natural user of each training sample."""
    loader = loader_of(name)
    if name in DATASETS and name not in OFFERS:
        dataset = loader(**options)
    elif (path := own_path(name)) is not None:
        dataset = loader(path, **options)
    else:
        folder = data_folder(name, data_dir)
        try:
            dataset = loader(folder, **options)
        except MissingFileError as error:
            raise FedgenError(
                f"{error}; 'fedgen data download {name}' fetches the dataset, or {by_hand(OFFERS[name], folder)};"
                " files elsewhere are found with --data-dir"
            ) from error
    if not user_file:
        return dataset
    users = numbered(_read_users(Path(user_file)), len(dataset.y_train), user_file)
    return replace(dataset, user_train=users, group=1)


def _read_users(path: Path) -> NDArray[Any]:
    """A column of users: an .npy file, or a text file with one on each line."""
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.array(path.read_text(encoding="utf-8").split())
    except (OSError, ValueError, EOFError) as error:
        raise FedgenError(f"user file {path} cannot be read: {error}") from error
