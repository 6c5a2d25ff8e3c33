"""CIFAR-10 (Krizhevsky 2009), from the binary version of the official files (the Python version is pickled)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset, from_arrays
from fedgen.data.download import Offer, Remote
from fedgen.data.locate import find
from fedgen.errors import FedgenError

_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32  # a label, then the red, green and blue planes

OFFER = Offer(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    [
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "cifar-10-binary.tar.gz",
            "c32a1d4ab5d03f1284b67883e8d87530",
            members="*_batch*.bin",
            expected=6,
        )
    ],
)


def cifar10(folder: Path) -> Dataset:
    """Small photographs in 10 classes, 50,000 for training and 10,000 for testing, 32x32 in colour."""
    batches = [_batch(find(folder, f"data_batch_{number}.bin")) for number in range(1, 6)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    return from_arrays(x, y, *_batch(find(folder, "test_batch.bin")), name="cifar10", class_names=_CLASSES)


def _batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as error:
        raise FedgenError(f"{path} cannot be read: {error.strerror}") from error
    if not len(content) or len(content) % _RECORD:
        raise FedgenError(f"{path} is {len(content)} bytes long; CIFAR-10's batches are multiples of {_RECORD}")
    records = content.reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise FedgenError(f"{path} has label {labels.max()}; its labels must be 0 to 9")
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels
