"""Quantity skew (Li et al. 2022): users alike in their labels, different in how much they hold."""

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.minimum import check_alpha, check_enough, cut, raise_to_minimum


def quantity(
    labels: NDArray[np.int32], users: int, rng: np.random.Generator, *, alpha: float = 0.1, min_samples: int = 10
) -> list[NDArray[np.int64]]:
    """The users' sizes by Dir(alpha), their samples at random; the smallest are raised to the minimum."""
    check_alpha(alpha)
    check_enough(len(labels), users, min_samples)
    shares = cut(rng.permutation(len(labels)), rng.dirichlet(np.full(users, alpha)))
    return raise_to_minimum(shares, min_samples, rng)
