"""What every data source gives: stored samples and labels, for training and for testing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.data.labels import checked_names, labels_of, number_words
from fedgen.errors import FedgenError

# How bytes become the model's input: (x/255 - 0.5) / 0.5, or x/255; with 16 bits `max_value` is in place of 255.
Scale = Literal["signed", "unit"]
# Where the channels of images are: last as [height, width, channel], or first; auto: last, unless that seems wrong.
Channels = Literal["auto", "last", "first"]

_LARGEST = 1_000_000  # label; what is beyond was not meant as one
_CHUNK = 4096  # samples looked at at a time, so that a memory-mapped dataset stays on disk
_COLOURS = (1, 3)  # channels of an image


class DataForm(NamedTuple):
    """How samples are stored and scaled, and what their labels are called: what a prediction needs to know of data."""

    class_names: tuple[str, ...]
    sample: tuple[int, ...]
    dtype: str
    scale: Scale
    max_value: int  # the stored value that becomes the largest input, of whole numbers
    features: tuple[str, ...] = ()  # the columns of a sample, of a table


@dataclass(frozen=True, repr=False)
class Dataset:
    """Samples as stored, and labels. Samples may be memory-mapped: only the rows that a run uses are then read.

    Attributes:
        name: What tables call it.
        x_train: [sample, ...] uint8, uint16, float32 or int32; images are [sample, height, width, channel].
        y_train: [sample] labels from 0 to classes - 1.
        x_test: As `x_train`.
        y_test: As `y_train`.
        classes: How many labels there are.
        user_train: [sample] the natural user of each training sample, from 0; None where there are none.
        group: How many natural users make one user of a run, unless said otherwise.
        scale: How pixels are scaled.
        max_value: The stored value that becomes the largest input, of samples of 8 or 16 bits.
        class_names: Of labels 0, 1 ...; where none are given, their numbers.
        notes: What the user should know of how the data was read.
        features: The columns of a sample, of a table.
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
    notes: tuple[str, ...] = ()  # what the user should know of how the data was read
    features: tuple[str, ...] = ()  # the columns of a sample, of a table

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
        sample = tuple(x.shape[1:])
        return DataForm(self.class_names, sample, str(x.dtype), self.scale, self.max_value, self.features)


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
    channels: Channels = "auto",
    max_value: int = 0,
    class_names: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Dataset:
    """Make a dataset of your own arrays, checked.

    Args:
        x_train: [sample, ...]. uint8 and uint16 are pixels, which a network gets scaled; other whole numbers are kept
            as int32 (words, which a network looks up in its embeddings), all else as float32.
        y_train: [sample] labels: whole numbers from 0, or words.
        x_test: As `x_train`.
        y_test: As `y_train`.
        name: What tables call it.
        user_train: [sample] the natural user of each training sample, for the partition `natural`.
        group: How many natural users make one user of a run.
        scale: Of pixels: `"signed"` for -1 to 1, `"unit"` for 0 to 1.
        channels: Where those of images are: `"last"`, `"first"`, or `"auto"`: last, but what looks like first is
            refused.
        max_value: The stored value of white; 0: 255, or of 16 bits the largest value of as many bits as the training
            samples use.
        class_names: Of labels 0, 1 ...; default: their numbers.
        notes: Sentences that a run shows of this data.

    Returns:
        A dataset for `fedgen.simulate(data=...)`.
    """
    y_train, y_test, class_names = labels_of(y_train), labels_of(y_test), list(class_names)
    if "U" in (y_train.dtype.kind, y_test.dtype.kind):
        (y_train, y_test), class_names = number_words([y_train, y_test], name)
        if len(only := np.setdiff1d(y_test, y_train)):
            raise FedgenError(f"{name}: class '{class_names[only[0]]}' has no training samples, only others")
    x, y = _checked_part(name, "train", x_train, y_train, channels)
    x2, y2 = _checked_part(name, "test", x_test, y_test, channels)
    if x.shape[1:] != x2.shape[1:] or x.dtype != x2.dtype:
        raise FedgenError(
            f"{name}: train samples are {x.shape[1:]} of {x.dtype}, test samples {x2.shape[1:]} of {x2.dtype};"
            " they must be alike"
        )
    classes = len(class_names) or int(y.max()) + 1
    names = checked_names(class_names, classes, name) if class_names else ()
    if y.max() >= classes:
        raise FedgenError(f"{name}: there is a label {y.max()}, and {classes} classes have names; name each")
    if y.min() == y.max():
        only = names[y[0]] if names else y[0]
        raise FedgenError(f"{name}: all training samples have label {only}; there is nothing to tell apart")
    if y2.max() >= classes:
        raise FedgenError(f"{name}: the test set has label {y2.max()}, which the training set does not")
    white, said_of_it = white_of(x, max_value, name)
    users = None if user_train is None else numbered(user_train, len(y), name)
    return Dataset(name, x, y, x2, y2, classes, users, group, scale, white, names, (*notes, *said_of_it))


def _checked_part(
    name: str, part: str, xs: Any, y: NDArray[Any], channels: Channels
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Samples and labels of a part, of the types in which they are kept."""
    what = f"{name}: {part}"
    x = xs if isinstance(xs, np.memmap) else np.asarray(xs)
    if x.ndim < 2:
        raise FedgenError(
            f"{what} samples must have two dimensions or more, the first counting them, not shape {x.shape}"
        )
    if 0 in x.shape[1:]:
        raise FedgenError(f"{what} samples of shape {x.shape[1:]} hold nothing")
    if y.ndim != 1:
        raise FedgenError(f"{what} labels must be a list of integers from 0, not of shape {y.shape}")
    if len(x) != len(y):
        raise FedgenError(f"{name}: {len(x)} {part} samples but {len(y)} {part} labels")
    if len(x) == 0:
        raise FedgenError(f"{name}: there are no {part} samples")
    if not (np.issubdtype(y.dtype, np.integer) and y.min() >= 0 and y.max() <= _LARGEST):
        raise FedgenError(f"{what} labels must be a list of integers from 0 (to {_LARGEST:,} at most), or words")
    return channels_last(stored(x, what), channels, what), y.astype(np.int32)


def stored(x: NDArray[Any], what: str) -> NDArray[Any]:
    """Numbers of a type in which samples are kept: uint8, uint16, int32 or float32."""
    if x.dtype.kind == "u" and x.dtype.itemsize <= 2:
        return x.astype(x.dtype.newbyteorder("="), copy=False)
    if x.dtype.kind in "iu":
        return as_int32(x, what)
    if x.dtype.kind not in "iuf":
        raise FedgenError(f"{what} samples are of type {x.dtype}; they must be numbers")
    return x.astype(np.float32, copy=False)


def channels_last(x: NDArray[Any], channels: Channels, what: str) -> NDArray[Any]:
    """Images with their channels last; `auto` refuses those that seem to have them first."""
    if x.ndim != 4:
        if channels == "first":
            raise FedgenError(
                f"{what} samples are of shape {x.shape[1:]}; channels first is for images [channel, height, width]"
            )
        return x
    if channels == "first":
        return np.moveaxis(x, 1, -1)
    _, first, *_, last = x.shape
    if channels == "auto" and first in _COLOURS and last > 4 and x.shape[2] > 4:
        raise FedgenError(
            f"{what} samples are of shape {x.shape[1:]}: the channels of these images seem to come first; say so with"
            ' --channels first (in Python: channels="first"), or --channels last if they do not'
        )
    return x


def white_of(x: NDArray[Any], given: int, name: str) -> tuple[int, list[str]]:
    """The stored value that becomes the largest input, and what to say about it.

    Bytes have 255. Of 16 bits often fewer are used, as 12 by cameras and scanners: then it is the largest number of as
    many bits as the training samples need, at least 8.
    """
    if x.dtype.kind != "u":
        if given:
            raise FedgenError(
                f"{name}: max_value is for whole numbers of 8 or 16 bits, and the samples are of type {x.dtype}; store"
                " them as uint8 or uint16, or leave it out"
            )
        return 255, []
    if given:
        return given, []
    if x.dtype == np.uint8:
        return 255, []
    largest = largest_of(x)
    bits = max(largest.bit_length(), 8)
    white = 2**bits - 1
    return white, [
        f"{name}: samples of 16 bits have values up to {largest:,}, so they are scaled by {white:,}, the largest of"
        f" {bits} bits; --max-value N sets another"
    ]


def largest_of(x: NDArray[Any]) -> int:
    """The largest value, read a part at a time."""
    return max((int(x[start : start + _CHUNK].max()) for start in range(0, len(x), _CHUNK)), default=0)


def as_int32(x: NDArray[Any], what: str) -> NDArray[np.int32]:
    """Whole numbers of any type as int32, if they fit."""
    least, most = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    if not np.can_cast(x.dtype, np.int32) and x.size and (x.min() < least or x.max() > most):
        raise FedgenError(f"{what} samples have whole numbers beyond ±{most:,}; give measurements as float32")
    return x.astype(np.int32, copy=False)


def numbered(users: Any, samples: int, name: str) -> NDArray[np.int64]:
    """Users by whatever names (numbers or words) as 0, 1, 2 ..."""
    ids = np.asarray(users)
    if ids.ndim != 1 or len(ids) != samples:
        raise FedgenError(f"{name}: the users are of shape {ids.shape}; each of {samples} training samples needs one")
    if ids.dtype.kind not in "iuUS":
        raise FedgenError(f"{name}: the users are of type {ids.dtype}; they must be whole numbers or words")
    return np.unique(ids, return_inverse=True)[1].astype(np.int64)
