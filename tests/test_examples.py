"""The examples and the Python of README and docs run as they stand, `__main__` included."""

import ast
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
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# In tests/federate/test_federation_examples.py and test_soak_example.py, and in tests/use/test_example.py.
ELSEWHERE = {"different_extractors.py", "attacks.py", "kills.py", "light_site.py", "soak.py", "use_a_model.py"}
# Each prints accuracies in percent: how good they must at least be, which is much better than guessing.
AT_LEAST = {
    "own_model.py": 60,
    "new_algorithm.py": 40,
    "flax_model.py": 50,
    "nnx_model.py": 50,
    "equinox_model.py": 50,
    "torch_model.py": 60,
    "text_classification.py": 65,
    "table.py": 75,
    "own_csv.py": 70,
}


def test_every_example_is_run() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == AT_LEAST.keys() | ELSEWHERE


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_LEAST)
def test_an_example_as_a_user_runs_it(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    printed = ast.literal_eval(done.stdout.splitlines()[-1])
    scores = printed.values() if isinstance(printed, dict) else [printed]
    assert min(scores) > AT_LEAST[name], printed


def test_the_first_page_shows_the_own_model_example() -> None:
    shown = python_of(ROOT / "docs/index.md")[-1]
    example = (ROOT / "examples/own_model.py").read_text().split('"""\n', 1)[1]
    assert shown.split() == example.split()


def python_of(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)


# Their Python needs a trained run, or takes minutes; tests/use and tests/sweeps have the same calls.
NOT_ALONE = ("using-models.md", "sweep.md")
RUNNABLE = [
    pytest.param(page, marks=pytest.mark.slow if page.name in ("networks.md", "index.md") else [], id=page.name)
    for page in PAGES[1:]
    if python_of(page) and page.name not in NOT_ALONE
]


@pytest.mark.parametrize("page", RUNNABLE)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page one after the other, each with what the ones before it defined; but of two rounds."""
    monkeypatch.chdir(tmp_path)
    simulate = fedgen.simulate
    monkeypatch.setattr(fedgen, "simulate", lambda *a, **k: simulate(*a, **{**k, "rounds": 2, "eval_every": 1}))
    before = dict(fedgen.ALGORITHMS._added)
    try:
        exec("\n".join(python_of(page)), {"__name__": "__main__"})
    finally:
        fedgen.ALGORITHMS._added.clear()
        fedgen.ALGORITHMS._added.update(before)


@pytest.mark.slow
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
