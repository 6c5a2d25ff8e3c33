"""Flower's processes on this machine: started with the settings a federation needs, and stopped by their ids."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.federate.apps import SERVER_VARIABLE
from fedgen.federate.folders import CONNECTION, Place

_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}
_GRACE = 10.0  # seconds that a process has to end by itself
_START = 60.0  # seconds that SuperLink has to answer


class Processes:
    """The processes of one federation. Each leads a group of its own, so that its children end with it."""

    def __init__(self, place: Place, *, tls: bool, port: int = 0) -> None:
        self.place, self.tls = place, tls
        self.port = port or free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Where SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def start_superlink(self) -> None:
        """Start SuperLink and wait until it answers."""
        server = self.place.server
        command = [
            executable("flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port),
            "--database", str(server / "superlink.sqlite"), "--disable-runtime-dependency-installation",
        ]  # fmt: skip
        if self.tls:
            command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.crt")]
            command += ["--ssl-keyfile", str(server / "server.key"), "--enable-supernode-auth"]
        else:
            command += ["--insecure"]
        self.start("superlink", command, server, {SERVER_VARIABLE: str(server)})
        deadline = time.monotonic() + _START
        while not _answers(self.port):
            if self.running["superlink"].poll() is not None or time.monotonic() > deadline:
                raise FedgenError(f"SuperLink did not start; see {self.log('superlink')}")
            time.sleep(0.1)

    def start_site(self, name: str, *, key: Path | None = None, trust: Path | None = None, **more: str) -> None:
        """Start a site's SuperNode in the site's folder."""
        folder = self.place.site(name)
        command = [
            executable("flower-supernode"), "--superlink", self.address, "--host", "127.0.0.1",
            "--port", str(free_port()), "--node-config", f'folder="{folder}"',
        ]  # fmt: skip
        if self.tls:
            command += ["--root-certificates", str(trust or folder / "ca.crt")]
            command += ["--auth-supernode-private-key", str(key or self.place.site_key(name))]
        else:
            command += ["--insecure"]
        for option, value in more.items():
            command += [f"--{option.replace('_', '-')}", value]
        self.start(name, command, folder, {})

    def register(self, names: list[str]) -> None:
        """Tell SuperLink the sites' public keys, each under its site's name."""
        for name in names:
            self.flwr("supernode", "register", str(self.place.public_key(name)), CONNECTION, "--name", name)

    def submit(self, run: str = "run") -> None:
        """Start the app, as the run of this name; where its folder has a checkpoint, the run goes on there."""
        self.flwr("run", str(self.place.app), CONNECTION, "--run-config", f'run="{run}"')

    def flwr(self, *arguments: str) -> str:
        """One `flwr` command against this SuperLink."""
        command = [executable("flwr"), *arguments]
        done = subprocess.run(
            command,
            env=self._environment(self.place.server, {}),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode:
            raise FedgenError(f"`flwr {arguments[0]}` failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def start(self, name: str, command: list[str], folder: Path, more: Mapping[str, str]) -> None:
        """Start a process in a folder; what it says goes to a file of its own."""
        with self.log(name).open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, cwd=folder, env=self._environment(folder, more), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def log(self, name: str) -> Path:
        """The file with what a process says."""
        return self.place.root / f"{name}.log"

    def kill(self, name: str) -> None:
        """End a process and all it started at once, as a power failure would."""
        process = self.running.pop(name)
        _signal_group(process, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """End all processes, the sites first: politely, then by force."""
        order = sorted(self.running, key=lambda name: name == "superlink")
        for name in order:
            self.running[name].send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE
        for name in order:
            process = self.running.pop(name)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            _signal_group(process, signal.SIGKILL)
            process.wait()

    def _environment(self, folder: Path, more: Mapping[str, str]) -> dict[str, str]:
        # Flower starts its helpers by name, and keeps settings and apps in FLWR_HOME.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return {**os.environ, **_QUIET, "PATH": path, "FLWR_HOME": str(folder / "flower"), **more}


@contextlib.contextmanager
def stopping(processes: Processes) -> Iterator[Processes]:
    """All processes end with this block, however it ends; SIGTERM ends it as Ctrl-C does."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield processes
    finally:
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave processes behind
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            processes.stop()
        finally:
            signal.signal(signal.SIGINT, ignored)
            signal.signal(signal.SIGTERM, previous)


def executable(name: str) -> str:
    """One of Flower's commands, beside this Python or on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FedgenError(f"{name} is not installed; install FedGen with its extra: pip install 'fedgen[flower]'")
    return found


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # The group has the id of the process that leads it, also when that one has ended before its children.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
