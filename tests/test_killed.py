"""A run that is killed with SIGKILL at any moment is continued as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import call
from helpers import blobs

RUN = [
    "run", "--algorithm", "fedavg", "--algorithm", "fedgen", "--model", "mlp", "--users", "4", "--active", "2",
    "--rounds", "150", "--local-steps", "2", "--batch-size", "4", "--eval-every", "2", "--set", "model.hidden=4",
    "--set", "model.latent=3", "--set", "fedgen.generator_steps=2", "--set", "fedgen.hidden=4",
]  # fmt: skip
ALWAYS = ("--checkpoint-every", "0")


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `fedgen ARGUMENTS`; what still runs when the test ends, or is ended, is killed."""
    processes: list[subprocess.Popen[str]] = []

    def started(*arguments: str | Path, **more: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
        command = [sys.executable, "-m", "fedgen", *map(str, arguments)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes.append(subprocess.Popen(command, env=environment, text=True, **{**quiet, **more}))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.wait()


def _wait_until(process: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    """Return as soon as something is seen, or the process has ended."""
    while not seen() and process.poll() is None:
        time.sleep(0.0005)


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
    """The arguments of a small run, on few samples."""
    x, y = blobs(300)
    x_test, y_test = blobs(60, seed=1)
    np.savez(tmp_path / "blobs.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    return [*RUN, "--dataset", str(tmp_path / "blobs.npz")]


def test_killed_at_random_and_while_writing_a_checkpoint(
    tmp_path: Path, start: Start, run: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call(monkeypatch, *run, "--out", whole) == 0

    generator = random.Random(0)
    process = start(*run, *ALWAYS, "--out", cut)
    kills = 0
    for attempt in range(4):
        # training goes on; a checkpoint is half written
        _wait_until(process, lambda: any(cut.glob("checkpoint.*.tmp")))
        if attempt % 2:
            time.sleep(generator.uniform(0.0, 0.4))  # wherever it is then
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        process = start("run", "--resume", "--out", cut, *ALWAYS)
    assert process.wait() == 0
    assert kills >= 2
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert not list(cut.glob("*.tmp")), "what a kill left behind is cleared away"
    for model in (whole / "models").iterdir():
        assert (cut / "models" / model.name).read_bytes() == model.read_bytes()


def test_a_second_process_is_refused_and_ctrl_c_writes_a_checkpoint(
    tmp_path: Path, start: Start, run: list[str]
) -> None:
    out, pipe = tmp_path / "run", subprocess.PIPE
    process = start(*run, "--rounds", "100000", "--out", out, stdout=pipe, stderr=pipe)
    _wait_until(process, (out / "metrics.jsonl").exists)
    second = start("run", "--resume", "--out", out, stderr=pipe)
    assert f"in use: process {process.pid} on" in second.communicate()[1]
    assert second.returncode == 2
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert f"fedgen run --resume --out {out}" in said
    assert (out / "checkpoint.safetensors").exists()
    assert "Traceback" not in said
