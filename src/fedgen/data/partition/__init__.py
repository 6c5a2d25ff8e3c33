"""Ways to divide labelled samples among users: one scheme, one file, pure index arrays."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedgen.data.partition.dirichlet import dirichlet

# name -> (labels [sample], users, random generator, *, options) -> the positions each user gets
Partitioner = Callable[..., list[NDArray[np.int64]]]

PARTITIONERS: dict[str, Partitioner] = {"dirichlet": dirichlet}
