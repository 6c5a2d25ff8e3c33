"""Ports for processes: free ones, and none that an outgoing connection might take meanwhile."""

import socket
from pathlib import Path

import pytest

from fedgen.errors import FedgenError
from fedgen.federate import processes
from fedgen.federate.processes import free_port


def test_a_port_is_free_and_not_one_for_outgoing_connections() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = {free_port() for _ in range(20)}
    assert len(found) > 15, "drawn at random, so that two who draw at once hardly ever get the same"
    if first < 30_000:
        pytest.skip(f"this system gives outgoing connections all ports from {first} on")
    assert not [port for port in found if first <= port <= last]


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
