"""`fedgen federate demo` as a user meets it: it runs, compares, and leaves no process behind."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real import left_behind

from fedgen.cli.federate import _Display, console
from helpers import blobs

TINY = [
    "--round-timeout", "1200",
    "--sites", "2", "--rounds", "2", "--set", "model=mlp", "--set", "model.hidden=8", "--set", "model.latent=4",
    "--set", "local_steps=2", "--set", "batch_size=4", "--set", "train_fraction=0.9",
]  # fmt: skip


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    x, y = blobs(300)
    x_test, y_test = blobs(60, seed=1)
    np.savez(tmp_path / "blobs.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return tmp_path / "blobs.npz"


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedgen", "federate", "demo", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str], patience: float) -> str:
    """What a process says until it ends; one that does not is interrupted, so that it ends what it started."""
    try:
        return process.communicate(timeout=patience)[0]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=300)
            finally:
                process.kill()


@pytest.mark.waits
def test_to_the_end(tmp_path: Path, dataset: Path) -> None:
    out = tmp_path / "federation"
    process = start(*TINY, "--dataset", dataset, "--tls", "--algorithm", "fedavg", "--out", out)
    said = ended(process, 1800)
    assert process.returncode == 0, said
    assert "round 2: 2 sites" in said
    assert "The server states of the first 2 rounds agree" in said
    assert not left_behind(out)
    run = out / "server/runs/run"
    summary = json.loads((run / "summary.json").read_text())
    (record,) = [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["round"] == 2]
    assert summary["results"][0]["curve"][-1] == [2, record["accuracy"]]
    for name in (
        "config.toml",
        "checkpoint.safetensors",
        "models/fedavg-seed0.safetensors",
        "curves.png",
        "report.html",
    ):
        assert (run / name).stat().st_size > 0, name
    assert len(list(out.rglob("*.key"))) == 4, "of the authority, the server and two sites"


def test_what_happens_is_said_in_words() -> None:
    """What is shown while a federation runs, event by event."""
    display = _Display(("site-0", "site-1"), rounds=3)

    def shown(event: str, **about: Any) -> str:
        display.on_event({"at": "", "event": event, **about})
        with console.capture() as captured:
            console.print(display._picture())
        return captured.get()

    assert "starting SuperLink" in shown("starting", what="SuperLink")
    assert re.search(r"site-1 +connected", shown("joined", site="site-1"))
    assert "round 1: waiting for 2 sites" in shown("round", round=0, cohort=["site-0", "site-1"])
    said = shown("train", at="site-0", round=0, received=1000)
    assert re.search(r"site-0 +training +round 1, received 1,000 bytes", said)
    assert re.search(r"site-0 +testing +after round 1", shown("evaluate", at="site-0", round=1, received=1000))
    assert re.search(r"site-0 +tested +after round 1", shown("evaluated", at="site-0", round=1, score=None))
    assert re.search(r"site-1 +left", shown("left", site="site-1"))
    assert "round 2: 1 of the 2 sites needed are there" in shown("waiting", round=1, present=1, needed=2)
    said = shown("retry", round=1, good=1, needed=2)
    assert "0/3 rounds  round 2 again: 1 good updates of the 2 needed\n" in said
    assert not display.trouble
    shown("failed", site="site-1", reason="no answer")
    assert display.trouble


@pytest.mark.slow
@pytest.mark.waits
def test_interrupted(tmp_path: Path, dataset: Path) -> None:
    """Ctrl-C while the sites are connecting or training: everything that was started is stopped."""
    out = tmp_path / "federation"
    process = start(*TINY, "--dataset", dataset, "--out", out, "--rounds", "1000")
    try:
        deadline = time.monotonic() + 1200
        while not (out / "server/log.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.1)
        assert len(left_behind(out)) >= 5, "SuperLink, two SuperNodes and their helpers run"
    finally:
        process.send_signal(signal.SIGINT)
    said = ended(process, 1200)
    assert process.returncode == 130, said
    assert "every process that was started has been stopped" in said
    assert "Traceback" not in said
    assert not left_behind(out)
