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

import pytest

RUN = [
    "run", "--algorithm", "fedavg", "--algorithm", "fedgen", "--model", "mlp", "--users", "4", "--active", "2",
    "--rounds", "150", "--local-steps", "2", "--batch-size", "4", "--eval-every", "2", "--set", "model.hidden=4",
    "--set", "model.latent=3", "--set", "fedgen.generator_steps=2", "--set", "fedgen.hidden=4",
    "--checkpoint-every", "0",
]  # fmt: skip


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


def test_killed_at_random_and_while_writing_a_checkpoint(tmp_path: Path, start: Start) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(*RUN, "--out", whole).wait() == 0

    generator = random.Random(0)
    process = start(*RUN, "--out", cut)
    kills = 0
    for attempt in range(4):
        _wait_until(
            process, lambda: any(cut.glob("checkpoint.*.tmp"))
        )  # training goes on; a checkpoint is half written
        if attempt % 2:
            time.sleep(generator.uniform(0.0, 0.4))  # wherever it is then
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
        process = start("run", "--resume", "--out", cut, "--checkpoint-every", "0")
    assert process.wait() == 0
    assert kills >= 2
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert not list(cut.glob("*.tmp")), "what a kill left behind is cleared away"
    for model in (whole / "models").iterdir():
        assert (cut / "models" / model.name).read_bytes() == model.read_bytes()


def test_a_second_process_is_refused_and_ctrl_c_writes_a_checkpoint(tmp_path: Path, start: Start) -> None:
    out, pipe = tmp_path / "run", subprocess.PIPE
    process = start(*RUN[:-2], "--rounds", "100000", "--out", out, stdout=pipe, stderr=pipe)
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
