"""The difference between a federation and the simulator after each round, from the states that the server kept."""

from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from fedgen.core.trees import named
from fedgen.runs.checkpoint import load_tree
from fedgen.simulator.setup import Setup


class RoundDifference(NamedTuple):
    """The difference after one round."""

    round: int  # from 1
    difference: float  # the largest relative difference (by norms) of an array of the server's state


def differences(setup: Setup, run: Path) -> list[RoundDifference]:
    """Compare the server states of simulator and federation after each round that the run kept."""
    (algorithm,), seed = setup.config.algorithms, setup.config.seed
    inputs = setup.inputs(algorithm, [seed])
    program = setup.program(algorithm, inputs, batched=False)
    state = program.init(inputs)
    found = []
    for number in range(setup.config.rounds):
        state = program.advance(inputs, state, number, number + 1)
        simulated = jax.tree.map(lambda a: np.asarray(a)[0], state.server)
        path = run / "rounds" / f"{number + 1}.safetensors"
        if not path.exists():
            break
        theirs = named(load_tree(path, simulated))
        found.append(
            RoundDifference(number + 1, max(_relative(theirs[name], value) for name, value in named(simulated).items()))
        )
    return found


def _relative(a: np.ndarray, b: np.ndarray) -> float:
    distance = float(np.linalg.norm(np.asarray(a, np.float64) - np.asarray(b, np.float64)))
    return distance / max(float(np.linalg.norm(b)), 1e-3)
