"""Tables: a column of labels, perhaps one of users, and columns of numbers or one of images."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.data.labels import number_values
from fedgen.errors import FedgenError

MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}  # what tables have in place of a value, in small letters
_SHOWN = 12  # columns in an error message


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are what: its labels, its natural users ("": none), and those to leave out."""

    label: str = "label"
    user: str = ""
    drop: tuple[str, ...] = ()

    def features(self, names: Sequence[str], place: Path) -> list[str]:
        """The columns that are left for the samples, after checking that the named ones are there."""
        check_names(names, place)
        there = shown_names(names)
        if self.label not in names:
            raise FedgenError(
                f"{place} has no column '{self.label}' of labels; say which column has them with --label: {there}"
            )
        if self.user and self.user not in names:
            raise FedgenError(f"{place} has no column '{self.user}' of users (--user); it has {there}")
        if self.user == self.label:
            raise FedgenError(f"{place}: label and user are both '{self.label}'; they are two columns")
        for name in self.drop:
            if name not in names:
                raise FedgenError(f"{place} has no column '{name}' that could be dropped; it has {there}")
        left = [name for name in names if name not in {self.label, self.user, *self.drop}]
        if not left:
            raise FedgenError(
                f"{place} has only the column{'s' * (len(names) > 1)} {there}; besides the labels there must be columns"
                " of numbers (separated by commas, semicolons or tabs) or one of images"
            )
        return left


def check_names(names: Sequence[str], place: Path) -> None:
    """Refuse columns that cannot be told apart by their names."""
    if "" in names:
        raise FedgenError(
            f"{place}: column {list(names).index('') + 1} has no name (pandas writes its index so, unless told"
            " index=False); name it, or take it out"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if list(names).count(name) > 1)
        raise FedgenError(f"{place} has two columns '{twice}'; give each another name")


def shown_names(names: Sequence[str]) -> str:
    """The columns' names for an error message."""
    return ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")


def dropped(names: str | None) -> tuple[str, ...]:
    """The columns in the option `dataset.drop`, which are separated by commas."""
    return tuple(filter(None, (name.strip() for name in (names or "").split(","))))


class Table(NamedTuple):
    """What was read of a table; of images their files' content, read when it is needed."""

    place: Path
    features: Sequence[str]  # the columns of the samples, in order
    x: NDArray[np.float32] | None  # [row, column], where these are numbers
    image: Callable[[int], bytes] | None  # of a row
    labels: NDArray[Any]  # whole numbers or words
    users: NDArray[Any] | None
    class_names: tuple[str, ...] = ()  # of labels that are numbers and have names
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self.labels)


def float_column(values: NDArray[np.float64], name: str, place: Path, where: Callable[[int], str]) -> NDArray[Any]:
    """A column of numbers; `where` says of a row where it is."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    odd = np.flatnonzero(~np.isfinite(narrow))
    if len(odd):
        row = int(odd[0])
        if np.isnan(values[row]):
            raise lacks_value(name, place, where(row))
        raise FedgenError(
            f"{place}: column '{name}' has {values[row]:g} in {where(row)}, which is too large a number (beyond 3e38);"
            f" correct it, or leave the column out: {dropping(name)}"
        )
    return narrow


def lacks_value(name: str, place: Path, where: str) -> FedgenError:
    """The error for a missing value in a column of numbers."""
    return FedgenError(
        f"{place}: column '{name}' lacks a value in {where}; fill the gaps in (with the column's mean, say), take out"
        f" such rows, or leave the column out: {dropping(name)}"
    )


def lacks_label(name: str, place: Path, where: str) -> FedgenError:
    """The error for a row whose class, or whose user, is not said."""
    return FedgenError(f"{place}: column '{name}' lacks a value in {where}; take out rows without one")


def has_words(name: str, place: Path, example: str, where: str) -> FedgenError:
    """The error for a column of words among those of the samples."""
    return FedgenError(
        f"{place}: column '{name}' has words ('{example[:30]}'{where}), and samples are numbers; turn it into numbers"
        f" (pandas.get_dummies makes a column for each word), leave it out ({dropping(name)}), or say that it names the"
        f" samples' users (--user {shlex.quote(name)})"
    )


def no_numbers(name: str, place: Path, what: str) -> FedgenError:
    """The error for a column of which nothing can be learned as it is."""
    return FedgenError(
        f"{place}: column '{name}' has {what}, and samples are numbers; turn it into numbers, or leave it out:"
        f" {dropping(name)}"
    )


def dropping(*names: str) -> str:
    """The option that leaves columns out."""
    return f"--set {shlex.quote('dataset.drop=' + ','.join(names))}"


def label_values(words: NDArray[Any], name: str, place: Path) -> NDArray[Any]:
    """Labels that were read as text: whole numbers where all are that, else words."""
    try:
        numbers = words.astype(np.float64)
    except ValueError:
        return words
    if not np.isfinite(numbers).all() or (np.abs(numbers) >= 2**53).any():
        return words
    return label_numbers(numbers, name, place)


def label_numbers(numbers: NDArray[Any], name: str, place: Path) -> NDArray[np.int64]:
    """Labels that are whole numbers, however they are stored; fractions are no classes."""
    whole = numbers.astype(np.int64)
    odd = numbers[whole != numbers]
    if len(odd):
        raise FedgenError(
            f"{place}: label column '{name}' has {odd[0]:g}, and classes are words or whole numbers; a quantity cannot"
            " be learned here, unless it is divided into classes"
        )
    return whole


def number_tables(tables: Sequence[Table]) -> tuple[list[NDArray[np.int32]], tuple[str, ...]]:
    """The labels of all parts as numbers 0, 1 ... in the order of their values, and what these are called."""
    if len({table.class_names for table in tables}) > 1:
        places = " and ".join(str(table.place) for table in tables)
        raise FedgenError(f"{places} give their classes different names; save them with the same")
    labels = [table.labels for table in tables]
    if len({part.dtype.kind for part in labels}) > 1:  # numbers in one and words in another part
        labels = [part.astype(str) for part in labels]
    numbered, values = number_values(labels)
    names = tables[0].class_names
    return numbered, tuple(names[int(value)] for value in values) if names else values
