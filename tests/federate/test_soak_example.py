"""The examples that run federations for long, for a short time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedgen.federate.deploy.folders import Folders
from fedgen.federate.journal import Journal

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(script: str, *options: str) -> dict:
    command = [sys.executable, str(EXAMPLES / script), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_what_gate_and_server_refused_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import soak

    for name in ("gate.jsonl", "log.jsonl"):
        journal = Journal(tmp_path / "server" / name)
        journal.write("refused", site="site-1", reason="a NaN", strikes=1)
        journal.write("failed", site="site-1", reason="no answer")
    assert soak.refusals(Folders(tmp_path)) == {"a NaN": 2}


@pytest.mark.slow
@pytest.mark.waits
def test_sites_that_fail_lose_nothing_that_is_finished(tmp_path: Path) -> None:
    options = ("--sites", "4", "--rounds", "4", "--failing", "0.5", "--workers", "2", "--out", str(tmp_path))
    found = run("soak.py", *options)
    assert found["rounds done"] == 4
    assert json.loads((tmp_path / "soak.json").read_text()) == found
    assert found["largest error"] < 1e-6
    assert found["finished answers lost"] == []
    assert found["what sites did"].get("refused", 0) == 0, "who returns is taken back at once"


@pytest.mark.slow
@pytest.mark.waits
def test_the_model_is_the_undisturbed_one_after_kills(tmp_path: Path) -> None:
    found = run("kills.py", "--kills", "5", "--sites", "2", "--seed", "3", "--folder", str(tmp_path / "kills"))
    assert sum(found["kills"].values()) == 5
    assert found["equal to the undisturbed model"]
