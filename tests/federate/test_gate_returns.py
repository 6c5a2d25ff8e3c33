"""A site that lost a message gets it again, and a site that returns is taken back at once."""

import threading
import time
from typing import Any

import httpx
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.control_pb2 import ListNodesResponse
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from gate_fixture import PATIENCE, Fixture
from gate_traffic import Letter, asked, confirm, objects, pulled

from fedgen.federate.deploy.keys import public_keys
from fedgen.federate.flower import CONTROL_LIST_NODES, CONTROL_LIST_RUNS, NODE_ONLINE
from fedgen.federate.gate import connections, messages
from fedgen.federate.gate import gate as gate_module
from fedgen.federate.gate.http import HttpConnection
from fedgen.federate.gate.rules import ACTIVATE, CONFIRM, DEACTIVATE, HEARTBEAT, PULL_MESSAGE, PULL_OBJECT, PUSH_OBJECT
from fedgen.federate.journal import GATE_JOURNAL, read_journal


def pull(gate: Fixture) -> list[str]:
    """The ids of the messages that a site gets."""
    response = PullMessagesResponse.FromString(gate.post(PULL_MESSAGE, b"").content)
    return [message.metadata.message_id for message in response.messages_list]


def answer(gate: Fixture, letter: Letter) -> None:
    opened = PushMessagesResponse.FromString(gate.post(messages_path(), letter.announcement).content)
    for push in letter.pushes(opened):
        assert gate.post(PUSH_OBJECT, push).status_code == 200


def messages_path() -> str:
    return PULL_MESSAGE.replace("pull", "push")


def test_a_message_that_was_lost_is_offered_again_until_it_is_answered(gate: Fixture) -> None:
    letter = Letter({"weights": np.zeros(3)})
    gate.down = pulled(letter.question)
    (name,) = pull(gate)  # say that this response was lost on the way
    gate.down = PullMessagesResponse()  # SuperLink hands it out once
    assert pull(gate) == [name]
    assert gate.post(CONFIRM, confirm(name)).status_code == 200
    assert CONFIRM not in gate.came, "SuperLink would delete what the site may lose"
    assert pull(gate) == [name], "its SuperNode was killed while it trained, and has come back"
    answer(gate, letter)
    assert gate.came[-1] == CONFIRM
    assert pull(gate) == []


@pytest.mark.filterwarnings("ignore:.verify=:DeprecationWarning")  # of httpx, at how Flower calls it
def test_a_supernode_whose_message_the_gate_has_forgotten_gives_that_up(gate: Fixture) -> None:
    """It has got the message, the gate is started again, and it asks for the run: it then asks for the next message."""
    key: Any = load_ssh_private_key(gate.folders.site_key("north").read_bytes(), None)
    address, authority = f"127.0.0.1:{gate.port}", str(gate.folders.authority / "ca.crt")
    signer = NodeAuthHttpInterceptor(key, key.public_key())
    with FleetHttpClient.from_server_address(address, False, authority, interceptors=[signer]) as client:
        with pytest.raises(RunNotRunningException):
            make_simple_http_retry_invoker().invoke(client.GetRun, GetRunRequest(run_id=1))
        gate.down = pulled(asked())
        assert client.PullMessages(PullMessagesRequest()).messages_list
    assert [e["status"] for e in gate.refused] == [403], "which is no strike"


def test_a_message_is_not_offered_without_end(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.down = pulled(asked("first"))
    (first,) = pull(gate)
    gate.down = PullMessagesResponse()
    assert [pull(gate) for _ in range(4)] == [[first], [first], [], []], "what it fails at each time is let be"
    gate.down = pulled(asked("second"))
    (second,) = pull(gate)
    gate.down = pulled(asked("third"))
    (third,) = pull(gate)
    gate.down = PullMessagesResponse()
    assert second not in (first, third)
    assert pull(gate) == [third], "and what the server no longer waits for"
    late = time.time() + 1e9
    monkeypatch.setattr(messages.time, "time", lambda: late)
    assert pull(gate) == [], "too late to be answered"


@pytest.mark.parametrize("way", ["given up", "ended"])
def test_what_the_server_gave_up_is_not_offered_again(way: str, gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    question = asked()
    gate.down = pulled(question)
    (name,) = pull(gate)
    gate.down = PullMessagesResponse()
    part = PullObjectRequest(object_id=next(iter(objects(pulled(question).message_object_trees[0]))), run_id=1)
    honest = gate.answer
    gone = PullObjectResponse(object_found=False).SerializeToString()
    monkeypatch.setattr(gate, "answer", lambda target, body: gone if target == PULL_OBJECT else honest(target, body))
    gate.status = 403 if way == "ended" else 200
    gate.post(PULL_OBJECT, part.SerializeToString())
    gate.status = 200
    assert name
    assert pull(gate) == []


def test_the_gate_has_superlink_forget_finished_runs(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(gate_module, "_TIDY", 0.05)
    gate: Fixture = request.getfixturevalue("gate")
    deadline = time.monotonic() + PATIENCE
    while gate.came.count(CONTROL_LIST_RUNS) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert set(gate.came) == {CONTROL_LIST_RUNS}


class Returning:
    """A SuperLink that takes the site for connected, until it is told otherwise."""

    def __init__(self, gate: Fixture) -> None:
        self.gate, self.online = gate, True
        self.key = public_keys(gate.folders.server / "keys")["north"]
        self.honest = gate.answer

    def answer(self, target: str, body: bytes) -> bytes:
        self.gate.status = 200
        if target == ACTIVATE:
            if self.online:
                self.gate.status = 412
                return b'{"code": 2004}'
            self.online = True
            return ActivateNodeResponse(node_id=7).SerializeToString()
        if target == DEACTIVATE:
            self.online = False
        if target == CONTROL_LIST_NODES:
            nodes = [NodeInfo(node_id=n, public_key=key, status=NODE_ONLINE) for n, key in ((8, b"x"), (7, self.key))]
            return ListNodesResponse(nodes_info=nodes).SerializeToString()
        return self.honest(target, body)


def activate(gate: Fixture, client: httpx.Client, key: bytes) -> httpx.Response:
    request = ActivateNodeRequest(public_key=key, heartbeat_interval=30).SerializeToString()
    return client.post(ACTIVATE, content=request, headers=gate.headers())


def test_a_site_that_returns_is_activated_at_once(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = Returning(gate)
    monkeypatch.setattr(gate, "answer", superlink.answer)
    with gate.client() as client:
        response = activate(gate, client, superlink.key)
    assert (response.status_code, ActivateNodeResponse.FromString(response.content).node_id) == (200, 7)
    assert gate.came == [ACTIVATE, CONTROL_LIST_NODES, DEACTIVATE, ACTIVATE]
    assert [e["site"] for e in read_journal(gate.folders.server / GATE_JOURNAL) if e["event"] == "returned"] == [
        "north"
    ]


def test_a_site_that_returns_while_the_server_waits_for_it_is_never_said_to_be_gone(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.down = pulled(asked())
    (name,) = pull(gate)
    gate.down = PullMessagesResponse()
    superlink = Returning(gate)
    monkeypatch.setattr(gate, "answer", superlink.answer)
    del gate.seen[:]
    with gate.client() as client:
        response = activate(gate, client, superlink.key)
    assert (response.status_code, ActivateNodeResponse.FromString(response.content).node_id) == (200, 7)
    assert gate.came == [ACTIVATE, CONTROL_LIST_NODES, HEARTBEAT]
    assert pull(gate) == [name], "which it can still answer"


def test_a_second_supernode_with_the_same_key_is_refused(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    superlink = Returning(gate)
    monkeypatch.setattr(gate, "answer", superlink.answer)
    with gate.client() as first:
        assert first.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 200
        with gate.client() as second:
            response = activate(gate, second, superlink.key)
        assert response.status_code == 412
        assert "another SuperNode with this site's key is connected" in response.text
        assert superlink.online
        monkeypatch.setattr(connections, "IN_USE", 0.0)  # as one that has lost its network: silent for long
        with gate.client() as second:
            assert activate(gate, second, superlink.key).status_code == 200


def test_what_was_sent_to_a_key_that_was_replaced_is_not_offered_to_the_new_one(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_KEYS_EVERY", 0.0)
    gate.down = pulled(asked("to the old key"))
    assert len(pull(gate)) == 1
    gate.down = PullMessagesResponse()
    ours, other = (gate.folders.server / "keys" / f"{name}.pub" for name in ("north", "south"))
    kept, theirs = ours.read_bytes(), other.read_bytes()
    try:
        ours.write_bytes(theirs)  # another key, and then its own again: twice replaced
        other.write_bytes(kept)
        gate.post(HEARTBEAT, b"", "south")
    finally:
        ours.write_bytes(kept)
        other.write_bytes(theirs)
    assert pull(gate) == []


def test_a_request_of_a_key_that_is_replaced_meanwhile_does_not_touch_what_the_new_one_sends(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_KEYS_EVERY", 0.0)
    reads_a_body, read = threading.Event(), HttpConnection.body

    async def body(connection: HttpConnection) -> bytes:
        reads_a_body.set()
        return await read(connection)

    letter = Letter({"weights": np.zeros(3)})
    gate.down = pulled(letter.question)
    assert len(pull(gate)) == 1
    ours, other = (gate.folders.public_key(name) for name in ("north", "south"))
    kept, theirs = ours.read_bytes(), other.read_bytes()
    monkeypatch.setattr(HttpConnection, "body", body)
    with gate.connect() as old:
        said = {**gate.headers(), "content-length": len(letter.announcement), "host": "x"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        old.sendall(f"POST {messages_path()} HTTP/1.1\r\n{lines}\r\n".encode() + letter.announcement[:-1])
        assert reads_a_body.wait(PATIENCE)
        try:
            ours.write_bytes(theirs)
            other.write_bytes(kept)
            assert gate.post(PULL_MESSAGE, b"", "south").status_code == 200  # who is north from now on
            opened = gate.post(messages_path(), letter.announcement, "south").content
            first, *rest = letter.pushes(PushMessagesResponse.FromString(opened))
            assert gate.post(PUSH_OBJECT, first, "south").status_code == 200
            old.sendall(letter.announcement[-1:])
            assert b" 412 " in old.recv(4096)
            assert [gate.post(PUSH_OBJECT, push, "south").status_code for push in rest] == [200] * len(rest)
        finally:
            ours.write_bytes(kept)
            other.write_bytes(theirs)
    assert gate.came[-1] == CONFIRM, "SuperLink has all of the answer"
    assert [e["reason"] for e in gate.refused] == ["the key was removed or replaced meanwhile"]
