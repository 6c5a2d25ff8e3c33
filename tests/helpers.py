"""What several tests need: small data, settings under which a run takes seconds, and comparisons to the bit."""

from collections.abc import Iterable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedgen
from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import With, wrap
from fedgen.config import RunConfig, resolve
from fedgen.core.contract import Algorithm, Batch, Local, Step, Task
from fedgen.core.wires import untrained
from fedgen.simulator.engine import Correct, Inputs, Program, State
from fedgen.simulator.setup import Setup, prepare

# Each of these sends or keeps something else than the others.
KINDS = ("fedavg", "fedensemble", "feddistill", "feddistill+", "feddfusion", "fedgen", "scaffold", "moon", "ditto")
KINDS += ("fedmoments", "fedproto")


def each(names: Iterable[str], *, quick: Iterable[str]) -> list[Any]:
    """All of the names as a test's parameters; those that are not `quick` are for `make test-all`."""
    kept = set(quick)
    return [name if name in kept else pytest.param(name, marks=pytest.mark.slow) for name in names]


def blobs(samples: int, classes: int = 4, shape: tuple[int, ...] = (8, 8, 1), seed: int = 0) -> tuple:
    """Noisy images of which each class has its own pattern: easy to learn, quick to train on."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).integers(40, 215, (classes, *shape))
    labels = rng.integers(0, classes, samples)
    noisy = patterns[labels] + rng.normal(0, 40, (samples, *shape))
    return np.clip(noisy, 0, 255).astype(np.uint8), labels


def small_data() -> fedgen.Dataset:
    return fedgen.from_arrays(*blobs(600), *blobs(200, seed=1), name="blobs")


SMALL: dict[str, Any] = {
    "dataset": "blobs",
    "model": "mlp",
    "users": 6,
    "active": 3,
    "rounds": 3,
    "local_steps": 3,
    "batch_size": 8,
    "eval_every": 1,
    "alpha": 0.5,
    "train_fraction": 0.5,
    "model.hidden": 12,
    "model.latent": 6,
    "partition.min_samples": 2,
    "fedgen.hidden": 8,
    "fedgen.noise_size": 4,
    "fedgen.generator_steps": 4,
    "fedgen.generator_batch": 16,
    "fedgen.client_batch": 8,
    "feddfusion.steps": 3,
    "feddfusion.batch": 16,
    "fedmoments.virtual": 8,
    "fedmoments.refit_steps": 3,
    "fedmoments.refit_batch": 16,
    "ccvr.refit_steps": 3,
    "ccvr.refit_batch": 16,
}


def small_config(algorithm: str, **settings: Any) -> RunConfig:
    """A small run of one algorithm; `fedgen__w=1` stands for the option fedgen.w."""
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    small = {key: value for key, value in SMALL.items() if changes.get("model") != "cnn" or key != "model.hidden"}
    return resolve(small, {"algorithms": [algorithm], **changes}, own={"dataset"})


def small_setup(algorithm: str, **settings: Any) -> Setup:
    return prepare(small_config(algorithm, **settings), small_data())


def built(name: str, **settings: Any) -> tuple[Setup, Algorithm]:
    """An algorithm with small settings, and what it was built for."""
    setup = small_setup(name, **settings)
    return setup, build(ALGORITHMS[name], setup.task, setup.federation, setup.config.of(name))[0]


def local_of(task: Task, received: Any = None, client: Any = None, *, round: int = 1, samples: int = 1) -> Local:
    """What a user has at hand who received this and kept that."""
    return untrained(received, client, task)._replace(round=jnp.int32(round), samples=jnp.int32(samples))


def step_of(algorithm: Algorithm, batch: Batch, local: Local, key: jax.Array, number: int = 0) -> Step:
    """A local step with what the algorithm computes ahead of it."""
    step = Step(jnp.int32(number), key)
    return step if algorithm.ahead is None else step._replace(ahead=algorithm.ahead(batch, local, step))


def training_program(setup: Setup, algorithm: str, inputs: Inputs, *, batched: bool = False) -> Program:
    """The compiled algorithm without its evaluation, which takes long to compile and is not asked for."""
    with mock.patch.object(Program, "_score", return_value=Correct(None, None, None, None)):
        return setup.program(algorithm, inputs, batched)


def play(setup: Setup, rounds: int, algorithm: str | None = None) -> State:
    """The state of the first seed after some rounds."""
    name = algorithm or setup.config.algorithms[0]
    inputs = setup.inputs(name, [setup.config.seed])
    program = training_program(setup, name, inputs)
    state = program.advance(inputs, program.init(inputs), 0, rounds)
    return jax.tree.map(lambda a: np.asarray(a)[0], state)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two trees are alike to the last bit."""
    if jax.tree.structure(a) != jax.tree.structure(b):
        return False
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def summing(task: fedgen.Task, federation: fedgen.Federation) -> fedgen.Algorithm:
    """FedAvg whose users also send class sums of their features, before and after a round of epochs."""

    def sums(params: Any, memo: Any, batch: fedgen.Batch, local: fedgen.Local) -> jax.Array:
        z, _ = task.model.extract(params.extractor, memo, batch.x, False)
        return batch.one_hot(task.classes).T @ z

    def server_update(server: With, average: Any, uploads: With, round: fedgen.Round) -> tuple[With, dict]:
        before, after = (jnp.sum(a, axis=0) for a in uploads.own)
        return With(average, server.own + after), {"before": jnp.sum(before), "after": jnp.sum(after)}

    return wrap(
        fedavg(task, federation),
        server_init=lambda key: jnp.zeros((task.classes, task.latent_size())),
        before=sums,
        after=sums,
        local_finish=lambda params, memo, local: ((local.before, local.after), None),
        server_update=server_update,
    )
