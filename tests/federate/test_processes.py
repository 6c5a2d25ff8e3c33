"""Ports for processes: free ones, and none that an outgoing connection might take meanwhile."""

import socket

import pytest

from fedgen.errors import FedgenError
from fedgen.federate.deploy import processes
from fedgen.federate.deploy.processes import free_port


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
