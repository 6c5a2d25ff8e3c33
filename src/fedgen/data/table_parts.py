"""Tables as data: one file, or a folder with files for training and for testing, as they are commonly saved."""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.arrow_files import read_arrow, read_parquet
from fedgen.data.csv_files import read_csv
from fedgen.data.image_folders import decoded
from fedgen.data.images import Images
from fedgen.data.parts import TEST_WORDS, Parts, divided
from fedgen.data.tables import Columns, Table, number_tables
from fedgen.errors import FedgenError

_READERS: dict[str, Callable[[Sequence[Path], Columns], Table]] = {".parquet": read_parquet, ".arrow": read_arrow}
TABLES = (".csv", ".tsv", *_READERS)
_DATA = "data"  # the folder of a dataset on Hugging Face's hub in which its files are
_LARGE = 100  # numbers beyond this are said to be so
_WORD = re.compile(r"[A-Za-z0-9]+")


def read_table_file(path: Path, columns: Columns, size: int | None, *, whole: bool) -> Parts:
    """One table, divided into training and test samples."""
    return _divided(_read([path], columns), size, whole)


def has_tables(folder: Path) -> bool:
    """Whether a folder has tables: itself, in `data`, or in `train` and `test` as `datasets` saves them."""
    return bool(_files(folder))


def read_table_folder(folder: Path, columns: Columns, size: int | None, *, whole: bool) -> Parts:
    """Tables named by what they are for: train-0.parquet, test.csv, train/data-0.arrow; or one table in several files.

    Models are tested on `test`, else on `val` or `validation`.
    """
    by_word: dict[str, list[Path]] = {}
    for word, path in _files(folder):
        by_word.setdefault(word, []).append(path)
    tests = [word for word in TEST_WORDS if word in by_word]
    if "train" not in by_word:
        if tests:
            raise FedgenError(f"{folder} has {by_word[tests[0]][0].name} and nothing to train on; name that train")
        return _divided(_read([path for _, path in _files(folder)], columns), size, whole)
    train = _read(by_word["train"], columns)
    if not tests:
        return _divided(train, size, whole)
    unused = [word for word in by_word if word not in ("train", tests[0])]
    notes = [f"{folder}: models are tested on {tests[0]}; {', '.join(unused)} is not used"] if unused else []
    test = _read(by_word[tests[0]], Columns(columns.label, "", columns.drop + (columns.user,) * bool(columns.user)))
    if list(test.features) != list(train.features):
        odd = sorted(set(test.features) ^ set(train.features))
        what = f"'{odd[0]}' is in one of them only" if odd else "their order differs"
        raise FedgenError(f"{folder}: {tests[0]} and train must have the same columns, and {what}")
    return _assembled([train, test], [np.arange(len(train)), np.arange(len(test))], size, notes)


def _files(folder: Path) -> list[tuple[str, Path]]:
    """The tables of a folder, of one kind, each with the word that says what it is for."""
    for place in (folder, folder / _DATA):
        for ending in TABLES:
            if found := sorted(place.glob(f"*{ending}")):
                words = [_WORD.match(path.stem) for path in found]
                return [(word[0].lower() if word else "", path) for word, path in zip(words, found, strict=True)]
    if (folder / "dataset_dict.json").exists():
        return [(path.parent.name, path) for path in sorted(folder.glob("*/*.arrow"))]
    return []


def _read(paths: Sequence[Path], columns: Columns) -> Table:
    for path in paths:
        if not path.stat().st_size:
            raise FedgenError(f"{path} is empty")
    if reader := _READERS.get(paths[0].suffix.lower()):
        return reader(paths, columns)
    if len(paths) > 1:
        raise FedgenError(
            f"{paths[0].parent} has {len(paths)} CSV files ({paths[0].name}, {paths[1].name} ...); make them one, or"
            " name them train.csv and test.csv"
        )
    return read_csv(paths[0], columns)


def _divided(table: Table, size: int | None, whole: bool) -> Parts:
    (labels,), names = number_tables([table])
    rows = divided(np.array(names)[labels], str(table.place), whole=whole)
    return _assembled([table, table], rows, size, [])


def _assembled(tables: Sequence[Table], rows: Sequence[NDArray[Any]], size: int | None, notes: Sequence[str]) -> Parts:
    """Training and test samples: these rows of the first table, and those of the second."""
    train, test = tables
    (y, y_test), names = number_tables(tables)
    users = None if train.users is None else train.users[rows[0]]
    said = tuple(dict.fromkeys([*notes, *train.notes]))
    if train.x is not None and test.x is not None:
        said += _said_of_ranges(train)
        features = tuple(train.features)
        return Parts(train.x[rows[0]], y[rows[0]], test.x[rows[1]], y_test[rows[1]], users, names, said, features)
    x = _images(tables, rows, size)
    cut = len(rows[0])
    return Parts(x[:cut], y[rows[0]], x[cut:], y_test[rows[1]], users, names, said)


def _said_of_ranges(table: Table) -> tuple[str, ...]:
    """What to say of a column whose numbers are so large that training would suffer from them."""
    assert table.x is not None
    largest = np.abs(table.x).max(axis=0)
    worst = int(largest.argmax())
    if largest[worst] <= _LARGE:
        return ()
    return (
        f"{table.place}: column '{table.features[worst]}' has values up to {largest[worst]:g}, and columns are not"
        " scaled; models learn best from columns of similar range, such as mean 0 and deviation 1",
    )


def _images(tables: Sequence[Table], rows: Sequence[NDArray[Any]], size: int | None) -> NDArray[Any]:
    """The images of these rows of the tables, one after the other."""
    prefix = ["", "" if tables[0] is tables[1] else "test "]
    where = {f"{prefix[part]}row {row + 1}": (part, int(row)) for part, own in enumerate(rows) for row in own}
    stamps = [_stamp(table.place) for table in tables]

    def read(name: str) -> bytes:
        part, row = where[name]
        image = tables[part].image
        assert image is not None
        return image(row)

    place = tables[0].place
    return decoded(
        Images(place, read, lambda name: stamps[where[name][0]]), list(where), size, f"decoding {place.name}"
    )


def _stamp(place: Path) -> str:
    """What changes when a table's files do."""
    files = sorted(path for path in place.iterdir() if path.suffix in TABLES) if place.is_dir() else [place]
    stamps = [f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
