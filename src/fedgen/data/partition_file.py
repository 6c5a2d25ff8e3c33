"""A partition as a file: the rows of each user, and a checksum of the data they belong to."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset
from fedgen.data.federated import Division
from fedgen.data.npz import read_npz
from fedgen.errors import FedgenError
from fedgen.files import replacing

FORMAT = "fedgen-partition-1"
_CHUNK = 4096  # samples hashed at a time, so that a memory-mapped dataset stays on disk

Rows = dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]  # by seed: all users' rows in turn, [user] how many


def checksum(dataset: Dataset) -> str:
    """The SHA-256 of a dataset's training samples and labels."""
    x, y = dataset.x_train, dataset.y_train
    digest = hashlib.sha256(f"{x.shape} {x.dtype}".encode())
    digest.update(y.astype("<i4").tobytes())
    for start in range(0, len(x), _CHUNK):
        digest.update(np.ascontiguousarray(x[start : start + _CHUNK]).tobytes())
    return digest.hexdigest()


def write_partition(
    path: Path, dataset: Dataset, divisions: Mapping[int, Division], settings: Mapping[str, Any]
) -> None:
    """Write each seed's partition as JSON or npz, by the file's ending."""
    about = {"format": FORMAT, "dataset": dataset.name, "checksum": checksum(dataset), "settings": dict(settings)}
    with replacing(path) as temporary:
        if _is_json(path):
            seeds = {
                str(seed): [d.index[o : o + s].tolist() for o, s in zip(d.offset, d.size, strict=True)]
                for seed, d in divisions.items()
            }
            temporary.write_text(json.dumps({**about, "seeds": seeds}), encoding="utf-8")
            return
        arrays: dict[str, Any] = {"about": np.array(json.dumps(about)), "seeds": np.array(list(divisions), np.int64)}
        for seed, d in divisions.items():
            arrays |= {f"index_{seed}": d.index, f"size_{seed}": d.size}
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)


def read_partition(path: Path, dataset: Dataset, settings: Mapping[str, Any]) -> Rows:
    """The partitions in a file, which must be of this dataset and made with these settings (where it names any)."""
    about, rows = _read_json(path) if _is_json(path) else _read_npz(path)
    if about.get("format") != FORMAT:
        raise FedgenError(f"{path} is not a partition file: its format is {about.get('format')!r}, not {FORMAT!r}")
    if about.get("checksum") != checksum(dataset):
        raise FedgenError(
            f"partition file {path} is of other data ('{about.get('dataset')}', by its checksum) than {dataset.name};"
            " use the data it was made for, or another file"
        )
    made = about.get("settings", {})
    for key, value in made.items() if isinstance(made, dict) else ():
        if settings.get(key) != value:
            raise FedgenError(
                f"partition file {path} was made with {key}={value}, not {settings.get(key)}; set the same"
            )
    for seed, (index, sizes) in rows.items():
        _check(path, seed, index, sizes, len(dataset.y_train))
    return rows


def _is_json(path: Path) -> bool:
    if path.suffix not in (".json", ".npz"):
        raise FedgenError(f"partition file {path} must end in .json or .npz")
    return path.suffix == ".json"


def _read_json(path: Path) -> tuple[dict[str, Any], Rows]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users = {int(seed): [_whole_rows(user) for user in shares] for seed, shares in content["seeds"].items()}
        rows = {
            seed: (np.concatenate(shares), np.array([len(share) for share in shares])) for seed, shares in users.items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise FedgenError(f"{path} cannot be read as a partition file: {error}") from error
    return content, rows


def _whole_rows(user: list[Any]) -> NDArray[np.int64]:
    if not all(type(row) is int for row in user):
        raise ValueError("a row is not a whole number")
    return np.array(user, np.int64)


def _read_npz(path: Path) -> tuple[dict[str, Any], Rows]:
    arrays = read_npz(path, ("about", "seeds"))
    try:
        about = json.loads(str(arrays["about"]))
        seeds = [int(seed) for seed in arrays["seeds"]]
        if not isinstance(about, dict):
            raise ValueError("its description is not a table")
    except (ValueError, TypeError, RecursionError) as error:
        raise FedgenError(f"{path} cannot be read as a partition file: {error}") from error
    rows = read_npz(path, [f"{part}_{seed}" for seed in seeds for part in ("index", "size")])
    return about, {seed: (rows[f"index_{seed}"], rows[f"size_{seed}"]) for seed in seeds}


def _check(path: Path, seed: int, index: NDArray[Any], sizes: NDArray[Any], samples: int) -> None:
    whole = index.dtype.kind in "iu" and sizes.dtype.kind in "iu" and index.ndim == sizes.ndim == 1
    if not whole or not len(sizes) or sizes.min() < 1 or sizes.sum() != len(index):
        raise FedgenError(f"partition file {path}: seed {seed} does not give each user a list of one row or more")
    if index.min() < 0 or index.max() >= samples:
        raise FedgenError(f"partition file {path}: seed {seed} has rows outside 0 to {samples - 1}")
    if len(np.unique(index)) < len(index):
        raise FedgenError(f"partition file {path}: seed {seed} gives a row twice")
