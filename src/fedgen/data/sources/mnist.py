"""MNIST (LeCun, Cortes and Burges; CC BY-SA 3.0), complete and shipped with the package."""

from collections.abc import Sequence
from pathlib import Path

from fedgen.data.dataset import Dataset, from_arrays
from fedgen.data.idx import read_labelled

_FILES = Path(__file__).parent / "files"


def mnist(folder: Path = _FILES) -> Dataset:
    """Handwritten digits, 60,000 for training and 10,000 for testing, 28x28 grey (embedded)."""
    return ten_classes(folder, "mnist")


def ten_classes(folder: Path, name: str, class_names: Sequence[str] = tuple("0123456789")) -> Dataset:
    """A dataset in MNIST's four files."""
    x, y = read_labelled(folder, "train", 10)
    x_test, y_test = read_labelled(folder, "t10k", 10)
    return from_arrays(x[..., None], y, x_test[..., None], y_test, name=name, class_names=class_names)
