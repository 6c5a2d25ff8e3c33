"""`fedgen federate demo` as a user meets it: it runs, compares, and leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from helpers import blobs

TINY = [
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


def left_behind(folder: Path) -> list[str]:
    """The processes that were started in a folder and are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return found


def test_without_tls_to_the_end(tmp_path: Path, dataset: Path) -> None:
    out = tmp_path / "federation"
    rounds = ("--rounds", "3")
    process = start(*TINY, *rounds, "--dataset", dataset, "--no-tls", "--algorithm", "fedavg", "--out", out)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert "round 3: 2 sites" in said
    assert "The server states of the first 3 rounds agree" in said
    assert not left_behind(out)
    run = out / "server/runs/run"
    summary = json.loads((run / "summary.json").read_text())
    (record,) = [r for r in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if r["round"] == 3]
    assert summary["results"][0]["curve"][-1] == [3, record["accuracy"]]
    for name in (
        "config.toml",
        "checkpoint.safetensors",
        "models/fedavg-seed0.safetensors",
        "curves.png",
        "report.html",
    ):
        assert (run / name).stat().st_size > 0, name
    assert not list(out.rglob("*.key")), "without TLS there are no keys"


def test_interrupted(tmp_path: Path, dataset: Path) -> None:
    """Ctrl-C while the sites are connecting or training: everything that was started is stopped."""
    out = tmp_path / "federation"
    process = start(*TINY, "--dataset", dataset, "--out", out, "--rounds", "1000")
    deadline = time.monotonic() + 300
    while not (out / "server/log.jsonl").exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
    assert len(left_behind(out)) >= 5, "SuperLink, two SuperNodes and their helpers run"
    os.kill(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "every process that was started has been stopped" in said
    assert "Traceback" not in said
    assert not left_behind(out)
