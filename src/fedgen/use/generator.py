"""A trained generator of latent features, as FedGen has one at the server."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.algorithms.fedgen import Server
from fedgen.config import RunConfig
from fedgen.core.contract import Tree
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.models.generator import draw_labels, draw_noise, generate


class Sample(NamedTuple):
    """Generated features and the labels that they are for."""

    features: NDArray[np.float32]  # [sample, latent]
    labels: NDArray[np.int64]  # [sample]


class LatentGenerator:
    """Draws latent vectors z of given labels: what the users' last layers were trained on.

    Attributes:
        label_distribution: [class] how often the run drew each label.
    """

    def __init__(self, algorithm: str, config: RunConfig, form: DataForm, server: Tree) -> None:
        found = [s for s in jax.tree.leaves(server, is_leaf=lambda s: isinstance(s, Server)) if isinstance(s, Server)]
        if not found:
            raise FedgenError(f"{algorithm} has no generator; fedgen has one")
        self._state: Server = found[0]
        options = config.of(algorithm)
        self._noise = str(options.get("noise", "normal"))
        self._form = form
        uniform = np.full(len(form.class_names), 1 / len(form.class_names), np.float32)
        self.label_distribution = np.asarray(self._state.prior) if options.get("labels") != "uniform" else uniform

    def __repr__(self) -> str:
        """What it is, in a line."""
        latent = self._state.generator.params["output"]["weight"].shape[1]
        return f"<generator of {latent} features for {len(self._form.class_names)} classes>"

    def sample(self, labels: Any, *, seed: int = 0) -> Sample:
        """Draw features.

        Args:
            labels: The labels to draw for, a list of numbers; or how many to draw, with labels as in the run.
            seed: Of the draw.

        Returns:
            `features` [sample, latent] and `labels` [sample].
        """
        key = jax.random.key(seed)
        if np.ndim(labels) == 0:
            if int(labels) < 1:
                raise FedgenError(f"{labels} samples cannot be drawn; give a number from 1, or a list of labels")
            y = np.asarray(draw_labels(key, int(labels), jnp.asarray(self.label_distribution)))
        else:
            y = np.asarray(labels)
        classes = len(self._form.class_names)
        if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or not y.size or y.min() < 0 or y.max() >= classes:
            raise FedgenError(f"labels must be a list of whole numbers from 0 to {classes - 1}")
        generator = self._state.generator
        size = generator.params["hidden"]["weight"].shape[0] - classes
        noise = draw_noise(key, (len(y), size), self._noise)
        z, _ = generate(generator, noise, jnp.asarray(y), classes, False)
        return Sample(np.asarray(z), y.astype(np.int64))
