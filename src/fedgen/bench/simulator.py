"""The simulator's side of the comparison: its rounds and evaluations, and the workload that the peers get."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.bench.peers.workload import Workload
from fedgen.config import resolve
from fedgen.core.contract import Model, Params, Tree
from fedgen.core.recipe import Shard, draw_batches
from fedgen.core.streams import stream
from fedgen.data.dataset import Dataset
from fedgen.runs.cohort import draw_cohort
from fedgen.simulator.setup import Setup, prepare


class SimulatorBench:
    """An algorithm in the simulator, ready to be timed; its state is kept from call to call."""

    def __init__(self, setup: Setup, algorithm: str, seeds: tuple[int, ...] = (0,), *, rounds: int = 3) -> None:
        batched = len(seeds) > 1 or jax.default_backend() != "cpu"
        self._inputs = setup.inputs(algorithm, seeds)
        self._program = setup.program(algorithm, self._inputs, batched)
        self._state = self._program.init(self._inputs)
        self._round, self._rounds = 0, rounds

    def losses(self, rounds: int) -> list[float]:
        """The mean training loss of the next rounds."""
        return [self._advance(1) for _ in range(rounds)]

    def round(self) -> float:
        """Seconds of a round, over a few of them."""
        start = time.perf_counter()
        self._advance(self._rounds)
        return (time.perf_counter() - start) / self._rounds

    def evaluation(self) -> float:
        """Seconds of an evaluation on the test set."""
        start = time.perf_counter()
        jax.block_until_ready(self._program.evaluate(self._inputs, self._state, self._round))
        return time.perf_counter() - start

    def _advance(self, rounds: int) -> float:
        self._state = self._program.advance(self._inputs, self._state, self._round, self._round + rounds)
        self._round += rounds
        return float(np.asarray(self._state.loss)[0])  # waits for the result


def set_up(algorithm: str, dataset: Dataset | None = None, network: Model | None = None, **settings: Any) -> Setup:
    """The paper's settings for MNIST, or others; with other data or another network."""
    layer = {"algorithms": [algorithm], **{key.replace("__", "."): value for key, value in settings.items()}}
    own = set()
    if dataset is not None:
        layer = {"dataset": dataset.name, "train_fraction": 0.5, **layer}
        own.add("dataset")
    if network is not None:
        layer["model"] = "own"
        own.add("model")
    return prepare(resolve(layer, own=own), dataset, network)


def workload_of(setup: Setup, rounds: int, network: str = "paper-cnn") -> Workload:
    """The draws that the simulator makes in the first rounds of seed 0, and its first model in PyTorch's shapes."""
    inputs = jax.tree.map(lambda a: a[0], setup.inputs("fedavg", (0,)))
    data, federation = setup.data, setup.federation

    @jax.jit
    def rows_of(round: jax.Array, user: jax.Array) -> jax.Array:
        of_user = inputs.offset[user], inputs.size[user], inputs.labels[user]
        shard = Shard(data.x, data.y, inputs.rows, *of_user)
        return draw_batches(federation, shard, round, user, inputs.key, setup.largest).rows

    rows = []
    for round in range(rounds):
        cohort = draw_cohort(inputs.key, jnp.int32(round), setup.config.users, setup.config.active)
        rows.append([np.asarray(rows_of(jnp.int32(round), user)) for user in cohort])
    params, statistics = jax.tree.map(np.asarray, setup.task.model.init(stream(inputs.key, "model")))
    state_dict = setup.task.model.state_dict or _of_the_cnn
    model = state_dict(params, statistics)
    contiguous = {name: np.ascontiguousarray(value) for name, value in model.items()}
    return Workload(
        np.asarray(data.x),
        np.asarray(data.y).astype(np.int64),
        np.array(rows, np.int64),
        np.array(setup.config.lr),
        contiguous,
        network,
    )


def _of_the_cnn(params: Params, statistics: Tree) -> dict[str, np.ndarray]:
    """The built-in CNN's parameters under the names of the same network in PyTorch."""
    model: dict[str, np.ndarray] = {}
    for layer, (number, inputs_, outputs) in enumerate(((0, 1, 6), (3, 6, 16))):
        conv, norm = params.extractor[f"conv{layer}"], params.extractor[f"norm{layer}"]
        running = statistics[f"norm{layer}"]
        model |= {
            f"{number}.weight": conv["weight"].reshape(outputs, 3, 3, inputs_).transpose(0, 3, 1, 2),
            f"{number}.bias": conv["bias"],
            f"{number + 1}.weight": norm["scale"],
            f"{number + 1}.bias": norm["shift"],
            f"{number + 1}.running_mean": running["mean"],
            f"{number + 1}.running_var": running["variance"],
            f"{number + 1}.num_batches_tracked": np.array(0),
        }
    for number, linear in ((7, params.extractor["linear"]), (8, params.predictor)):
        model |= {f"{number}.weight": linear["weight"].T, f"{number}.bias": linear["bias"]}
    return model
