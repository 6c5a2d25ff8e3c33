"""What every data source gives: stored samples and labels, for training and for testing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError

# How bytes become the model's input: (x/255 - 0.5) / 0.5, or x/255; with 16 bits `max_value` is in place of 255.
Scale = Literal["signed", "unit"]

_LARGEST = 1_000_000  # label; what is beyond was not meant as one


class DataForm(NamedTuple):
    """How samples are stored and scaled, and what their labels are called: what a prediction needs to know of data."""

    class_names: tuple[str, ...]
    sample: tuple[int, ...]
    dtype: str
    scale: Scale
    max_value: int  # the stored value that becomes the largest input, of whole numbers


@dataclass(frozen=True, repr=False)
class Dataset:
    """Samples as stored (images as uint8 [sample, height, width, channel]) and labels 0 .. classes - 1.

    The samples may be memory-mapped: only the rows that a run uses are then read.
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int32]
    x_test: NDArray[Any]
    y_test: NDArray[np.int32]
    classes: int
    user_train: NDArray[np.int64] | None = None  # the natural user of each training sample, from 0
    group: int = 1  # how many natural users make one user of a run, unless said otherwise
    scale: Scale = "signed"
    max_value: int = 255  # the stored value that becomes the largest input, of samples of 8 or 16 bits
    class_names: tuple[str, ...] = ()  # of labels 0, 1 ...; where none are given, their numbers

    def __post_init__(self) -> None:
        """Name the classes by their numbers where they have no names."""
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(map(str, range(self.classes))))

    def __repr__(self) -> str:
        """One line: arrays are described, not shown."""
        form = f"{self.x_train.dtype} {tuple(self.x_train.shape[1:])}"
        samples = f"{len(self.y_train):,} training and {len(self.y_test):,} test samples of {form}"
        return f"Dataset({self.name!r}: {samples}, {self.classes} classes)"

    @property
    def form(self) -> DataForm:
        """What a prediction needs to know of this data."""
        x = self.x_train
        return DataForm(self.class_names, tuple(x.shape[1:]), str(x.dtype), self.scale, self.max_value)


def from_arrays(
    x_train: Any,
    y_train: Any,
    x_test: Any,
    y_test: Any,
    *,
    name: str = "arrays",
    user_train: Any = None,
    group: int = 1,
    scale: Scale = "signed",
    class_names: Sequence[str] = (),
) -> Dataset:
    """A dataset of the given arrays, checked; `class_names` are the labels' names, label 0's first."""
    parts = {}
    for part, xs, ys in (("train", x_train, y_train), ("test", x_test, y_test)):
        x = xs if isinstance(xs, np.memmap) else np.asarray(xs)
        y = np.asarray(ys)
        if x.ndim < 2:
            raise FedgenError(
                f"{name}: {part} samples must have two dimensions or more, the first counting them, not shape {x.shape}"
            )
        if 0 in x.shape[1:]:
            raise FedgenError(f"{name}: {part} samples of shape {x.shape[1:]} hold nothing")
        if y.ndim != 1:
            raise FedgenError(f"{name}: {part} labels must be a list of integers from 0, not of shape {y.shape}")
        if len(x) != len(y):
            raise FedgenError(f"{name}: {len(x)} {part} samples but {len(y)} {part} labels")
        if len(x) == 0:
            raise FedgenError(f"{name}: there are no {part} samples")
        if x.dtype != np.uint8:
            if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
                raise FedgenError(f"{name}: {part} samples are of type {x.dtype}; they must be numbers")
            x = x.astype(np.float32, copy=False)
        if not np.issubdtype(y.dtype, np.integer) or y.min() < 0 or y.max() > _LARGEST:
            raise FedgenError(f"{name}: {part} labels must be a list of integers from 0 (to {_LARGEST:,} at most)")
        parts[part] = x, y.astype(np.int32)
    (x, y), (x2, y2) = parts["train"], parts["test"]
    if x.shape[1:] != x2.shape[1:] or x.dtype != x2.dtype:
        raise FedgenError(
            f"{name}: train samples are {x.shape[1:]} of {x.dtype}, test samples {x2.shape[1:]} of {x2.dtype};"
            " they must be alike"
        )
    classes = int(y.max()) + 1
    if y.min() == y.max():
        raise FedgenError(f"{name}: all training samples have label {y.max()}; there is nothing to tell apart")
    if y2.max() >= classes:
        raise FedgenError(f"{name}: the test set has label {y2.max()}, which the training set does not")
    users = None if user_train is None else numbered(user_train, len(y), name)
    if class_names and len(class_names) != classes:
        raise FedgenError(f"{name}: {len(class_names)} class names for {classes} classes; give one for each label")
    return Dataset(name, x, y, x2, y2, classes, users, group, scale, class_names=tuple(map(str, class_names)))


def numbered(users: Any, samples: int, name: str) -> NDArray[np.int64]:
    """Users by whatever names (numbers or words) as 0, 1, 2 ..."""
    ids = np.asarray(users)
    if ids.ndim != 1 or len(ids) != samples:
        raise FedgenError(f"{name}: the users are of shape {ids.shape}; each of {samples} training samples needs one")
    if ids.dtype.kind not in "iuUS":
        raise FedgenError(f"{name}: the users are of type {ids.dtype}; they must be whole numbers or words")
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)
