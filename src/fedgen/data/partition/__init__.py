"""Ways to divide labelled samples among users: one scheme, one file, pure index arrays."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.dirichlet import dirichlet
from fedgen.data.partition.dirichlet_user import dirichlet_user
from fedgen.data.partition.feature_noise import feature_noise
from fedgen.data.partition.iid import iid
from fedgen.data.partition.labels import labels_per_user
from fedgen.data.partition.natural import natural
from fedgen.data.partition.quantity import quantity
from fedgen.data.partition.shards import shards

# name -> (labels [sample], users, random generator, *, options) -> the positions each user gets
Partitioner = Callable[..., list[NDArray[np.int64]]]

PARTITIONERS: dict[str, Partitioner] = {
    "dirichlet": dirichlet,
    "dirichlet-user": dirichlet_user,
    "iid": iid,
    "shards": shards,
    "labels": labels_per_user,
    "quantity": quantity,
    "natural": natural,
    "feature-noise": feature_noise,
}
