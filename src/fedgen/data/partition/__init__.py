"""Ways to divide labelled samples among users: one scheme, one file, pure index arrays."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedgen.registry import Registry

# name -> (labels [sample], users, random generator, *, options) -> the positions each user gets
Partitioner = Callable[..., list[NDArray[np.int64]]]

PARTITIONERS: Registry[Partitioner] = Registry(
    "partition",
    {
        "dirichlet": "fedgen.data.partition.dirichlet:dirichlet",
        "dirichlet-user": "fedgen.data.partition.dirichlet_user:dirichlet_user",
        "iid": "fedgen.data.partition.iid:iid",
        "shards": "fedgen.data.partition.shards:shards",
        "labels": "fedgen.data.partition.labels:labels_per_user",
        "quantity": "fedgen.data.partition.quantity:quantity",
        "natural": "fedgen.data.partition.natural:natural",
        "feature-noise": "fedgen.data.partition.feature_noise:feature_noise",
    },
)
