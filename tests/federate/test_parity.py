"""A federation over Flower's messages gives the simulator's server state after every round."""

from pathlib import Path

import jax
import numpy as np
import pytest
from local_federation import local_federation

from fedgen.algorithms import ALGORITHMS
from fedgen.core.trees import named
from fedgen.federate.server import Server
from fedgen.simulate.checkpoint import load_tree
from fedgen.simulate.setup import Setup
from helpers import small_setup


def assert_like_the_simulator(server: Server, setup: Setup, rounds: int) -> None:
    inputs = setup.inputs(server.plan.name, [setup.config.seed])
    program = setup.program(server.plan.name, inputs, batched=False)
    state = program.init(inputs)
    for number in range(rounds):
        state = program.advance(inputs, state, number, number + 1)
        ours = named(load_tree(server.path / "rounds" / f"{number + 1}.safetensors", server.plan.forms.server))
        theirs = named(jax.tree.map(lambda a: np.asarray(a[0]), state.server))
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            distance = np.linalg.norm(np.asarray(ours[name], np.float64) - value)
            assert distance <= 1e-5 * np.linalg.norm(value) + 1e-7, f"{name} after round {number + 1}"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    setup = small_setup(algorithm, users=3, active=2)
    server, _ = local_federation(tmp_path, setup)
    server.run()
    assert_like_the_simulator(server, setup, 3)
