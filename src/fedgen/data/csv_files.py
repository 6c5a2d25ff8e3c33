"""CSV files: a line of column names, then a line for each sample, separated by commas, semicolons or tabs."""

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.data.tables import (
    MISSING,
    Columns,
    Table,
    check_names,
    float_column,
    has_words,
    label_values,
    lacks_label,
    lacks_value,
)
from fedgen.errors import FedgenError

_BLOCK = 10_000  # lines turned into numbers at a time: as text they take far more memory
_SEPARATORS = ",;\t"
_TRUTH = {"true": 1.0, "false": 0.0}

Lines = list[tuple[int, list[str]]]  # with their numbers


def read_csv(path: Path, columns: Columns) -> Table:
    """The table in a CSV file."""
    x, labels, users = [], [], []
    with _opened(path) as (names, lines):
        features = _checked_header(names, columns, path)
        for part in _blocks(path, names, lines):
            x.append(np.stack([part.numbers(name) for name in features], axis=1))
            labels.append(part.words(columns.label))
            if columns.user:
                users.append(part.words(columns.user))
    if not labels:
        raise FedgenError(f"{path} has column names and no lines below them")
    found = label_values(np.concatenate(labels), columns.label, path)
    return Table(path, features, np.concatenate(x), None, found, np.concatenate(users) if users else None)


def read_csv_samples(
    path: Path, choose: Callable[[Sequence[str], bool], tuple[Sequence[str], str | None]]
) -> tuple[NDArray[np.float64], list[str] | None]:
    """Samples [row, column] to predict, and their labels as written where the file has them.

    `choose` says, of the columns' names, which are the sample's and which has the labels. A file may start with numbers
    at once; its columns are then called 1, 2 ..., and `choose` learns that they have no names.
    """
    x: list[NDArray[np.float64]] = []
    labels: list[str] = []
    with _opened(path) as (first, lines):
        if not any(first):
            raise FedgenError(f"{path} is empty; a CSV file to predict has a sample on each line")
        named = not all(map(_is_number, first))
        names = first if named else [str(number + 1) for number in range(len(first))]
        check_names(names, path)
        features, label = choose(names, named)
        for part in _blocks(path, names, lines if named else chain([(1, first)], lines)):
            x.append(np.stack([part.exact_numbers(name) for name in features], axis=1))
            labels += [] if label is None else part.words(label).tolist()
    if not x:
        raise FedgenError(f"{path} has column names and no lines below them")
    return np.concatenate(x), None if label is None else labels


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[int, list[str]]]]]:
    """The values of the first line, and the lines below it with their numbers."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            start = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(_SEPARATORS, key=start.count), strict=True)
            names = [name.strip() for name in next(reader, [])]
            yield names, ((reader.line_num, row) for row in reader if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise FedgenError(f"{path} cannot be read as a CSV file in UTF-8: {reason}") from error


def _blocks(path: Path, names: Sequence[str], lines: Iterator[tuple[int, list[str]]]) -> "Iterator[_Block]":
    while block := list(islice(lines, _BLOCK)):
        yield _Block(path, names, block)


def _checked_header(names: Sequence[str], columns: Columns, path: Path) -> list[str]:
    if not any(names):
        raise FedgenError(f"{path} is empty; a CSV file has a line of column names, then a line for each sample")
    if all(map(_is_number, names)):
        raise FedgenError(
            f"{path} starts with numbers ({', '.join(names[:3])} ...); its first line must have the columns' names"
        )
    return columns.features(names, path)


class _Block:
    """Some lines of a file, by column."""

    def __init__(self, path: Path, names: Sequence[str], lines: Lines) -> None:
        for number, row in lines:
            if len(row) != len(names):
                raise FedgenError(
                    f"{path}, line {number}: {len(row)} values for {len(names)} columns; a value that contains the"
                    " separator must be in quotes"
                )
        self._path, self._lines = path, [number for number, _ in lines]
        self._columns = dict(zip(names, zip(*(row for _, row in lines), strict=True), strict=True))

    def numbers(self, name: str) -> NDArray[Any]:
        return float_column(self._parsed(name), name, self._path, self._where)

    def exact_numbers(self, name: str) -> NDArray[np.float64]:
        """As `numbers`, not rounded to float32."""
        parsed = self._parsed(name)
        float_column(parsed, name, self._path, self._where)
        return parsed

    def _parsed(self, name: str) -> NDArray[np.float64]:
        values = self._columns[name]
        try:
            return np.array(values, np.float64)
        except ValueError:
            return np.array([self._number(value, name, row) for row, value in enumerate(values)])

    def words(self, name: str) -> NDArray[Any]:
        words = [value.strip() for value in self._columns[name]]
        lacking = next((row for row, word in enumerate(words) if word.lower() in MISSING), None)
        if lacking is not None:
            raise lacks_label(name, self._path, self._where(lacking))
        return np.array(words)

    def _number(self, text: str, name: str, row: int) -> float:
        """One value, of a column in which not all are plain numbers."""
        word = text.strip().lower()
        if word in MISSING:
            raise lacks_value(name, self._path, self._where(row))
        if word in _TRUTH:
            return _TRUTH[word]
        if _is_number(word):
            return float(word)
        if _is_number(word.replace(",", ".")):
            raise FedgenError(
                f"{self._path}: column '{name}' has '{text.strip()}' in {self._where(row)}; write decimals with a point"
            )
        raise has_words(name, self._path, text.strip(), f" in {self._where(row)}")

    def _where(self, row: int) -> str:
        return f"line {self._lines[row]}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
