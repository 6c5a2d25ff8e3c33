"""What several schemes share: refusing more users than the samples allow, and a least number for each user."""

import heapq

import numpy as np
from numpy.typing import NDArray

from fedgen.errors import FedgenError


def check_enough(samples: int, users: int, min_samples: int = 1) -> None:
    """Refuse a division that cannot give every user its minimum."""
    if min_samples < 1:
        raise FedgenError(f"partition.min_samples must be at least 1, not {min_samples}")
    if users > samples:
        raise FedgenError(f"{samples} samples cannot give each of {users} users at least one; use fewer users")
    if users * min_samples > samples:
        raise FedgenError(
            f"{samples} samples cannot give each of {users} users at least {min_samples};"
            f" use fewer users or --set partition.min_samples={samples // users}"
        )


def check_alpha(alpha: float) -> None:
    """Refuse a concentration that no Dirichlet distribution has, or that floating point cannot draw from."""
    if not 1e-8 <= alpha <= 1e8:
        raise FedgenError(f"alpha must be a positive number (1e-8 to 1e8), not {alpha}")


def raise_to_minimum(
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


def cut(rows: NDArray[np.int64], proportions: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """Consecutive parts of the rows in these proportions (which sum to 1), rounded so that none is lost."""
    cuts = np.rint(np.cumsum(proportions) * len(rows)).astype(np.int64)
    return np.split(rows, cuts[:-1])
