"""The time of a client's local training, measured side by side (the paper's table of synthetic samples)."""

import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import RunConfig
from fedgen.core.client import train_client
from fedgen.core.contract import Array, Tree
from fedgen.core.recipe import Shard
from fedgen.data.dataset import Dataset
from fedgen.simulator.engine import Inputs
from fedgen.simulator.setup import prepare

REPEATS = 30
CALLS = 10  # in a row, so that a repeat takes a tenth of a second and not a hundredth


def local_training_times(
    configs: Mapping[str, RunConfig], dataset: Dataset, baseline: str, repeats: int = REPEATS
) -> dict[str, list[float]]:
    """For each column, its time over the baseline's in each of several repeats, on one device.

    The columns take turns within a repeat, so that a machine that slows down slows all of them.
    """
    calls = {name: _local_training(config, dataset) for name, config in configs.items()}
    ratios: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        seconds = {}
        for name, call in calls.items():
            call()  # warm up the caches that another column evicted
            start = time.perf_counter()
            for _ in range(CALLS):
                jax.block_until_ready(call())
            seconds[name] = time.perf_counter() - start
        for name, value in seconds.items():
            ratios[name].append(value / seconds[baseline])
    return ratios


def _local_training(config: RunConfig, dataset: Dataset) -> Callable[[], Tree]:
    """One user's round as a compiled function without arguments, warmed up."""
    (name,) = config.algorithms
    setup = prepare(config, dataset)
    algorithm, federation = build(ALGORITHMS[name], setup.task, setup.federation, config.of(name))
    device = jax.devices()[0]
    inputs = jax.device_put(jax.tree.map(lambda a: a[0], setup.inputs(name, [config.seed])), device)
    x, y = jax.device_put((setup.data.x, setup.data.y), device)
    server = algorithm.server_init(inputs.key)
    client = algorithm.client_init(inputs.key)

    @jax.jit
    def train(x: Array, y: Array, inputs: Inputs, server: Tree, client: Tree) -> Tree:
        second, first = jnp.ones((), jnp.int32), jnp.zeros((), jnp.int32)
        broadcast = algorithm.broadcast(server, second)
        shard = Shard(x, y, inputs.rows, inputs.offset[0], inputs.size[0], inputs.labels[0])
        # Not the first round, in which a preset may leave the generator out.
        return train_client(
            algorithm,
            setup.task,
            federation,
            broadcast,
            client,
            shard,
            second,
            first,
            inputs.key,
            largest=setup.largest,
        )

    return lambda: train(x, y, inputs, server, client)
