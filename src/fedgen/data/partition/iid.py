"""Independent and identically distributed: every user a random sample of the whole."""

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.minimum import check_enough


def iid(labels: NDArray[np.int32], users: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """The same number of samples for each user (to within one), at random."""
    check_enough(len(labels), users)
    return np.array_split(rng.permutation(len(labels)), users)
