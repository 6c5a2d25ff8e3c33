"""The user's own data as it lies: arrays, tables, idx files, image folders, and what Hugging Face's library saves."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.core.contract import Count
from fedgen.data.dataset import Channels, Dataset, Scale, from_arrays
from fedgen.data.idx import is_idx, read_idx_parts
from fedgen.data.image_folders import has_images, read_image_folders
from fedgen.data.labels import labels_of, number_words
from fedgen.data.npz import read_npz
from fedgen.data.parts import Parts
from fedgen.data.table_parts import TABLES, has_tables, read_table_file, read_table_folder
from fedgen.data.tables import Columns, dropped
from fedgen.errors import FedgenError

_TRAIN, _TEST = ("x_train", "y_train"), ("x_test", "y_test")
ENDINGS = (".npz", *TABLES)  # of files that are data


@dataclass(frozen=True)
class Reading:
    """The settings of a run that say how one's own files are read."""

    label: str = "label"
    user: str = ""
    channels: Channels = "auto"
    max_value: int = 0


def own(
    path: Path,
    reading: Reading = Reading(),
    *,
    size: Count | None = None,
    scale: Scale = "signed",
    drop: str | None = None,
) -> Dataset:
    """One's own data: an .npz file, a table (CSV, Parquet), a folder of these, of idx files, or of images by class.

    `size` is the side to which images of different size are resized, `scale` how whole numbers of 8 or 16 bits become
    inputs (signed: -1 to 1, unit: 0 to 1), and `drop` names columns of a table to leave out, separated by commas.
    """
    parts = read_parts(path, reading, size=size, drop=drop)
    dataset = from_arrays(
        *parts[:4], name=str(path), user_train=parts.users, scale=scale, channels=reading.channels,
        max_value=reading.max_value, class_names=parts.class_names, notes=parts.notes,
    )  # fmt: skip
    present = np.unique(dataset.y_train)
    if len(present) < dataset.classes:
        empty = np.setdiff1d(np.arange(dataset.classes), present)[0]
        if parts.class_names:
            raise FedgenError(f"{path}: class '{parts.class_names[empty]}' has no training samples, only others")
        raise FedgenError(
            f"{path}: label {empty} has no training samples; labels must be 0 to {dataset.classes - 1} without gaps"
        )
    return replace(dataset, features=parts.features)


def read_parts(
    path: Path, reading: Reading, *, size: int | None = None, drop: str | None = None, whole: bool = True
) -> Parts:
    """What is at the path; not a `whole` dataset but a site's may lack test samples, and have a single class."""
    if not path.exists():
        raise FedgenError(f"dataset {path} does not exist; give a dataset's name, a file ({_named()}) or a folder")
    columns = Columns(reading.label, reading.user, dropped(drop))
    if path.is_file():
        if path.suffix.lower() in TABLES:
            return read_table_file(path, columns, size, whole=whole)
        if path.suffix != ".npz":
            raise FedgenError(f"dataset {path} is neither a folder nor a file of data ({_named()})")
        return _without_columns(path, columns, lambda: _read_npz(path, whole))
    if has_tables(path) and not has_images(path):
        return read_table_folder(path, columns, size, whole=whole)
    if is_idx(path):
        return _without_columns(path, columns, lambda: read_idx_parts(path))
    return _without_columns(path, columns, lambda: read_image_folders(path, size, whole=whole))


def _named() -> str:
    return ", ".join(ENDINGS)


def _without_columns(path: Path, columns: Columns, read: Callable[[], Parts]) -> Parts:
    """What is read, where nobody speaks of columns: only tables have some."""
    asked = {"label": columns.label != Columns.label, "user": bool(columns.user), "dataset.drop": bool(columns.drop)}
    for name, given in asked.items():
        if given:
            raise FedgenError(f"{name} names a column of a table, and {path} is none; leave it out")
    return read()


def _read_npz(path: Path, whole: bool) -> Parts:
    required, others = ((*_TRAIN, *_TEST), ()) if whole else (_TRAIN, _TEST)
    arrays: dict[str, Any] = read_npz(path, required, (*others, "user_train", "class_names"))
    x, y = (arrays[name] for name in _TRAIN)
    x_test, y_test = arrays.get("x_test", x[:0]), arrays.get("y_test", y[:0])
    y, y_test = labels_of(y), labels_of(y_test)
    names = tuple(map(str, np.atleast_1d(arrays["class_names"]).tolist())) if "class_names" in arrays else ()
    if "U" in (y.dtype.kind, y_test.dtype.kind):
        (y, y_test), names = number_words([y, y_test], str(path))
    return Parts(x, y, x_test, y_test, arrays.get("user_train"), names)
