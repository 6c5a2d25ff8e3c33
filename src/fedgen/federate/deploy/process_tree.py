"""A process and all its descendants, so that none of them is left running.

Flower detaches some of its helpers into their own sessions, which signals to a process group do not reach. psutil
remembers when each process was started and does not touch a later process that was given the same pid.
"""

import contextlib
import time
from collections.abc import Iterable

import psutil

_TIMEOUT = 60.0  # seconds that killed processes have to disappear; they need milliseconds, unless the machine is stuck


def process_tree(roots: Iterable[int]) -> list[psutil.Process]:
    """These processes and all their descendants that are running now."""
    found: dict[int, psutil.Process] = {}
    for pid in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            found |= {process.pid: process for process in (root, *root.children(recursive=True))}
    return [process for process in found.values() if is_running(process)]


def marked(variable: str, value: str) -> list[psutil.Process]:
    """The processes of this user that were started with this in their environment, whoever is their parent now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(variable) == value:
                found.append(process)
    return found


def kill(processes: Iterable[psutil.Process]) -> None:
    """Kill these processes and wait until they are gone."""
    deadline = time.monotonic() + _TIMEOUT
    left = list(processes)
    while (left := [process for process in left if is_running(process)]) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def is_running(process: psutil.Process) -> bool:
    """Whether this very process runs: not a later one with its pid, and not one that waits for its parent to reap it.

    Reaping is left to the parent: psutil's own `wait` would take our children's exit codes from `subprocess`.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
