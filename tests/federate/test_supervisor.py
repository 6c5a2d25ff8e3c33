"""SuperLink lives no longer than its gate, and opens no interface because of the environment."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fedgen.errors import FedgenError
from fedgen.federate.deploy.folders import Folders, write_keys, write_server
from fedgen.federate.deploy.process_tree import is_running, kill, process_tree
from fedgen.federate.deploy.processes import Processes, free_port
from fedgen.federate.deploy.scripts import Endpoints, write_scripts
from fedgen.federate.deploy.turns import changing
from fedgen.federate.flower import OPENS_INTERFACES
from fedgen.federate.gate import supervisor
from fedgen.federate.gate.gate import Address
from fedgen.federate.gate.supervisor import open_gate
from fedgen.federate.journal import GATE_JOURNAL, read_journal
from fedgen.federate.schema import ServerSettings
from locked import held_by_another

PATIENCE = 600.0
# In SuperLink's place: says what it was given and waits to be stopped.
_SUPERLINK = """
import json, os, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    with open("given.json", "w") as file:
        json.dump({"pid": os.getpid(), "environment": dict(os.environ)}, file)
    import signal; signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_superlink_ends_with_its_gate(number: int, tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    write_keys(folders, ["north"], ["127.0.0.1"])
    write_server(folders, ServerSettings(sites=("north",)))
    port = free_port()
    gate = subprocess.Popen(
        [sys.executable, "-m", "fedgen", "federate", "gate", "--listen", f"127.0.0.1:{free_port()}",
         "--superlink", f"127.0.0.1:{port}", "--", sys.executable, "-c", _SUPERLINK, str(port)],
        cwd=folders.server, env={**os.environ, **dict.fromkeys(OPENS_INTERFACES, "1")},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not read_journal(folders.server / GATE_JOURNAL):
            assert gate.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        given = json.loads((folders.server / "given.json").read_text())
        assert not set(OPENS_INTERFACES) & set(given["environment"])
        assert (folders.server / "gate.lock").exists()
        superlink = psutil.Process(given["pid"])
        assert is_running(superlink)
        gate.send_signal(number)
        assert gate.wait(PATIENCE) == (-number if number == signal.SIGKILL else 0)
        while is_running(superlink):
            assert time.monotonic() < deadline, "it was left running"
            time.sleep(0.05)
    finally:
        kill(process_tree([gate.pid]))
        gate.wait(PATIENCE)


def test_a_second_gate_of_the_folder_is_refused_and_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(tmp_path)
    write_keys(folders, ["north"], ["127.0.0.1"])
    write_server(folders, ServerSettings(sites=("north",)))
    half = folders.server / "incoming" / "north" / "part"
    half.parent.mkdir(parents=True)
    half.write_text("half an answer")
    nowhere = Address("127.0.0.1", free_port())
    with held_by_another(folders.server, "gate.lock") as gate:
        with pytest.raises(
            FedgenError, match=rf"server is in use: process {gate.pid} on .*; wait for its end, or stop"
        ):
            open_gate(folders.server, nowhere, nowhere, ["nobody starts this"])
        assert half.exists()
        with changing(folders.server):  # sites may be added while a gate runs
            gate.kill()
            gate.wait()

    async def ended(*_: object) -> int:
        assert (folders.server / "gate.lock").exists()
        return 7

    monkeypatch.setattr(supervisor, "_supervise", ended)
    assert open_gate(folders.server, nowhere, nowhere, ["nobody starts this"]) == 7
    assert not half.exists(), "it was left by the gate that was killed"
    assert not (folders.server / "gate.lock").exists()


def test_no_script_and_no_process_opens_another_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "FLWR_INTERNAL_GRPC_CONTROL_API" in OPENS_INTERFACES
    for name in OPENS_INTERFACES:
        monkeypatch.setenv(name, "1")
    folders = Folders(tmp_path)
    assert not set(OPENS_INTERFACES) & set(Processes(folders, free_port()).environment())
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("fedgen", "python3", "flwr"):  # which print their environment
        (programs / program).write_text("#!/bin/sh\nenv\n")
        (programs / program).chmod(0o755)
    for listen in ("", "0.0.0.0:8000"):
        write_scripts(folders, ["north"], Endpoints(listen, 8001, "127.0.0.1:8000"))
        for script in folders.server.glob("*.sh"):
            path = f"{programs}{os.pathsep}{os.environ['PATH']}"
            done = subprocess.run(
                ["/bin/sh", script], env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True
            )
            assert "FLWR_TELEMETRY_ENABLED=0" in done.stdout
            assert "FLWR_INTERNAL" not in done.stdout, script.name
