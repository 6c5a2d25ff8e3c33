"""Where datasets come from: one small file for each source."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset, numbered
from fedgen.data.download import Offer, by_hand
from fedgen.data.locate import MissingFileError, data_folder
from fedgen.errors import FedgenError
from fedgen.registry import Registry, is_address, options_of

if TYPE_CHECKING:
    from fedgen.data.sources.own import Reading

_ENDINGS = (".npz", ".csv", ".tsv", ".parquet", ".arrow")  # of files, whether or not they exist

# name -> loader; the first docstring line is what `fedgen list` shows. What is fetched takes (the folder of its files,
# *, options); all others, plug-ins among them, take (*, options), and the setting data_dir where they have an option
# of that name.
DATASETS: Registry[Callable[..., Dataset]] = Registry(
    "dataset",
    {
        "mnist": "fedgen.data.sources.mnist:mnist",
        "emnist": "fedgen.data.sources.emnist:emnist",
        "celeba": "fedgen.data.sources.celeba:celeba",
        "fashion-mnist": "fedgen.data.sources.fashion_mnist:fashion_mnist",
        "cifar10": "fedgen.data.sources.cifar10:cifar10",
    },
    group="fedgen.datasets",
)

# What `fedgen data download` can fetch; a dataset that is not here is shipped with its package.
OFFERS: Registry[Offer] = Registry(
    "download",
    {
        "emnist": "fedgen.data.sources.emnist:OFFER",
        "celeba": "fedgen.data.sources.celeba:OFFER",
        "fashion-mnist": "fedgen.data.sources.fashion_mnist:OFFER",
        "cifar10": "fedgen.data.sources.cifar10:OFFER",
    },
    addresses=False,
)


def loader_of(name: str) -> Callable[..., Dataset]:
    """The loader of a dataset by its name, or of the user's own data by its path."""
    if own_path(name) is None:
        return DATASETS.find(name)
    from fedgen.data.sources.own import own

    return own


def own_path(name: str) -> Path | None:
    """The path of a dataset that is named by a path: one with a separator, of a file, or that exists. Else None."""
    if not name.strip():
        return None
    path = Path(name).expanduser()
    if name in DATASETS and not (is_address(name) and path.exists()):
        return None
    return path.resolve() if len(path.parts) > 1 or path.suffix in _ENDINGS or path.exists() else None


def load(
    name: str, *, data_dir: str = "", user_file: str = "", reading: "Reading | None" = None, **options: Any
) -> Dataset:
    """A dataset by its name or path; `user_file` says the natural user of each training sample.

    `reading` says how one's own files are read, and counts with a path only.
    """
    loader = loader_of(name)
    if (path := own_path(name)) is not None:
        dataset = loader(path, *([reading] if reading else []), **options)
    elif name in OFFERS:
        folder = data_folder(name, data_dir)
        try:
            dataset = loader(folder, **options)
        except MissingFileError as error:
            raise FedgenError(
                f"{error}; 'fedgen data download {name}' fetches the dataset, or {by_hand(OFFERS[name], folder)};"
                " files elsewhere are found with --data-dir"
            ) from error
    else:
        place = {"data_dir": data_dir} if "data_dir" in options_of(loader) else {}
        dataset = loader(**place, **options)
    if not isinstance(dataset, Dataset):
        raise FedgenError(f"dataset '{name}' gives a {type(dataset).__name__}; its function must give a fedgen.Dataset")
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
