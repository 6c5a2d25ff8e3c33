"""The simulator: rounds of a federation as one compiled program.

A round is a pure function of its state, and a call advances a run by any number of rounds (the bounds of
the loop are arguments), so that where a run is cut into calls changes nothing. Each device takes its share of
the runs and of their cohorts: a CPU one client after the other, a GPU as many clients, and several runs, as its memory
holds at once (`vmap`). With several hosts the same program runs on all of them (`fedgen.simulator.sharding`).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from fedgen.core.client import Trained, finetune_client, finetuning_recipe, finetuning_seed, train_client
from fedgen.core.contract import Algorithm, Array, Federation, Round, Task, Tree
from fedgen.core.recipe import Draws, Shard, draw_batches
from fedgen.core.streams import stream
from fedgen.core.trees import all_finite, count, nbytes
from fedgen.core.wires import wires
from fedgen.runs.cohort import draw_cohort
from fedgen.simulator import sharding
from fedgen.simulator.devices import returning_freed_memory
from fedgen.simulator.sharding import BY_HOST, BY_RUN, DEVICES, EVERYWHERE, HOSTS, RUNS

EVALUATION_CHUNK = 64  # samples of one forward pass on a CPU: what it needs stays in a core's cache
# On a GPU, left to itself, XLA chooses matrix products by timing them, so that two runs of one command could differ in
# their last digits. And a step is some forty small kernels: those that do not wait for each other run at once.
COMPILER_OPTIONS: dict[str, dict[str, bool | str]] = {
    "gpu": {
        "xla_gpu_exclude_nondeterministic_ops": True,
        "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    }
}
# XLA's own products in Triton save small networks a fifth of the time. For some large ones its compiler aborts the
# process; there the products of NVIDIA's library are as fast.
LARGE_NETWORK = 500_000  # parameters

Configure = Callable[[Mapping[str, Any]], tuple[Algorithm, Federation]]
Work = Callable[[Array, Tree, Shard, Draws | None], Tree]  # user, its state, its samples, its mini-batches -> result


class Data(NamedTuple):
    """The arrays that all runs share, as stored."""

    x: Array  # each host has its block of it
    y: Array
    x_score: Array  # what `Inputs.score` points into; likewise
    y_score: Array


class Inputs(NamedTuple):
    """The arguments of one run."""

    key: Array
    rows: Array  # of Data.x, all users in turn
    offset: Array  # [user]
    size: Array  # [user]
    labels: Array  # [user, label] how many samples of each label
    proxy: Array  # rows of Data.x that the server holds, unlabelled
    score: Array  # rows of Data.x_score that are evaluated
    slices: Array  # of each of these: in which slice of its label's samples it is (`runs.scores.slices_of`)
    hyper: dict[str, Array]  # the float hyper-parameters, so that other values need no new program


class State(NamedTuple):
    """All that changes from round to round."""

    server: Tree
    clients: Tree  # [user, ...]; each host has its block of it
    loss: Array  # the cohort's mean training loss in the last round
    metrics: dict[str, Array]  # what the server reported in the last round
    diverged: Array  # the first round (from 1) that gave a NaN or an infinity; 0: none


class Correct(NamedTuple):
    """How many samples of each class were recognised; None where there is no such model."""

    global_model: Array | None  # [class]
    local_models: Array | None  # [evaluated user, class]
    # The same, of those samples only that the authors of FedGen test a user on:
    global_model_sliced: Array | None  # [class] of all users
    local_models_sliced: Array | None  # [evaluated user, class]


class Traffic(NamedTuple):
    """Bytes one user receives and sends in a round."""

    down: int
    up: int


class Program:
    """An algorithm compiled for a task: start a run, advance it, evaluate it.

    All functions take and return `Inputs` and `State` with a leading run axis. With `batched` the runs of a
    call are computed at once; without it a call takes one run, and its result cannot depend on others.
    No user holds more than `largest` samples. `at_once` is how many clients of each run a device trains at once; 0
    is one on a CPU, and what the memory of a GPU holds.
    """

    def __init__(
        self,
        configure: Configure,
        task: Task,
        active: int,
        data: Data,
        inputs: Inputs,
        *,
        largest: int,
        score_users: int,
        batched: bool,
        at_once: int = 0,
    ) -> None:
        self._configure, self._task, self._active, self._largest = configure, task, active, largest
        self._users = np.unique(np.linspace(0, inputs.size.shape[1] - 1, score_users).astype(np.int32))
        runs = inputs.size.shape[0] if batched else 1
        self._mesh = sharding.mesh(runs)
        self._at_once = at_once
        self._runs = runs // self._mesh.shape[RUNS]  # of each device
        self._chunk = _evaluation_chunk(task, self._runs)
        self.batched = batched
        self._data = data

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

        # How each argument is divided; the states of users have the run axis before the users'.
        same: Any = EVERYWHERE
        by_host: Any = BY_HOST
        by_run: Any = BY_RUN
        of_data = Data(by_host, same, by_host, same)
        of_state = State(by_run, PartitionSpec(RUNS, HOSTS), by_run, by_run, by_run)

        def compiled(
            f: Callable[..., Tree], mapped: tuple[int | None, ...], example: tuple[Tree, ...], specs: Tree, out: Tree,
            **jit: Any,
        ) -> Any:  # fmt: skip
            everywhere = jax.shard_map(
                over_runs(f, mapped), mesh=self._mesh, in_specs=specs, out_specs=out, check_vma=False
            )
            lowered = jax.jit(everywhere, **jit).lower(*example)
            with returning_freed_memory():
                return lowered.compile(compiler_options=_compiler_options(task))

        def shape(a: Array, divided: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=divided)

        count = jax.ShapeDtypeStruct((), jnp.int32)
        given = jax.tree.map(lambda a: shape(a, a.sharding), (data, inputs))
        specs: tuple[Any, ...] = (of_data, by_run)
        with jax.default_matmul_precision("highest"):  # float32 means float32, also on a GPU
            self._init = compiled(self._start, (None, 0), given, specs, of_state)
            state = jax.tree.map(shape, self._init.out_info, self._init.output_shardings)
            self._advance = compiled(
                self._rounds, (None, 0, 0, None, None), (*given, state, count, count),
                (*specs, of_state, same, same), of_state, donate_argnums=2,
            )  # fmt: skip
            self._evaluate = compiled(
                self._score, (None, 0, 0, None), (*given, state, count), (*specs, of_state, same), by_run
            )
        self.traffic = self._measure(inputs)
        self.algorithm = configure({name: value[0] for name, value in inputs.hyper.items()})[0]

    def init(self, inputs: Inputs) -> State:
        """The state before the first round."""
        return self._init(self._data, inputs)

    def advance(self, inputs: Inputs, state: State, start: int, stop: int) -> State:
        """The state after round `stop`, from the one after round `start`, whose buffers are donated."""
        return self._advance(self._data, inputs, state, np.int32(start), np.int32(stop))

    def evaluate(self, inputs: Inputs, state: State, round: int) -> Correct:
        """Count what the global model and the users' own models get right after this many rounds."""
        return self._evaluate(self._data, inputs, state, np.int32(round))

    @property
    def scored_users(self) -> np.ndarray:
        """The users whose own models are evaluated."""
        return self._users

    def _start(self, data: Data, inputs: Inputs) -> State:
        algorithm, _ = self._configure(inputs.hyper)
        model_key = stream(inputs.key, "model")
        one = algorithm.client_init(model_key)
        users = sharding.block(inputs.size.shape[0])
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

        def train(user: Array, client: Tree, shard: Shard, draws: Draws | None) -> Trained:
            return train_client(
                algorithm, self._task, federation, broadcast, client, shard, round, user, inputs.key,
                largest=self._largest, draws=draws,
            )  # fmt: skip

        def draw(user: Array, shard: Shard) -> Draws:
            return draw_batches(federation, shard, round, user, inputs.key, self._largest)

        def proxy(key: Array, samples: int) -> Array:
            rows = inputs.proxy[jax.random.randint(key, (samples,), 0, inputs.proxy.shape[0])]
            return self._task.prepare(sharding.fetch(data.x, rows))

        trained = self._for_users(train, None if _has_pass(algorithm) else draw, cohort, data, inputs, state.clients)
        context = Round(round, cohort, stream(inputs.key, "server", round), proxy, _over_devices)
        server, metrics = algorithm.server_update(state.server, trained.upload, context)
        clients = jax.tree.map(lambda a, new: sharding.keep(a, cohort, new), state.clients, trained.client)
        loss = jnp.mean(trained.loss)
        sound = all_finite((loss, trained.client, algorithm.broadcast(server, round + 1)))
        diverged = jnp.where((state.diverged == 0) & ~sound, round + 1, state.diverged)
        return State(server, clients, loss, metrics, diverged)

    def _for_users(
        self, work: Work, draw: Callable[[Array, Shard], Draws] | None, users: Array, data: Data, inputs: Inputs,
        clients: Tree,
    ) -> Any:  # fmt: skip
        """`work` of each of the users, divided among the devices; `draw` tells which samples it needs, None: all."""

        def shard_of(user: Array) -> Shard:
            return Shard(data.x, data.y, inputs.rows, inputs.offset[user], inputs.size[user], inputs.labels[user])

        def one(item: tuple[Array, Tree, Fetched | None]) -> Tree:
            user, client, fetched = item
            if fetched is None:
                return work(user, client, shard_of(user), None)
            shard = shard_of(user)._replace(x=fetched.x, y=fetched.y, rows=fetched.rows, offset=jnp.int32(0))
            return work(user, client, shard, fetched.draws)

        mine = _part_of_this_device(users)  # those that this device computes
        kept = jax.tree.map(lambda a: sharding.fetch(a, mine), clients)
        fetched = None
        if sharding.hosts() > 1:  # the samples that are needed, from whoever has them
            if draw is not None:
                fetched = _fetched_draws(data, jax.vmap(lambda user: draw(user, shard_of(user)))(mine))
            else:
                place = jnp.minimum(jnp.arange(self._largest), inputs.size[mine][:, None] - 1)
                fetched = _fetched(data, inputs.rows[inputs.offset[mine][:, None] + place])
        return self._at_once_on_devices(one, (mine, kept, fetched), users.shape[0])

    def _at_once_on_devices(self, one: Callable[[Tree], Tree], items: Tree, users: int) -> Tree:
        """`one` of each of this device's users, as many at once as fit; all devices get all results."""
        share = -(-users // sharding.devices())
        slices = -(-share // min(share, self._at_once or self._clients_that_fit(one, items)))
        if slices == share:
            results = lax.map(one, items)
        else:
            size = -(-share // slices)  # the last slice may repeat users of the first
            sliced = jax.tree.map(lambda a: _resized(a, slices * size).reshape(slices, size, *a.shape[1:]), items)
            results = lax.map(jax.vmap(one), sliced)
            results = jax.tree.map(lambda a: a.reshape(slices * size, *a.shape[2:])[:share], results)
        return _from_all_devices(results, users)

    def _clients_that_fit(self, train: Callable[[Tree], Tree], items: Tree) -> int:
        """On a GPU what half of its memory holds of all its runs; one on a CPU.

        There several gain something with the smallest networks only (docs/performance.md), and their number must not
        depend on how many devices there are, nor on a measurement: a run has the same bits wherever it goes on.
        """
        device = jax.local_devices()[0]
        if device.platform == "cpu":
            return 1
        memory = (device.memory_stats() or {}).get("bytes_limit", 2**33)
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), items)
        return max(1, memory // 2 // (working_memory(train, one) * self._runs))

    def _score(self, data: Data, inputs: Inputs, state: State, round: Array) -> Correct:
        algorithm, federation = self._configure(inputs.hyper)
        predict_global = algorithm.predict_global
        predict_local = algorithm.predict_local if algorithm.personal else None
        broadcast = algorithm.broadcast(state.server, round)  # what the next round would begin with

        users = jnp.asarray(self._users)
        holds = (inputs.labels > 0).astype(jnp.int32)  # [user, class]
        turns = jnp.where(holds > 0, jnp.cumsum(holds, axis=0) - 1, -1)  # whose slice of a label is which
        # with their numbers, since what users keep may be nothing
        own = users, jax.tree.map(lambda a: sharding.fetch(a, users), state.clients) if predict_local else ()
        if federation.finetune_steps:
            own = users, self._finetuned(algorithm, federation, broadcast, users, data, inputs, state.clients, round)
        samples, devices = inputs.score.shape[0], sharding.devices()
        chunk = min(self._chunk, -(-samples // devices))
        chunks = -(-samples // (chunk * devices))  # of each device
        number = sharding.device_number() * chunks + jnp.arange(chunks)
        positions = number[:, None] * chunk + jnp.arange(chunk)  # [chunk, sample]

        def count(position: Array) -> Correct:
            rows = inputs.score[jnp.minimum(position, samples - 1)]
            x, y = self._task.prepare(sharding.fetch(data.x_score, rows)), data.y_score[rows]
            classes = jax.nn.one_hot(y, self._task.classes) * (position < samples)[:, None]

            slices = inputs.slices[jnp.minimum(position, samples - 1)]

            def right(logits: Array, sliced: Array) -> tuple[Array, Array]:
                """Per class: of all samples, and of those in the slices."""
                correct = (jnp.argmax(logits, axis=-1) == y).astype(jnp.float32)
                return correct @ classes, (correct * sliced) @ classes

            def right_locally(user: tuple[Array, Tree]) -> tuple[Array, Array]:
                assert predict_local is not None
                received, kept = user[1] if federation.finetune_steps else (broadcast, user[1])
                return right(predict_local(received, kept, x), slices == turns[user[0]][y])

            of_all = (
                right(predict_global(state.server, x), slices <= jnp.max(turns, axis=0)[y]) if predict_global else None
            )
            of_each = lax.map(right_locally, own) if predict_local else None
            (whole, sliced), (own_whole, own_sliced) = of_all or (None, None), of_each or (None, None)
            return Correct(whole, own_whole, sliced, own_sliced)

        counted = lax.map(count, positions)
        return jax.tree.map(lambda a: lax.psum(jnp.sum(a, axis=0), (HOSTS, DEVICES)), counted)

    def _finetuned(
        self, algorithm: Algorithm, federation: Federation, broadcast: Tree, users: Array, data: Data, inputs: Inputs,
        clients: Tree, round: Array,
    ) -> Tree:  # fmt: skip
        """What each of the users predicts with after it trained the received model on its own samples."""

        def tune(user: Array, client: Tree, shard: Shard, draws: Draws | None) -> tuple[Tree, Tree]:
            return finetune_client(
                algorithm, self._task, federation, broadcast, client, shard, round, user, inputs.key,
                largest=self._largest, draws=draws,
            )  # fmt: skip

        def draw(user: Array, shard: Shard) -> Draws:
            recipe, seed = finetuning_recipe(federation), finetuning_seed(inputs.key)
            return draw_batches(recipe, shard, round, user, seed, self._largest)

        return self._for_users(tune, None if _has_pass(algorithm) else draw, users, data, inputs, clients)

    def _measure(self, inputs: Inputs) -> Traffic:
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), inputs)
        forms = jax.eval_shape(lambda i: wires(self._configure(i.hyper)[0], self._task, jax.random.key(0)), one)
        return Traffic(nbytes(forms.broadcast), nbytes(forms.upload))


def _has_pass(algorithm: Algorithm) -> bool:
    """Whether users go over all of their samples, besides those of their mini-batches."""
    return algorithm.before is not None or algorithm.after is not None


def _evaluation_chunk(task: Task, runs: int) -> int:
    """Samples of one forward pass: few on a CPU, whose caches are small, and what fills a GPU."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return EVALUATION_CHUNK
    memory = (device.memory_stats() or {}).get("bytes_limit", 2**33)
    # A sample's patches and activations take about twelve times its own size as float32.
    forward_pass = 12 * 4 * math.prod(task.sample.shape)
    found = memory // 16 // (forward_pass * runs)
    # That of a large network takes more: of all that it computes, as if nothing were freed, at most a quarter.
    return max(EVALUATION_CHUNK, min(found, memory // 4 // (_bytes_of_a_sample(task) * runs)))


def _bytes_of_a_sample(task: Task) -> int:
    """What the forward pass of one sample takes if nothing is freed, and its share of what the weights take."""
    x = jax.eval_shape(task.prepare, jax.ShapeDtypeStruct((EVALUATION_CHUNK, *task.sample.shape), task.sample.dtype))
    params, statistics = jax.eval_shape(task.model.init, jax.random.key(0))

    def forward(given: Tree) -> Tree:
        return task.model.extract(*given, False)[0]

    return max(1, working_memory(forward, (params.extractor, statistics, x)) // EVALUATION_CHUNK)


def _over_devices(f: Callable[[Tree], Tree], items: Tree) -> Tree:
    """`f` of each item, one after the other on each device; all devices get all results."""
    results = lax.map(f, jax.tree.map(_part_of_this_device, items))
    return _from_all_devices(results, jax.tree.leaves(items)[0].shape[0])


def _part_of_this_device(items: Array) -> Array:
    """An equal share of the rows; the last devices may repeat rows of the first."""
    share = -(-items.shape[0] // sharding.devices())
    padded = _resized(items, share * sharding.devices())
    return lax.dynamic_slice_in_dim(padded, sharding.device_number() * share, share)


def _from_all_devices(results: Tree, rows: int) -> Tree:
    together = lax.all_gather(lax.all_gather(results, DEVICES, tiled=True), HOSTS, tiled=True)
    return jax.tree.map(lambda a: a[:rows], together)


def _resized(a: Array, rows: int) -> Array:
    """The first rows of an array, or with the first repeated after the last."""
    return a[jnp.arange(rows) % a.shape[0]]


class Fetched(NamedTuple):
    """A user's samples, on this host: all of them, or those of its mini-batches in this round."""

    x: Array
    y: Array
    rows: Array  # 0, 1, 2 ...
    draws: Draws | None  # the mini-batches, where x has their samples one after the other


def _fetched(data: Data, rows: Array) -> Fetched:
    """The samples of all users of this device, for their rows [user, row]."""
    order = jnp.broadcast_to(jnp.arange(rows.shape[1]), rows.shape)
    return Fetched(sharding.fetch(data.x, rows), data.y[rows], order, None)


def _fetched_draws(data: Data, draws: Draws) -> Fetched:
    users, steps, batch = draws.rows.shape
    fetched = _fetched(data, draws.rows.reshape(users, steps * batch))
    return fetched._replace(draws=draws._replace(rows=fetched.rows.reshape(users, steps, batch)))


def _compiler_options(task: Task) -> dict[str, bool | str] | None:
    options = COMPILER_OPTIONS.get(jax.default_backend())
    if options and count(jax.eval_shape(task.model.init, jax.random.key(0))[0]) >= LARGE_NETWORK:
        return {**options, "xla_gpu_enable_triton_gemm": False}
    return options


def working_memory(f: Callable[[Tree], Tree], example: Tree) -> int:
    """Bytes that a computation would take if nothing were freed within a step of its loops: an upper estimate."""

    def of(jaxpr: Any) -> int:
        total = 0
        for equation in jaxpr.eqns:
            inner = [
                getattr(p, "jaxpr", p) for p in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns"))
            ]
            total += sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in equation.outvars)
            total += sum(of(getattr(p, "jaxpr", p)) for p in inner if hasattr(p, "eqns"))
        return total

    return max(1, of(jax.make_jaxpr(f)(example).jaxpr))
