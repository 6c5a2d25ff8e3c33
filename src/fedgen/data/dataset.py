"""What every data source gives: stored samples and labels, for training and for testing."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError


@dataclass(frozen=True)
class Dataset:
    """Samples as stored (images as uint8 [sample, height, width, channel]) and labels 0 .. classes - 1."""

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[np.int32]
    x_test: NDArray[Any]
    y_test: NDArray[np.int32]
    classes: int


def from_arrays(x_train: Any, y_train: Any, x_test: Any, y_test: Any, *, name: str = "arrays") -> Dataset:
    """A dataset of one's own arrays, checked."""
    parts = {}
    for part, xs, ys in (("train", x_train, y_train), ("test", x_test, y_test)):
        x, y = np.asarray(xs), np.asarray(ys)
        if len(x) != len(y):
            raise FedgenError(f"{name}: {len(x)} {part} samples but {len(y)} {part} labels")
        if len(x) == 0:
            raise FedgenError(f"{name}: there are no {part} samples")
        if x.dtype != np.uint8:
            if not (np.issubdtype(x.dtype, np.floating) or np.issubdtype(x.dtype, np.integer)):
                raise FedgenError(f"{name}: {part} samples are of type {x.dtype}; they must be numbers")
            x = x.astype(np.float32)
        if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
            raise FedgenError(f"{name}: {part} labels must be a list of integers from 0")
        parts[part] = x, y.astype(np.int32)
    (x, y), (x2, y2) = parts["train"], parts["test"]
    if x.shape[1:] != x2.shape[1:] or x.dtype != x2.dtype:
        raise FedgenError(
            f"{name}: train samples are {x.shape[1:]} of {x.dtype}, test samples {x2.shape[1:]} of {x2.dtype};"
            " they must be alike"
        )
    classes = int(y.max()) + 1
    if y2.max() >= classes:
        raise FedgenError(f"{name}: the test set has label {y2.max()}, which the training set does not")
    return Dataset(name, x, y, x2, y2, classes)
