"""Processes: ports that are free, and that no outgoing connection might take meanwhile; nothing is left running."""

import socket
import time
from pathlib import Path

import pytest
from real import left_behind

from fedgen.errors import FedgenError
from fedgen.federate.deploy import processes
from fedgen.federate.deploy.folders import new_folder
from fedgen.federate.deploy.processes import free_port, processes_of


def test_ports_are_drawn_at_random() -> None:
    assert len({free_port() for _ in range(20)}) > 15, "so that two who draw at once hardly ever get the same"


def test_no_port_is_one_for_outgoing_connections() -> None:
    assert max(processes._PORTS) < 32_768, "where Linux's default range for them begins"


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_somebody_listens_on_is_not_given(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    free = free_port()
    with socket.create_server((address, free_port())) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr(processes, "_PORTS", [taken, free])
        assert {free_port() for _ in range(20)} == {free}
        monkeypatch.setattr(processes, "_PORTS", [taken])
        with pytest.raises(FedgenError, match="no port"):
            free_port()


def test_what_a_process_started_in_a_session_of_its_own_before_it_died_is_stopped_too(tmp_path: Path) -> None:
    """As a ClientApp of a SuperNode that is stopped in that moment: it is nobody's descendant then."""
    folders, script = new_folder(tmp_path / "federation"), tmp_path / "start.sh"
    script.write_text("(setsid sleep 600 &)\n")
    with processes_of(folders, free_port()) as running:
        running.start("site", script)
        running.running["site"].wait()
        deadline = time.monotonic() + 60
        while not (left := left_behind(folders.root)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(left) == 1
    assert not left_behind(folders.root)
