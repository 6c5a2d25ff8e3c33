"""Flower's processes on this machine, started with the federation's scripts and stopped with all their children."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.federate.deploy.folders import Folders
from fedgen.federate.deploy.process_tree import kill, marked, process_tree
from fedgen.federate.deploy.scripts import PORT_VARIABLE
from fedgen.federate.flower import OPENS_INTERFACES

_MARK = "FEDGEN_STARTED_IN"  # in the environment of all that is started here, and of what that starts
_SWEEPS = 5  # for what a process started while it was stopped
_PORTS = range(15_000, 30_000)
_GRACE = 10.0  # seconds that a process has to exit after SIGTERM
_START = 300.0  # seconds that SuperLink has to start answering
_COMMAND = 600.0  # seconds that a `flwr` command may take


class Processes:
    """The processes of one federation, each in a new session, so that a Ctrl-C meant for us does not reach them."""

    def __init__(self, folders: Folders, port: int) -> None:
        self.folders, self.port = folders, port
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        if shutil.which("flower-superlink", path=_path()) is None:
            raise FedgenError("Flower is not installed: pip install '.[flower]' in FedGen's folder")

    def start_superlink(self) -> None:
        """Start SuperLink and wait until it answers."""
        self.start("superlink", self.folders.server / "superlink.sh")
        deadline = time.monotonic() + _START
        while not _answers(self.port):
            if self.running["superlink"].poll() is not None or time.monotonic() > deadline:
                raise FedgenError(f"SuperLink did not start; see {self.log('superlink')}")
            time.sleep(0.1)

    def start_site(self, name: str) -> None:
        """Start a site's SuperNode in the site's folder."""
        self.start(name, self.folders.site(name) / "start.sh")

    def register(self) -> None:
        """Register the sites' public keys with SuperLink, each under its site's name."""
        self._finish(self.folders.server / "register.sh")

    def submit(self, run: str) -> None:
        """Start the app as the run of this name; where its folder has a checkpoint, the run is resumed."""
        self._finish(self.folders.server / "run.sh", run)

    def start(self, name: str, script: Path) -> None:
        """Start a script that keeps running; its output goes to its own log file."""
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                ["/bin/sh", script], env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.folders.root / "logs" / f"{name}.log"

    def kill(self, name: str) -> None:
        """Kill a process and all its descendants at once, as a power failure would."""
        process = self.running.pop(name)
        kill(process_tree([process.pid]))
        process.wait()

    def stop(self) -> None:
        """Stop all processes, the sites first: SIGTERM, then SIGKILL."""
        order = sorted(self.running, key=lambda name: name == "superlink")
        everything = process_tree(process.pid for process in self.running.values())
        for name in order:
            self.running[name].send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for name in order:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.running[name].wait(max(deadline - time.monotonic(), 0.1))
        kill([*everything, *process_tree(process.pid for process in self.running.values())])
        for name in order:
            self.running.pop(name).wait()
        # A SuperNode may start a ClientApp after we looked, and die before it: then that is nobody's descendant.
        for _ in range(_SWEEPS):
            if not (strays := marked(_MARK, str(self.folders.root))):
                break
            kill(strays)

    def environment(self) -> dict[str, str]:
        """What a script is started with: nothing that opens another interface, and a mark to find what it starts."""
        inherited = {name: value for name, value in os.environ.items() if name not in OPENS_INTERFACES}
        return {**inherited, "PATH": _path(), PORT_VARIABLE: str(free_port()), _MARK: str(self.folders.root)}

    def _finish(self, script: Path, *arguments: str) -> None:
        command = ["/bin/sh", str(script), *arguments]
        try:
            done = subprocess.run(
                command, env=self.environment(), capture_output=True, text=True, timeout=_COMMAND, check=False
            )
        except subprocess.TimeoutExpired:
            raise FedgenError(f"{script} did not end within {_COMMAND:g} seconds") from None
        if done.returncode:
            raise FedgenError(f"{script} failed: {(done.stderr or done.stdout).strip()[-500:]}")


@contextlib.contextmanager
def processes_of(folders: Folders, port: int) -> Iterator[Processes]:
    """Stops all processes when the block ends, however it ends; SIGTERM interrupts it as Ctrl-C does.

    SIGINT is handled also where it was ignored before, as in a background job of a shell script.
    """

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    processes = Processes(folders, port)
    (folders.root / "logs").mkdir(exist_ok=True)
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield processes
    finally:
        for number in before:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must leave nothing behind
        try:
            processes.stop()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def free_port() -> int:
    """A port of the loopback interface that nobody listens on.

    It is below the range that the system uses for outgoing connections, one of which might take it meanwhile.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError):
            try_port(port)
            return port
    raise FedgenError("no port of the loopback interface is free")


def try_port(port: int) -> None:
    """Listen on a port of the loopback interface for a moment; an OSError says why that cannot be."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        probe.bind(("127.0.0.1", port))
        probe.listen(1)  # which fails where somebody listens on all interfaces


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
