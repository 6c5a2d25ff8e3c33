"""What server and sites derive from the configuration: the algorithm, and names, shapes and types of each message."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Array, Federation, Task, Tree
from fedgen.core.streams import stream
from fedgen.core.wires import wires
from fedgen.models.check import check_model
from fedgen.runs.options import options_for
from fedgen.runs.task import federation_of


class Plan:
    """One algorithm with one seed, built as the simulator builds it, with float hyper-parameters as arguments."""

    def __init__(self, config: RunConfig, task: Task) -> None:
        (self.name,) = config.algorithms
        self.config, self.task = config, task
        check_model(task)
        self._federation = federation_of(config)
        values, self._fixed = options_for(config, self.name)
        self.hyper = {key: jnp.float32(value) for key, value in values.items()}
        self.key = jax.random.key(config.seed)
        self.forms = jax.eval_shape(lambda hyper: wires(self.configure(hyper)[0], task, self._model_key), self.hyper)

    def configure(self, hyper: Mapping[str, Any]) -> tuple[Algorithm, Federation]:
        """The algorithm with these values, which may be traced."""
        return build(ALGORITHMS[self.name], self.task, self._federation, {**self._fixed, **hyper})

    def server_init(self) -> Tree:
        """The server's state before the first round."""
        return jax.jit(lambda hyper: self.configure(hyper)[0].server_init(self._model_key))(self.hyper)

    def client_init(self) -> Tree:
        """A site's state before its first round."""
        return jax.jit(lambda hyper: self.configure(hyper)[0].client_init(self._model_key))(self.hyper)

    @property
    def _model_key(self) -> Array:
        return stream(self.key, "model")
