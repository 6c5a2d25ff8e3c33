"""A fixed number of labels per user (Li et al. 2022): each label shared equally by the users that hold it."""

import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Count
from fedgen.errors import FedgenError


def labels_per_user(
    labels: NDArray[np.int32], users: int, rng: np.random.Generator, *, per_user: Count = 2
) -> list[NDArray[np.int64]]:
    """Each user holds exactly 2 labels (partition.per_user), chosen at random and evenly.

    A label's samples are divided equally among the users that hold it, and every label is held by the same
    number of users (to within one).
    """
    names, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if per_user > len(names):
        raise FedgenError(f"partition.per_user is {per_user}, but there are {len(names)} labels")
    if users * per_user < len(names):
        raise FedgenError(
            f"{users} users of {per_user} labels cannot hold {len(names)} labels; raise users or partition.per_user"
        )
    holders: list[list[int]] = [[] for _ in names]
    held = np.zeros(len(names), np.int64)
    for user in rng.permutation(users):
        # The least held labels first, in random order among equals.
        chosen = np.lexsort((rng.random(len(names)), held))[:per_user]
        held[chosen] += 1
        for label in chosen:
            holders[label].append(user)
    scarce = np.flatnonzero(counts < held)
    if len(scarce):
        raise FedgenError(
            f"label {names[scarce[0]]} has {counts[scarce[0]]} samples for the {held[scarce[0]]} users that hold it;"
            " use fewer users or a smaller partition.per_user"
        )
    shares: list[list[NDArray[np.int64]]] = [[] for _ in range(users)]
    for label, own in enumerate(holders):
        rows = rng.permutation(np.flatnonzero(codes == label))
        for user, part in zip(own, np.array_split(rows, len(own)), strict=True):
            shares[user].append(part)
    return [np.concatenate(parts) for parts in shares]
