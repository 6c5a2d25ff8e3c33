"""Testing a model on samples that are here: at the server the global one, at a site its own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Array, Task

CHUNK = 500  # samples of one forward pass


def count_correct(
    predict: Callable[[Array], Array], task: Task, x: NDArray[Any], y: NDArray[np.int32]
) -> NDArray[np.int64]:
    """How many samples of each class are recognised."""

    @jax.jit
    def labels(part: Array) -> Array:
        return jnp.argmax(predict(task.prepare(part)), axis=-1)

    counts = np.zeros(task.classes, np.int64)
    with jax.default_matmul_precision("highest"):
        for start in range(0, len(y), CHUNK):
            found = np.asarray(labels(x[start : start + CHUNK]))
            truth = y[start : start + CHUNK]
            counts += np.bincount(truth[found == truth], minlength=task.classes)
    return counts
