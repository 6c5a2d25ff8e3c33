"""A sweep from the shell to its tables: many runs of the paper's CNN, with all compiling."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from fedgen.bench.child import own_environment
from fedgen.errors import FedgenError
from fedgen.files import read_json

SEEDS = 3
PATIENCE = 1500.0  # seconds: less than a part of the benchmark may take, which would leave the command behind


def sweep(folder: Path, quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of `fedgen sweep` with an empty compilation cache: 480 runs of 200 rounds on a GPU, a few on a CPU."""
    on_cpu = jax.default_backend() == "cpu"
    trials, rounds = (2, 5 if quick else 20) if on_cpu else (8 if quick else 80, 200)
    algorithms = ("fedavg", "fedgen")
    words = [word for name in algorithms for word in ("--algorithm", name)]
    words += ["--over", "lr=0.01..0.2:log", "--trials", str(trials), "--seeds", str(SEEDS), "--rounds", str(rounds)]
    say(f"fedgen sweep, {len(algorithms) * trials * SEEDS} runs of {rounds} rounds")
    out = folder / "sweep"
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        done = subprocess.run(
            [sys.executable, "-m", "fedgen", "sweep", *words, "--final-seeds", "0", "--out", str(out)],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=own_environment(folder / "sweep-cache"),
            timeout=PATIENCE,
            check=False,
        )
        seconds = time.perf_counter() - start
        log.seek(0)
        said = log.read().decode(errors="replace")
    if done.returncode:
        raise FedgenError(f"fedgen sweep ended with {done.returncode}: {said.strip()[-200:]}")
    found = read_json(out / "sweep.json")
    runs = sum(one["tried"] for one in found["algorithms"]) * SEEDS
    return {"algorithms": list(algorithms), "runs": runs, "rounds": rounds, "seconds": seconds}
