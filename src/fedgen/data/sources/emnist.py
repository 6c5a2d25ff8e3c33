"""EMNIST (Cohen, Afshar, Tapson and van Schaik 2017): handwritten letters and digits, in the official idx files."""

from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import Dataset, from_arrays
from fedgen.data.download import Offer, Remote
from fedgen.data.idx import read_labelled

Split = Literal["letters", "balanced", "byclass", "digits"]

# split -> (classes, the files' first label)
_LABELS: dict[str, tuple[int, int]] = {"letters": (26, 1), "balanced": (47, 0), "byclass": (62, 0), "digits": (10, 0)}

_DIGITS, _CAPITALS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# `balanced` keeps the small letters that look unlike their capitals.
_NAMES: dict[str, str] = {
    "letters": _CAPITALS,
    "balanced": _DIGITS + _CAPITALS + "abdefghnqrt",
    "byclass": _DIGITS + _CAPITALS + _CAPITALS.lower(),
    "digits": _DIGITS,
}

OFFER = Offer(
    "https://www.nist.gov/itl/products-and-services/emnist-dataset",
    [
        Remote(
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
            "gzip.zip",
            "58c8d27c78d21e728a6bc7b3cc06412e",
            members="emnist-*-idx?-ubyte.gz",
            expected=24,  # 6 splits of 4 files
        )
    ],
)


def emnist(folder: Path, *, split: Split = "letters") -> Dataset:
    """Handwritten characters, 28x28 grey; dataset.split is letters (26, the paper's), balanced, byclass or digits."""
    x, y = _part(folder, split, "train")
    x_test, y_test = _part(folder, split, "test")
    return from_arrays(x, y, x_test, y_test, name="emnist", class_names=_NAMES[split][: int(y.max()) + 1])


def _part(folder: Path, split: Split, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    classes, first = _LABELS[split]
    images, labels = read_labelled(folder, f"emnist-{split}-{part}", classes, first=first)
    return images.swapaxes(1, 2)[..., None], labels  # the files hold each image transposed
