"""Dirichlet over labels, as the paper: each label is divided among the users in proportions ~ Dir(alpha)."""

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.minimum import check_alpha, check_enough, cut, raise_to_minimum
from fedgen.errors import FedgenError


def dirichlet(
    labels: NDArray[np.int32],
    users: int,
    rng: np.random.Generator,
    *,
    alpha: float = 0.1,
    min_samples: int = 10,
    cap: float = 2.0,
) -> list[NDArray[np.int64]]:
    """Each label over the users by Dir(alpha), as the paper; smaller alpha, more different users.

    A user that already holds `cap` times its fair share (samples / users) gets nothing of the labels still to
    come; 0 means no cap. The authors' code has one too: a K-th of half the training set, of which it gives out
    half. A user left with fewer than `min_samples` is then given samples of the largest ones.
    """
    check_alpha(alpha)
    check_enough(len(labels), users, min_samples)
    if cap and not cap >= 1:
        raise FedgenError(f"partition.cap must be 0 (no cap) or at least 1, a user's fair share, not {cap:g}")
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(users)]
    sizes = np.zeros(users, np.int64)
    for label in rng.permutation(np.unique(labels)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        proportions = rng.dirichlet(np.full(users, alpha))
        if cap:
            open_users = sizes < cap * len(labels) / users
            proportions = np.where(open_users, proportions, 0)
            if not proportions.sum() > 0:  # of a tiny alpha: all to one user, which is the limit of Dir(alpha)
                proportions[rng.choice(np.flatnonzero(open_users))] = 1.0
            proportions = proportions / proportions.sum()
        for user, part in enumerate(cut(rows, proportions)):
            if len(part):
                held[user].append(part)
                sizes[user] += len(part)
    shares = [np.concatenate(parts) if parts else np.empty(0, np.int64) for parts in held]
    return raise_to_minimum(shares, min_samples, rng)
