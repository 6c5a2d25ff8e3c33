"""MNIST (LeCun, Cortes and Burges; CC BY-SA 3.0), complete and shipped with the package."""

from pathlib import Path

from fedgen.data.dataset import Dataset, from_arrays
from fedgen.data.idx import read_idx

_FILES = Path(__file__).parent / "files"


def mnist() -> Dataset:
    """Handwritten digits, 60,000 for training and 10,000 for testing, 28x28 grey (embedded)."""

    def part(prefix: str) -> tuple[object, object]:
        images = read_idx(_FILES / f"{prefix}-images-idx3-ubyte.gz", 3)
        return images[..., None], read_idx(_FILES / f"{prefix}-labels-idx1-ubyte.gz", 1)

    return from_arrays(*part("train"), *part("t10k"), name="mnist")
