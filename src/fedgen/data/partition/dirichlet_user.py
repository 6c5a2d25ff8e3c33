"""Dirichlet per user (Hsu, Qi and Brown 2019): each user draws its own label distribution q ~ Dir(alpha p)."""

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.minimum import check_alpha, check_enough


def dirichlet_user(
    labels: NDArray[np.int32], users: int, rng: np.random.Generator, *, alpha: float = 0.1
) -> list[NDArray[np.int64]]:
    """Each user's labels by its own Dir(alpha p), p the global label distribution (Hsu et al. 2019).

    All users get the same number of samples (to within one). Samples are drawn without replacement; once a
    label is used up, the users still to come draw from their distribution over the labels that are left.
    """
    check_alpha(alpha)
    check_enough(len(labels), users)
    _, codes, left = np.unique(labels, return_inverse=True, return_counts=True)
    pools = [rng.permutation(np.flatnonzero(codes == label)) for label in range(len(left))]
    prior = left / len(labels)
    sizes = np.full(users, len(labels) // users)
    sizes[: len(labels) % users] += 1
    shares = []
    for size in rng.permutation(sizes):
        counts = _draw(size, _log_dirichlet(alpha * prior, rng), left, rng)
        left = left - counts
        parts = [pools[label][left[label] : left[label] + counts[label]] for label in np.flatnonzero(counts)]
        shares.append(np.concatenate(parts))
    return shares


def _log_dirichlet(concentration: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """The logarithms of a Dirichlet draw, but for a common summand: small ones do not vanish as they would in p.

    Gamma(a) is Gamma(a + 1) times U^(1/a).
    """
    uniform = 1 - rng.random(len(concentration))
    return np.log(rng.gamma(concentration + 1)) + np.log(uniform) / concentration


def _draw(
    size: int, log_weights: NDArray[np.float64], left: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each label: multinomial, but never more than are left.

    Each pass either ends or uses up a label, so there are at most as many passes as labels.
    """
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        still = np.where(left > counts, log_weights, -np.inf)
        weights = np.exp(still - still.max())
        counts = np.minimum(counts + rng.multinomial(missing, weights / weights.sum()), left)
    return counts
