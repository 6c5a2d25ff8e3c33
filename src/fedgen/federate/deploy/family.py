"""A process and all that descend from it, so that nothing of it is left behind.

Flower detaches some of its helpers into sessions of their own, where signals to a process group do not reach
them. Each process is remembered with the moment of its start: a number that was given anew is left alone.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_GONE = 10.0  # seconds that a killed process has to disappear


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    started: str


def family(roots: Iterable[int]) -> list[Process]:
    """These processes and all their descendants that are alive now."""
    everybody = _everybody()
    found, wanted = [], set(roots)
    while members := [p for p in everybody if p.pid in wanted]:
        found += members
        wanted = {p.pid for p in everybody if p.parent in {m.pid for m in members}} - {p.pid for p in found}
    return found


def kill(processes: Iterable[Process]) -> None:
    """End these processes at once, those that still are the ones they were, and wait until they are gone."""
    known = {(p.pid, p.started) for p in processes}
    deadline = time.monotonic() + _GONE
    while alive := [p for p in _everybody() if (p.pid, p.started) in known]:
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)


def _everybody() -> list[Process]:
    """All living processes; those that have ended and only wait to be asked how are not among them."""
    if not Path("/proc/self/stat").exists():
        lines = subprocess.run(["ps", "-axo", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True).stdout
        rows = [line.split(maxsplit=2) for line in lines.splitlines()]
        return [Process(int(pid), int(parent), started) for pid, parent, started in rows]
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in brackets may hold anything; what follows are fields 3 (state), 4 (parent) ... 22 (start).
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    found.append(Process(int(entry.name), int(fields[1]), fields[19]))
    return found
