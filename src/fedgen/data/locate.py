"""Where a dataset's files are searched, and the error when they are missing."""

import os
from pathlib import Path

from fedgen.errors import FedgenError
from fedgen.files import cache_folder

# Folders that the official archives unpack into.
_INSIDE = (".", "gzip", "cifar-10-batches-bin")


class MissingFileError(FedgenError):
    """A file that a dataset needs is not there."""


def data_folder(name: str, data_dir: str = "") -> Path:
    """The folder of a dataset's files: in `data_dir`, else in $FEDGEN_DATA, else in the user's cache.

    Files may lie in that folder itself or in a folder of the dataset's name within it.
    """
    own = download_folder(name, data_dir)
    if own.is_dir() or not _given(data_dir):
        return own
    if not own.parent.is_dir():
        raise FedgenError(f"the data folder {own.parent} does not exist")
    return own.parent


def download_folder(name: str, data_dir: str = "") -> Path:
    """Where a download of the dataset goes."""
    given = _given(data_dir)
    return (Path(given).expanduser() if given else cache_folder() / "data") / name


def _given(data_dir: str) -> str:
    return data_dir or os.environ.get("FEDGEN_DATA", "")


def find(folder: Path, name: str) -> Path:
    """The file of this name, plain or gzipped, in a folder or in the one that its archive unpacks into."""
    for inside in _INSIDE:
        for path in (folder / inside / name, folder / inside / f"{name}.gz"):
            if path.is_file():
                return path
    raise MissingFileError(f"{folder / name} is not there")
