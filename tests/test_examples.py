"""The examples and the README's Python run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedgen
from fedgen.config import resolve
from fedgen.simulator.run import run
from fedgen.simulator.setup import prepare
from helpers import SMALL, small_data

ROOT = Path(__file__).parents[1]


def _run(*arguments: str | Path) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_own_model() -> None:
    scores = eval(_run("examples/own_model.py"))  # it prints a dict of numbers
    assert scores["fedgen"] > 60
    assert scores["fedavg"] > 60


@pytest.mark.slow
def test_own_csv() -> None:
    names, scores = map(eval, _run("examples/own_csv.py").splitlines())
    assert names == ["adelie", "chinstrap", "gentoo"]
    assert min(scores["fedgen"], scores["fedavg"]) > 70


def test_the_readme_shows_the_own_model_example() -> None:
    """The README's Python is the example's, so running the one is running the other."""
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    example = (ROOT / "examples/own_model.py").read_text().split('"""\n', 1)[1]
    assert shown.split() == example.split()


def test_new_algorithm_runs_through_the_same_simulator() -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import new_algorithm

        settings = {"algorithms": ["fedavgm", "fedavg"], "fedavgm.server_momentum": 0.5, "lr": 0.2}
        summary = run(prepare(resolve(SMALL, settings, own={"dataset"}), small_data()))
        with_momentum, plain = summary["results"]
        assert with_momentum["curve"] != plain["curve"]
        # without momentum it is FedAvg
        zero = resolve(SMALL, {**settings, "fedavgm.server_momentum": 0.0}, own={"dataset"})
        first, second = run(prepare(zero, small_data()))["results"]
        assert first["curve"] == second["curve"]
        assert new_algorithm.fedavgm is fedgen.ALGORITHMS["fedavgm"]
    finally:
        fedgen.ALGORITHMS.pop("fedavgm", None)
        sys.path.remove(str(ROOT / "examples"))


@pytest.mark.slow
def test_flax_model() -> None:
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        import flax.linen as nn
        import jax.numpy as jnp
        from flax_model import Extractor, from_flax

        model = from_flax(Extractor(), nn.Dense(4), jnp.zeros((1, 8, 8, 1)))
        small = {k: v for k, v in SMALL.items() if not k.startswith("model")}
        config = resolve(small, {"model": "own", "algorithms": ["fedgen"]}, own={"dataset", "model"})
        summary = run(prepare(config, small_data(), model))
        assert summary["results"][0]["accuracy"] > 0
    finally:
        sys.path.remove(str(ROOT / "examples"))
