"""Several runs in one program, as on a GPU: the same draws, and the same numbers but for the order of sums."""

import jax
import numpy as np
import pytest
from helpers import small_setup

SEEDS = (0, 1, 2)
# Batching changes the order in which float32 sums are taken; this is what three rounds make of that.
TOLERANCE = {"rtol": 2e-3, "atol": 2e-4}


@pytest.mark.parametrize("algorithm", ["fedgen", "feddfusion"])
def test_runs_together_are_runs_apart(algorithm: str) -> None:
    setup = small_setup(algorithm, seeds=3)
    inputs = setup.inputs(algorithm, SEEDS)
    program = setup.program(algorithm, inputs, batched=True)
    together = program.advance(inputs, program.init(inputs), 0, 3)
    first = setup.inputs(algorithm, SEEDS[:1])
    alone = setup.program(algorithm, first, batched=False)
    for lane, seed in enumerate(SEEDS):
        one = setup.inputs(algorithm, [seed])
        apart = alone.advance(one, alone.init(one), 0, 3)
        ours = jax.tree.map(lambda a, lane=lane: np.asarray(a[lane]), together.server)
        theirs = jax.tree.map(lambda a: np.asarray(a[0]), apart.server)
        if algorithm == "fedgen":  # the label counts of the cohort's mini-batches: all draws, to the last one
            np.testing.assert_array_equal(ours.prior, theirs.prior)
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(a, b, **TOLERANCE)
