"""Evaluation on local samples: the global model at the server, a site's own model at the site."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Array, Task, Tree

CHUNK = 500  # samples in one forward pass


class Tester:
    """Counts correct predictions of `predict(*model, x)`; the model is an argument, so that one program serves all."""

    def __init__(self, predict: Callable[..., Array], task: Task) -> None:
        self._classes = task.classes
        self._finite = jax.jit(lambda part, *model: jnp.isfinite(predict(*model, task.prepare(part))).all())
        self._labels = jax.jit(lambda part, *model: jnp.argmax(predict(*model, task.prepare(part)), axis=-1))

    def __call__(self, x: NDArray[Any], y: NDArray[np.int32], *model: Tree) -> NDArray[np.int64]:
        """How many samples of each class are predicted correctly."""
        counts = np.zeros(self._classes, np.int64)
        with jax.default_matmul_precision("highest"):
            for start in range(0, len(y), CHUNK):
                found = np.asarray(self._labels(x[start : start + CHUNK], *model))
                truth = y[start : start + CHUNK]
                counts += np.bincount(truth[found == truth], minlength=self._classes)
        return counts

    def is_finite(self, x: NDArray[Any], *model: Tree) -> bool:
        """Whether all that is predicted for these samples is."""
        with jax.default_matmul_precision("highest"):
            return bool(self._finite(x, *model))
