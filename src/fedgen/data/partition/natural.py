"""Natural users: whoever the samples come from, several of them grouped to a user where wanted."""

import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Count
from fedgen.errors import FedgenError


def natural(
    labels: NDArray[np.int32],
    users: int,
    rng: np.random.Generator,
    owners: NDArray[np.int64],
    *,
    group: Count | None = None,
) -> list[NDArray[np.int64]]:
    """The dataset's own users (CelebA: 10 celebrities to a user, as the paper), as many as the run has users.

    `owners` is the natural user of each sample. `group` of them, drawn at random, make a user; the samples
    of those not drawn are given to nobody.
    """
    size = group or 1
    names, codes, counts = np.unique(owners, return_inverse=True, return_counts=True)
    if users * size > len(names):
        fits = f" or --set partition.group={len(names) // users}" if len(names) >= users else ""
        raise FedgenError(
            f"{len(names)} natural users cannot make {users} users of {size} each; use at most"
            f" {len(names) // size} users (--users {len(names) // size}){fits}"
        )
    rows = np.split(np.argsort(codes, kind="stable"), np.cumsum(counts)[:-1])
    drawn = rng.permutation(len(names))[: users * size].reshape(users, size)
    return [np.concatenate([rows[owner] for owner in own]) for own in drawn]
