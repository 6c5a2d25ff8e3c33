"""Shards (McMahan et al. 2017): the samples sorted by label and cut into pieces, a few of which make a user."""

import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Count
from fedgen.errors import FedgenError


def shards(
    labels: NDArray[np.int32], users: int, rng: np.random.Generator, *, per_user: Count = 2
) -> list[NDArray[np.int64]]:
    """The samples sorted by label and cut into equal shards, 2 of which make a user (McMahan et al. 2017)."""
    pieces = users * per_user
    if pieces > len(labels):
        raise FedgenError(
            f"{len(labels)} samples cannot be cut into {pieces} shards, {per_user} for each of {users} users;"
            " use fewer users or a smaller partition.per_user"
        )
    shuffled = rng.permutation(len(labels))
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    parts = np.array_split(by_label, pieces)
    assigned = rng.permutation(pieces).reshape(users, per_user)
    return [np.concatenate([parts[piece] for piece in own]) for own in assigned]
