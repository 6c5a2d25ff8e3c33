"""The examples of federations run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import left_behind

from helpers import small_data

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_sites_with_different_extractors(tmp_path: Path) -> None:
    """Real processes: grey images, colour images and vectors; all send the same predictor and counts."""
    command = [sys.executable, "examples/different_extractors.py", tmp_path / "federation", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = dict(re.findall(r"(\w+) sent (\d+) bytes", done.stdout))
    predictor, counts, headers = (16 * 4 + 4) * 4, 4 * 4, 3 * 128
    assert sent == dict.fromkeys(("grey", "colour", "vectors"), str(predictor + counts + headers))
    assert not left_behind(tmp_path)
    scores = dict(re.findall(r"(\w+) recognises ([\d.]+) %", done.stdout))
    assert set(scores) == set(sent)


@pytest.mark.slow
def test_poisoned_sites() -> None:
    """Two of ten turn their updates around: the mean collapses, the others hold."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from poisoned_sites import accuracies

        options = {"model": "mlp", "model.hidden": 12, "model.latent": 6, "partition.min_samples": 2}
        settings = {"lr": 0.3, "local_steps": 5, "batch_size": 8, "data": small_data(), "options": options}
        found = accuracies(["poisoned"], rounds=20, **settings)
    finally:
        sys.path.remove(str(ROOT / "examples"))
    poisoned = {name: curves["poisoned"][-1][1] for name, curves in found.items()}
    assert poisoned.pop("mean") < 50
    assert min(poisoned.values()) > 80, poisoned
