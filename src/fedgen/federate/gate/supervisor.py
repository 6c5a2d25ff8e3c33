"""Starts SuperLink and the gate, and stops both together."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedgen.errors import FedgenError
from fedgen.federate.deploy.keys import public_keys
from fedgen.federate.deploy.turns import only_gate
from fedgen.federate.flower import OPENS_INTERFACES
from fedgen.federate.gate.gate import Address, Gate
from fedgen.federate.schema import ServerSettings, read_settings

_START, _STOP = 300.0, 10.0  # seconds that SuperLink has to start answering, and to exit
_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


def parse_address(text: str) -> Address:
    """HOST:PORT."""
    host, sign, port = text.rpartition(":")
    if not (sign and host and port.isdigit() and 0 < int(port) < 65536):
        raise FedgenError(f"'{text}' is not an address such as 0.0.0.0:8000")
    return Address(host.strip("[]"), int(port))


def open_gate(folder: Path, listen: Address, superlink: Address, command: list[str]) -> int:
    """Start SuperLink with this command, then the gate; returns when either ends, or after SIGINT or SIGTERM."""
    settings = read_settings(folder / "server.toml", ServerSettings)
    with only_gate(folder):  # before a gate is made: it deletes the answers that an earlier one was receiving
        gate = Gate(folder, public_keys(folder / "keys"), settings.max_message, superlink)
        return asyncio.run(_supervise(gate, listen, superlink, command))


async def _supervise(gate: Gate, listen: Address, superlink: Address, command: list[str]) -> int:
    """SuperLink is started first: the gate opens only when SuperLink answers."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        process = await asyncio.create_subprocess_exec(*command, env=_environment(), preexec_fn=_end_with(os.getpid()))
    except OSError as error:
        raise FedgenError(f"{command[0]} cannot be started: {error.strerror}") from error
    ends = [asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())]
    try:
        serving = asyncio.create_task(_serve_when_up(gate, listen, superlink))
        await asyncio.wait([*ends, serving], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()  # raises why the gate could not open
        serving.cancel()
        if stop.is_set():
            return 0
        gate.journal.write("closed", reason=f"SuperLink has ended with code {process.returncode}")
        return process.returncode or 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(ends[0]), _STOP)
        except TimeoutError:
            process.kill()
            await ends[0]


def _environment() -> dict[str, str]:
    """SuperLink's environment: ours, without what would open further interfaces to the network."""
    return {name: value for name, value in os.environ.items() if name not in OPENS_INTERFACES}


def _end_with(parent: int) -> Callable[[], None]:
    """What a new process calls to be terminated when its parent ends in any way, by SIGKILL too; on Linux only.

    Without its gate SuperLink would keep its port, and the next start of superlink.sh would fail.
    """
    library = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None

    def call() -> None:
        if library is not None:
            library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it has ended already
                os.kill(os.getpid(), signal.SIGTERM)

    return call


async def _serve_when_up(gate: Gate, listen: Address, superlink: Address) -> None:
    deadline = time.monotonic() + _START
    while True:
        try:
            _, writer = await asyncio.open_connection(*superlink)
            writer.close()
            break
        except OSError:
            if time.monotonic() > deadline:
                raise FedgenError(f"SuperLink does not answer at {superlink.host}:{superlink.port}") from None
            await asyncio.sleep(0.1)
    await gate.serve(listen)
