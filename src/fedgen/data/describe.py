"""Statistics of how different the users of a division are."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Description:
    """One number per user; see `describe`."""

    samples: NDArray[np.int64]
    labels: NDArray[np.int64]
    effective: NDArray[np.float64]
    distance: NDArray[np.float64]


def describe(counts: NDArray[np.int64]) -> Description:
    """From counts [user, label]: samples, labels held, effective number of classes, distance from the whole.

    The effective number of classes is exp(entropy) of the user's label distribution: c for c equally
    frequent labels. The distance is total variation, (1/2) Σ_y |p_k(y) - p(y)|, p the distribution of all
    users' samples together: 0 for alike, near 1 for labels that hardly any other user has.
    """
    samples = counts.sum(axis=1)
    own = counts / samples[:, None]
    whole = counts.sum(axis=0) / counts.sum()
    logarithm = np.log(own, out=np.zeros_like(own), where=own > 0)
    return Description(
        samples,
        np.count_nonzero(counts, axis=1),
        np.exp(-np.sum(own * logarithm, axis=1)),
        0.5 * np.abs(own - whole).sum(axis=1),
    )
