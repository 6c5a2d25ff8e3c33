"""What server and sites derive from the configuration: the algorithm, and names, shapes and types of each message."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Array, Federation, Round, Task, Tree
from fedgen.core.streams import stream
from fedgen.core.trees import named
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
        # Whether sites add noise to what they send.
        self.has_noise = bool(config.dp_noise) or self.configure(self.hyper)[0].add_noise is not None
        self.forms = jax.eval_shape(lambda hyper: wires(self.configure(hyper)[0], task, self._model_key), self.hyper)
        # The arrays of an upload that the model says are never negative.
        endings = tuple(f".statistics{name}" for name in task.model.never_negative)
        self.never_negative = tuple(name for name in named(self.forms.upload) if name.endswith(endings))

    def configure(self, hyper: Mapping[str, Any]) -> tuple[Algorithm, Federation]:
        """The algorithm with these values, which may be traced."""
        return build(ALGORITHMS[self.name], self.task, self._federation, {**self._fixed, **hyper})

    def server_init(self) -> Tree:
        """The server's state before the first round."""
        return jax.jit(lambda hyper: self.configure(hyper)[0].server_init(self._model_key))(self.hyper)

    def client_init(self) -> Tree:
        """A site's state before its first round."""
        return jax.jit(lambda hyper: self.configure(hyper)[0].client_init(self._model_key))(self.hyper)

    def depends_on_users(self) -> bool:
        """Whether the server computes something else with another number of users, or keeps an array for each."""
        users = self._federation.users
        return self._server_program(users) != self._server_program(users + 1)

    def _server_program(self, users: int) -> str:
        """The text of what the server computes in one round, for a federation of this many users."""
        federation = self._federation.with_values(users=users)
        uploads = jax.tree.map(lambda form: jnp.zeros((2, *form.shape), form.dtype), self.forms.upload)
        x = self.task.prepare(jnp.zeros((2, *self.task.sample.shape), self.task.sample.dtype))

        def program(hyper: Mapping[str, Any]) -> Tree:
            algorithm, _ = build(ALGORITHMS[self.name], self.task, federation, {**self._fixed, **hyper})
            state = algorithm.server_init(self._model_key)
            message = algorithm.broadcast(state, jnp.int32(0))
            round = Round(
                jnp.int32(0), jnp.arange(2), self.key, lambda key, samples: jnp.repeat(x[:1], samples, axis=0)
            )
            after, metrics = algorithm.server_update(state, uploads, round)
            return message, after, metrics, algorithm.predict_global and algorithm.predict_global(after, x)

        return re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(program)(self.hyper)))

    @property
    def _model_key(self) -> Array:
        return stream(self.key, "model")
