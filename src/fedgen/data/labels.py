"""Labels by name: words and other values as the numbers 0, 1, 2 ..., and those numbers as names."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError

_SHOWN = 12  # names in an error message


def checked_names(names: Iterable[Any], classes: int, place: str) -> tuple[str, ...]:
    """The names of so many classes, each its own."""
    named = tuple(str(name) for name in names)
    if len(named) != classes:
        raise FedgenError(f"{place}: there are {len(named)} class names for {classes} classes; each needs one")
    if len(set(named)) < len(named):
        twice = next(name for name in named if named.count(name) > 1)
        raise FedgenError(f"{place}: two classes are called '{twice}'; give each another name")
    return named


def labels_of(values: Any) -> NDArray[Any]:
    """Labels as an array: of text, where they are words, whichever type they came in; else as they are."""
    labels = np.asarray(values)
    if labels.dtype.kind == "S":
        return np.char.decode(labels, "utf-8", "replace")
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):  # as pandas has words
        return labels.astype(str)
    return labels


def number_words(parts: Sequence[NDArray[Any]], place: str) -> tuple[list[NDArray[np.int32]], tuple[str, ...]]:
    """Labels that are words, of all parts of a dataset, as numbers in alphabetical order; and the words."""
    if len({part.dtype.kind for part in parts if len(part)}) > 1:
        raise FedgenError(f"{place}: some labels are words and some numbers; make all words, or all numbers from 0")
    words = [np.char.strip(part) if part.dtype.kind == "U" else part.astype(str) for part in parts]
    if any(part.ndim != 1 for part in parts):
        raise FedgenError(f"{place}: labels must be a list, one for each sample, not of shape {parts[0].shape}")
    if any((part == "").any() for part in words):
        raise FedgenError(f"{place}: a label is empty; name each sample's class, or leave it out")
    return number_values(words)


def number_values(parts: Sequence[NDArray[Any]]) -> tuple[list[NDArray[np.int32]], tuple[str, ...]]:
    """Labels of any one type as numbers, in their order; and what they were as text."""
    names, numbers = np.unique(np.concatenate(parts), return_inverse=True)
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    return np.split(numbers.astype(np.int32), cuts), tuple(map(str, names))


def renumbered(
    labels: NDArray[Any], names: Sequence[str], wanted: Sequence[str], place: str, remedy: str
) -> NDArray[np.int32]:
    """Labels that number `names`, as numbers of `wanted`; a name that is not among those is refused."""
    held = [names[label] for label in np.unique(labels)]
    unknown = [name for name in held if name not in wanted]
    if unknown:
        shown = ", ".join(wanted[:_SHOWN]) + (" ..." if len(wanted) > _SHOWN else "")
        raise FedgenError(f"{place} has class '{unknown[0]}', and the classes are {shown}; {remedy}")
    table = np.array([wanted.index(name) if name in held else 0 for name in names], np.int32)
    return table[labels]
