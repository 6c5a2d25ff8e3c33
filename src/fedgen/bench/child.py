"""A peer in a separate process, and measurements of the whole `fedgen run` command."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder

# Not as `-m`: what a peer sends to its child processes must be importable there, and `__main__` is not.
_START = "import sys; from fedgen.bench.peers.{} import main; main(*sys.argv[1:])"
PATIENCE = 300.0  # seconds that a peer may take to start and for a few rounds, or `fedgen run` in all


class Peer:
    """One of `fedgen.bench.peers`, driven by its protocol."""

    def __init__(self, module: str, *arguments: str, rounds: int = 1) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the peer is)
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START.format(module), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **quiet, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"},
        )
        self._rounds = rounds

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=15)
        except (subprocess.TimeoutExpired, OSError):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def play(self, rounds: int) -> dict[str, list[float]]:
        """The seconds and losses of the next rounds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{rounds}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise self._failure() from None
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._process.kill()

        limit = threading.Timer(PATIENCE, give_up)
        limit.daemon = True  # an interrupt does not wait for it
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        if late.is_set():
            raise FedgenError(f"it gave no answer within {PATIENCE:.0f} s")
        if not line:
            raise self._failure()
        answer: dict[str, list[float]] = json.loads(line)
        return answer

    def round(self) -> float:
        """Seconds of a round."""
        seconds = self.play(self._rounds)["seconds"]
        return sum(seconds) / len(seconds)

    def _failure(self) -> FedgenError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=15)
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return FedgenError(f"it ended early: {lines[-1] if lines else self._process.returncode}")


def missing(*modules: str) -> str | None:
    """Which of these modules is not installed."""
    return next((name for name in modules if find_spec(name) is None), None)


def own_environment(cache: Path) -> dict[str, str]:
    """The environment without what the user has set for other runs: a cache that is not empty, other hosts."""
    kept = {key: value for key, value in os.environ.items() if key not in ("JAX_COMPILATION_CACHE_DIR", "FEDGEN_HOSTS")}
    return {**kept, "XDG_CACHE_HOME": str(cache)}


def command(arguments: Sequence[str], folder: Path, cache: Path) -> dict[str, Any]:
    """Run `fedgen run` once: seconds until its first record and of compiling, and its peak memory in bytes."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedgen", "run", *arguments, "--out", str(folder)],
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=own_environment(cache),
        )
        metrics, first, peak = folder / "metrics.jsonl", None, None
        while process.poll() is None:
            if first is None and metrics.exists() and metrics.stat().st_size > 0:
                first = time.monotonic() - start
            peak = _peak_memory(process.pid) or peak
            if time.monotonic() - start > PATIENCE:
                process.kill()
                process.wait()
                raise FedgenError(f"fedgen run did not end within {PATIENCE:.0f} s")
            time.sleep(0.02)
        log.seek(0)
        said = log.read().decode(errors="replace")
    if process.returncode or first is None:
        raise FedgenError(f"fedgen run ended with {process.returncode}: {said.strip()[-200:]}")
    results = RunFolder(folder).summary()["results"]
    return {"first_round": first, "compiling": sum(row["seconds_compile"] for row in results), "peak_bytes": peak}


def _peak_memory(pid: int) -> int | None:
    """The peak of a process's resident memory so far, where the system reports it.

    Not what `wait4` tells when it has ended: on Linux a process inherits the peak of the one that started it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
