"""The examples of federations run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import left_behind

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.waits
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
def test_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ten attacks for a few rounds, or two: without a bound the mean follows, Multi-Krum does not."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    flip = "label flip × 10"
    asked = {"mean, no bound": ([flip], 1), "mean (default)": ([flip], 1), "multi-krum": (attacks.NAMES, 2)}
    narrow = {"model.hidden": 64}
    records = [
        record
        for name, (chosen, users) in asked.items()
        for record in attacks.measure("fedavg", name, [1.0], 1, [5], chosen=chosen, users=users, **narrow)
    ]
    found = attacks.table(records, 1.0, 0)
    assert set(found) == set(asked)
    scores = found["multi-krum"]
    assert {name: len(row) for name, row in scores.items()} == {
        "none": 1, **{name: 2 for name in attacks.NAMES if name != "lying counts"},
    }  # fmt: skip
    flipped = {name: row[flip][0] for name, row in found.items()}
    assert flipped["mean, no bound"] < 40 < 70 < min(flipped["mean (default)"], flipped["multi-krum"]), flipped


@pytest.mark.slow
def test_two_of_ten_do_not_break_fedgen_under_multi_krum(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defaults, that is with honest users' gradients bounded; without, this costs most runs everything."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    records = attacks.measure("fedgen", "multi-krum", [1.0], 1, [20], chosen=["lying counts"], users=2)
    scores = attacks.table(records, 1.0, 0)["multi-krum"]
    assert scores["none"][0] > 80
    assert min(scores["lying counts"]) > scores["none"][0] - 3, scores
