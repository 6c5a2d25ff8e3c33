"""Dirichlet over labels, as the paper: each label is divided among the users in proportions ~ Dir(alpha)."""

import heapq

import numpy as np
from numpy.typing import NDArray

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
    """Each label over the users by Dir(alpha); smaller alpha, more different users.

    A user that already holds `cap` times its fair share (samples / users) gets nothing of the labels still to
    come; 0 means no cap. The authors' code has one too: a K-th of half the training set, of which it gives out
    half. A user left with fewer than `min_samples` is then given samples of the largest ones.
    """
    if not alpha > 0 or not np.isfinite(alpha):
        raise FedgenError(f"alpha must be a positive number, not {alpha}")
    if min_samples < 1:
        raise FedgenError(f"partition.min_samples must be at least 1, not {min_samples}")
    if users * min_samples > len(labels):
        raise FedgenError(
            f"{len(labels)} samples cannot give each of {users} users at least {min_samples};"
            f" use fewer users or --set partition.min_samples={len(labels) // users or 1}"
            if len(labels) >= users
            else f"{len(labels)} samples cannot give each of {users} users at least one; use fewer users"
        )
    held: list[list[NDArray[np.int64]]] = [[] for _ in range(users)]
    sizes = np.zeros(users, np.int64)
    for label in rng.permutation(np.unique(labels)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        proportions = rng.dirichlet(np.full(users, alpha))
        if cap:
            open_users = sizes < cap * len(labels) / users
            proportions = np.where(open_users, proportions, 0)
            if not proportions.sum() > 0:
                proportions = open_users.astype(float)
            proportions = proportions / proportions.sum()
        cuts = np.rint(np.cumsum(proportions) * len(rows)).astype(np.int64)
        cuts[-1] = len(rows)
        starts = np.concatenate([[0], cuts[:-1]])
        for user in np.flatnonzero(cuts > starts):
            held[user].append(rows[starts[user] : cuts[user]])
        sizes += cuts - starts
    return _raise_to_minimum([np.concatenate(h) if h else np.empty(0, np.int64) for h in held], min_samples, rng)


def _raise_to_minimum(
    shares: list[NDArray[np.int64]], minimum: int, rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Move randomly chosen samples from the largest users to those below the minimum."""
    poor = [user for user, share in enumerate(shares) if len(share) < minimum]
    if not poor:
        return shares
    lists = {user: rng.permutation(share).tolist() for user, share in enumerate(shares)}
    largest = [(-len(share), user) for user, share in lists.items()]
    heapq.heapify(largest)
    for user in poor:
        while len(lists[user]) < minimum:
            size, donor = heapq.heappop(largest)
            if -size == len(lists[donor]):  # else the entry is out of date
                lists[user].append(lists[donor].pop())
            heapq.heappush(largest, (-len(lists[donor]), donor))
    return [np.array(lists[user], np.int64) for user in range(len(shares))]
