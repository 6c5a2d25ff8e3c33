"""The examples of federations run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import left_behind

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_sites_with_different_extractors(tmp_path: Path) -> None:
    """Real processes: grey images with PyTorch, colour ones with Flax, vectors with ours; all send the same arrays."""
    command = [sys.executable, "examples/different_extractors.py", tmp_path / "federation", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = dict(re.findall(r"(\w+) sent (\d+) bytes", done.stdout))
    predictor, counts, headers = (16 * 4 + 4) * 4, 4 * 4, 3 * 128
    assert sent == dict.fromkeys(("grey", "colour", "vectors"), str(predictor + counts + headers))
    assert not left_behind(tmp_path)
    scores = dict(re.findall(r"(\w+) recognises ([\d.]+) %", done.stdout))
    assert set(scores) == set(sent)
    assert min(map(float, scores.values())) > 30, "better than guessing one of four"


@pytest.mark.slow
def test_poisoned_sites(tmp_path: Path) -> None:
    """Two of ten turn their updates around: the mean collapses, the others hold."""
    command = [sys.executable, "examples/poisoned_sites.py", tmp_path, "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(.*?) +honest +([\d.]+) % +2 of 10 poisoned +([\d.]+) %$", done.stdout, re.M)
    poisoned = {name: float(score) for name, _, score in rows}
    assert set(poisoned) == {"mean", "clipped mean", "median", "trimmed mean"}
    assert poisoned["mean"] < min(20, poisoned["clipped mean"])
    assert min(poisoned["median"], poisoned["trimmed mean"]) > 70, poisoned
    assert (tmp_path / "poisoned.svg").exists()
