"""A run that is killed with SIGKILL at any moment is continued as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RUN = [
    "run", "--algorithm", "fedavg", "--algorithm", "fedgen", "--model", "mlp", "--users", "4", "--active", "2",
    "--rounds", "150", "--local-steps", "2", "--batch-size", "4", "--eval-every", "2", "--set", "model.hidden=4",
    "--set", "model.latent=3", "--set", "fedgen.generator_steps=2", "--set", "fedgen.hidden=4",
    "--checkpoint-every", "0",
]  # fmt: skip


def _start(cache: Path, *arguments: str | Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "fedgen", *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _wait_until(process: subprocess.Popen[Any], seen: Callable[[], bool]) -> None:
    """Return as soon as something is seen, or the process has ended."""
    deadline = time.monotonic() + 120
    while not seen() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.0005)


def test_killed_at_random_and_while_writing_a_checkpoint(tmp_path: Path) -> None:
    whole, cut, cache = tmp_path / "whole", tmp_path / "cut", tmp_path / "cache"
    assert _start(cache, *RUN, "--out", whole).wait(timeout=300) == 0

    generator = random.Random(0)
    process = _start(cache, *RUN, "--out", cut)
    kills = 0
    for attempt in range(6):
        _wait_until(
            process, lambda: any(cut.glob("checkpoint.*.tmp"))
        )  # training goes on; a checkpoint is half written
        if attempt % 2:
            time.sleep(generator.uniform(0.0, 0.4))  # wherever it is then
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait(timeout=60)
        process = _start(cache, "run", "--resume", "--out", cut, "--checkpoint-every", "0")
    assert process.wait(timeout=300) == 0
    assert kills >= 4
    assert (cut / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert not list(cut.glob("*.tmp")), "what a kill left behind is cleared away"
    for model in (whole / "models").iterdir():
        assert (cut / "models" / model.name).read_bytes() == model.read_bytes()


def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    out, cache = tmp_path / "run", tmp_path / "cache"
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "JAX_PLATFORMS": "cpu", "COLUMNS": "200"}
    command = [sys.executable, "-m", "fedgen", *RUN[:-2], "--rounds", "100000", "--out", str(out)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    _wait_until(process, (out / "metrics.jsonl").exists)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert f"fedgen run --resume --out {out}" in said
    assert (out / "checkpoint.safetensors").exists()
    assert "Traceback" not in said
