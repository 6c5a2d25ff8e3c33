"""Feature noise skew (Li et al. 2022): users alike in labels and size, each with noisier inputs than the last."""

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.iid import iid
from fedgen.errors import FedgenError


def feature_noise(
    labels: NDArray[np.int32], users: int, rng: np.random.Generator, *, noise: float = 0.1
) -> list[NDArray[np.int64]]:
    """IID users; user k of K has Gaussian noise of standard deviation partition.noise * k / K on its samples."""
    noise_levels(users, noise)
    return iid(labels, users, rng)


def noise_levels(users: int, noise: float) -> NDArray[np.float64]:
    """The standard deviation of each user's noise, where a black and a white pixel are 1 apart."""
    if not noise > 0 or not np.isfinite(noise):
        raise FedgenError(f"partition.noise must be a positive number, not {noise}")
    return noise * np.arange(1, users + 1) / users
