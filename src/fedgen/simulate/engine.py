"""The simulator: rounds of a federation as one compiled program.

A round is a pure function of its state, and a call advances a run by any number of rounds (the bounds of
the loop are arguments), so that where a run is cut into calls changes nothing. On a CPU each device takes
its share of the cohort, one client after the other; a GPU takes the whole cohort, and several runs, at
once (`vmap`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedgen.core.client import Shard, Trained, train_client
from fedgen.core.contract import Algorithm, Array, Federation, Round, Task, Tree
from fedgen.core.streams import stream
from fedgen.core.trees import all_finite, nbytes

EVALUATION_CHUNK = 64  # samples of one forward pass on a CPU: what it needs stays in a core's cache
_AXIS = "devices"
_EVERYWHERE = PartitionSpec()
# Without Triton's matrix products, which XLA tries out one by one, a program of these small ones compiles in
# half the time and runs about a seventh slower: a gain unless it runs for minutes.
_COMPILER: dict[str, dict[str, bool | str]] = {"gpu": {"xla_gpu_enable_triton_gemm": False}}

Configure = Callable[[Mapping[str, Any]], tuple[Algorithm, Federation]]


class Data(NamedTuple):
    """The arrays that all runs share, as stored."""

    x: Array
    y: Array
    x_score: Array  # what `Inputs.score` points into
    y_score: Array


class Inputs(NamedTuple):
    """The arguments of one run."""

    key: Array
    rows: Array  # of Data.x, all users in turn
    offset: Array  # [user]
    size: Array  # [user]
    proxy: Array  # rows of Data.x that the server holds, unlabelled
    score: Array  # rows of Data.x_score that are evaluated
    hyper: dict[str, Array]  # the float hyper-parameters, so that other values need no new program


class State(NamedTuple):
    """All that changes from round to round."""

    server: Tree
    clients: Tree  # [user, ...]
    loss: Array  # the cohort's mean training loss in the last round
    metrics: dict[str, Array]  # what the server reported in the last round
    diverged: Array  # the first round (from 1) that gave a NaN or an infinity; 0: none


class Correct(NamedTuple):
    """How many samples of each class were recognised; None where there is no such model."""

    global_model: Array | None  # [class]
    local_models: Array | None  # [evaluated user, class]


class Traffic(NamedTuple):
    """Bytes one user receives and sends in a round."""

    down: int
    up: int


class Program:
    """An algorithm compiled for a task: start a run, advance it, evaluate it.

    All functions take and give `Inputs` and `State` with a leading run axis. With `batched` the runs of a
    call are computed at once; without it a call takes one run, and its result cannot depend on others.
    """

    def __init__(
        self,
        configure: Configure,
        task: Task,
        active: int,
        data: Data,
        inputs: Inputs,
        *,
        score_users: int,
        batched: bool,
    ) -> None:
        self._configure, self._task, self._active = configure, task, active
        self._users = np.unique(np.linspace(0, inputs.size.shape[1] - 1, score_users).astype(np.int32))
        self._mesh = _mesh()
        self._one_by_one = jax.default_backend() == "cpu"
        self._chunk = _evaluation_chunk(task, inputs.size.shape[0])
        self.batched = batched
        self._data = place(data)

        def over_runs(f: Callable[..., Tree], mapped: tuple[int | None, ...]) -> Callable[..., Tree]:
            if batched:
                return jax.vmap(f, in_axes=mapped)

            def single(*arguments: Tree) -> Tree:
                one = [
                    a if axis is None else jax.tree.map(lambda leaf: leaf[0], a)
                    for a, axis in zip(arguments, mapped, strict=True)
                ]
                return jax.tree.map(lambda leaf: leaf[None], f(*one))

            return single

        def compiled(f: Callable[..., Tree], mapped: tuple[int | None, ...], *example: Tree, **jit: Any) -> Any:
            spread = jax.shard_map(
                over_runs(f, mapped),
                mesh=self._mesh,
                in_specs=_EVERYWHERE,
                out_specs=_EVERYWHERE,
                check_vma=False,
            )
            return jax.jit(spread, **jit).lower(*example).compile(compiler_options=_COMPILER.get(jax.default_backend()))

        def shapes(tree: Tree) -> Tree:
            everywhere = NamedSharding(self._mesh, _EVERYWHERE)
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=everywhere), tree)

        count = jax.ShapeDtypeStruct((), jnp.int32)
        with jax.default_matmul_precision("highest"):  # float32 means float32, also on a GPU
            self._init = compiled(self._start, (None, 0), shapes(data), shapes(inputs))
            state = shapes(self._init.out_info)
            self._advance = compiled(
                self._rounds, (None, 0, 0, None, None), shapes(data), shapes(inputs), state, count, count,
                donate_argnums=2,
            )  # fmt: skip
            self._evaluate = compiled(self._score, (None, 0, 0), shapes(data), shapes(inputs), state)
        self.traffic = self._measure(inputs)

    def init(self, inputs: Inputs) -> State:
        """The state before the first round."""
        return self._init(self._data, inputs)

    def advance(self, inputs: Inputs, state: State, start: int, stop: int) -> State:
        """The state after round `stop`, from the one after round `start`, which is used up."""
        return self._advance(self._data, inputs, state, np.int32(start), np.int32(stop))

    def evaluate(self, inputs: Inputs, state: State) -> Correct:
        """Count what the global model and the users' own models get right."""
        return self._evaluate(self._data, inputs, state)

    @property
    def scored_users(self) -> np.ndarray:
        """The users whose own models are evaluated."""
        return self._users

    def _start(self, data: Data, inputs: Inputs) -> State:
        algorithm, _ = self._configure(inputs.hyper)
        model_key = stream(inputs.key, "model")
        one = algorithm.client_init(model_key)
        users = inputs.size.shape[0]
        clients = jax.tree.map(lambda a: jnp.broadcast_to(a, (users, *a.shape)), one)
        server = algorithm.server_init(model_key)
        state = State(server, clients, jnp.zeros(()), {}, jnp.zeros((), jnp.int32))
        # The names of the metrics are known only from the round itself.
        round = jax.ShapeDtypeStruct((), jnp.int32)
        after = jax.eval_shape(self._one_round, data, inputs, round, state)
        return state._replace(metrics=jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), after.metrics))

    def _rounds(self, data: Data, inputs: Inputs, state: State, start: Array, stop: Array) -> State:
        return lax.fori_loop(start, stop, lambda round, s: self._one_round(data, inputs, round, s), state)

    def _one_round(self, data: Data, inputs: Inputs, round: Array, state: State) -> State:
        algorithm, federation = self._configure(inputs.hyper)
        cohort = draw_cohort(inputs.key, round, inputs.size.shape[0], self._active)
        broadcast = algorithm.broadcast(state.server, round)

        def train(user: Array) -> Trained:
            client = jax.tree.map(lambda a: a[user], state.clients)
            shard = Shard(data.x, data.y, inputs.rows, inputs.offset[user], inputs.size[user])
            return train_client(algorithm, self._task, federation, broadcast, client, shard, round, user, inputs.key)

        def proxy(key: Array, samples: int) -> Array:
            rows = inputs.proxy[jax.random.randint(key, (samples,), 0, inputs.proxy.shape[0])]
            return self._task.prepare(data.x[rows])

        trained = self._over_cohort(train, cohort)
        context = Round(round, cohort, stream(inputs.key, "server", round), proxy)
        server, metrics = algorithm.server_update(state.server, trained.upload, context)
        clients = jax.tree.map(lambda a, new: a.at[cohort].set(new), state.clients, trained.client)
        loss = jnp.mean(trained.loss)
        sound = all_finite((loss, trained.client, algorithm.broadcast(server, round + 1)))
        diverged = jnp.where((state.diverged == 0) & ~sound, round + 1, state.diverged)
        return State(server, clients, loss, metrics, diverged)

    def _over_cohort(self, train: Callable[[Array], Trained], cohort: Array) -> Trained:
        """`train` for each user of the cohort, divided over the devices; all devices get all results."""
        each = lax.map if self._one_by_one else lambda f, users: jax.vmap(f)(users)
        share = -(-self._active // self._mesh.size)
        padded = jnp.resize(cohort, (share * self._mesh.size,))  # the last devices may repeat users of the first
        mine = lax.dynamic_slice_in_dim(padded, lax.axis_index(_AXIS) * share, share)
        gathered = lax.all_gather(each(train, mine), _AXIS, tiled=True)
        return jax.tree.map(lambda a: a[: self._active], gathered)

    def _score(self, data: Data, inputs: Inputs, state: State) -> Correct:
        algorithm, _ = self._configure(inputs.hyper)
        predict_global, predict_local = algorithm.predict_global, algorithm.predict_local
        # Whatever the round, a broadcast carries the same model.
        broadcast = algorithm.broadcast(state.server, jnp.zeros((), jnp.int32))

        def predict_of(user: Array, x: Array) -> Array:
            client = jax.tree.map(lambda a: a[user], state.clients)
            return predict_local(broadcast, client, x)  # type: ignore[misc]

        samples, devices = inputs.score.shape[0], self._mesh.size
        chunk = min(self._chunk, -(-samples // devices))
        chunks = -(-samples // (chunk * devices))  # of each device
        number = lax.axis_index(_AXIS) * chunks + jnp.arange(chunks)
        positions = number[:, None] * chunk + jnp.arange(chunk)  # [chunk, sample]

        def count(position: Array) -> Correct:
            rows = inputs.score[jnp.minimum(position, samples - 1)]
            x, y = self._task.prepare(data.x_score[rows]), data.y_score[rows]
            classes = jax.nn.one_hot(y, self._task.classes) * (position < samples)[:, None]

            def right(logits: Array) -> Array:
                return (jnp.argmax(logits, axis=-1) == y).astype(jnp.float32) @ classes

            return Correct(
                predict_global and right(predict_global(state.server, x)),
                predict_local and lax.map(lambda user: right(predict_of(user, x)), jnp.asarray(self._users)),
            )

        counted = lax.map(count, positions)
        return jax.tree.map(lambda a: lax.psum(jnp.sum(a, axis=0), _AXIS), counted)

    def _measure(self, inputs: Inputs) -> Traffic:
        def wires(inputs: Inputs) -> tuple[Tree, Tree]:
            algorithm, _ = self._configure(inputs.hyper)
            key = jax.random.key(0)
            broadcast = algorithm.broadcast(algorithm.server_init(key), jnp.zeros((), jnp.int32))
            client = algorithm.client_init(key)
            params, memo = algorithm.local_start(broadcast, client)
            upload, _ = algorithm.local_finish(params, memo, broadcast, client, jnp.zeros((), jnp.int32))
            return broadcast, upload

        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), inputs)
        down, up = jax.eval_shape(wires, one)
        return Traffic(nbytes(down), nbytes(up))


def _mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), (_AXIS,))


def _evaluation_chunk(task: Task, runs: int) -> int:
    """Samples of one forward pass: few on a CPU, whose caches are small, and what fills a GPU."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return EVALUATION_CHUNK
    memory = (device.memory_stats() or {}).get("bytes_limit", 2**33)
    # A sample's patches and activations take about twelve times its own size as float32.
    forward_pass = 12 * 4 * math.prod(task.sample.shape)
    return max(EVALUATION_CHUNK, memory // 16 // (forward_pass * runs))


def place(tree: Tree) -> Tree:
    """Copy arrays to all devices (those already there are not copied again)."""
    return jax.device_put(tree, NamedSharding(_mesh(), _EVERYWHERE))


def draw_cohort(seed: Array, round: Array, users: int, active: int) -> Array:
    """The users of a round, uniformly at random and without repetition."""
    return jax.random.permutation(stream(seed, "cohort", round), users)[:active]
