"""Several runs in one program, as on a GPU: the same draws, and the same numbers but for the order of sums."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.simulator.engine import COMPILER_OPTIONS
from helpers import small_setup, training_program

SEEDS = (0, 1, 2)
# Batching changes the order in which float32 sums are taken. Three rounds of SGD leave that in the last digits.
# (FedGen's users see the generator's samples, and so a little of what follows.)
# Adam does not: it moves a weight by about its rate whatever the size of the gradient, so that a weight whose
# gradient is nearly 0 may go either way at each step.
SGD = {"rtol": 1e-3, "atol": 1e-4}
ADAM = {"rtol": 0, "atol": 2 * 1e-4 * 3 * 4}  # both ways, rate, rounds, steps in a round


def _close(a: Any, b: Any, tolerance: dict[str, float]) -> None:
    for ours, theirs in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(ours, theirs, **tolerance)


CNN = {"model": "cnn", "model__channels": [2, 3]}


@pytest.mark.parametrize(
    ("algorithm", "model"),
    [
        pytest.param("fedavg", CNN, marks=pytest.mark.slow),
        ("fedgen", {}),
        pytest.param("feddfusion", CNN, marks=pytest.mark.slow),
    ],
)
def test_runs_together_are_runs_apart(algorithm: str, model: dict[str, Any]) -> None:
    setup = small_setup(algorithm, seeds=3, **model)
    inputs = setup.inputs(algorithm, SEEDS)
    program = training_program(setup, algorithm, inputs, batched=True)
    together = program.advance(inputs, program.init(inputs), 0, 3)
    first = setup.inputs(algorithm, SEEDS[:1])
    alone = training_program(setup, algorithm, first)
    for lane, seed in enumerate(SEEDS):
        one = setup.inputs(algorithm, [seed])
        apart = alone.advance(one, alone.init(one), 0, 3)
        ours = jax.tree.map(lambda a, lane=lane: np.asarray(a[lane]), together.server)
        theirs = jax.tree.map(lambda a: np.asarray(a)[0], apart.server)
        if algorithm == "fedgen":  # the label counts of the cohort's mini-batches: all draws, to the last one
            np.testing.assert_array_equal(ours.own.prior, theirs.own.prior)
            _close(ours.base, theirs.base, SGD)
            _close(ours.own.generator.params, theirs.own.generator.params, ADAM)
        else:
            _close(ours.params, theirs.params, {"rtol": 1e-5, "atol": 1e-6} if algorithm == "fedavg" else ADAM)


def test_the_installed_compiler_knows_the_options_for_gpus() -> None:
    multiply = jax.jit(lambda a: a @ a).lower(jnp.ones((2, 2)))
    np.testing.assert_array_equal(multiply.compile(compiler_options=COMPILER_OPTIONS["gpu"])(jnp.ones((2, 2))), 2)
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        multiply.compile(compiler_options={"xla_gpu_no_such_option": True})
