"""The gate lets through what sites need: no other path, no other spelling, no stranger, nothing too large."""

import asyncio
import contextlib
import datetime
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf import translation

from fedgen.federate import gate as gate_module
from fedgen.federate.folders import Place, write_keys
from fedgen.federate.gate import Address, Gate, parse_address
from fedgen.federate.gate_rules import PUSH_MESSAGE, PUSH_OBJECT, TARGETS, Rules
from fedgen.federate.journal import GATE_JOURNAL, read_journal
from fedgen.federate.keys import public_keys
from fedgen.federate.processes import free_port

HEARTBEAT = "/v1/fleet/send-node-heartbeat"
MAX_MESSAGE = 10_000_000


class Fixture:
    """A gate in a thread of its own, before a server that takes everything and remembers its first lines."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.port, self.behind = free_port(), free_port()
        self.seen: list[bytes] = []  # whole requests that came through

    @property
    def refused(self) -> list[dict]:
        return [e for e in read_journal(self.place.server / GATE_JOURNAL) if e["event"] == "refused"]

    def headers(self, name: str = "north", age: float = 0.0) -> dict[str, str]:
        key = load_ssh_private_key(self.place.site_key(name).read_bytes(), None)
        signed_at = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
        return {
            "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
            "flwr-timestamp": signed_at,
            "flwr-signature": b64encode(sign_message(key, signed_at.encode())).decode(),
        }

    def client(self) -> httpx.Client:
        trusted = ssl.create_default_context(cafile=self.place.authority / "ca.crt")
        return httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=trusted, trust_env=False)

    def connect(self) -> ssl.SSLSocket:
        trusted = ssl.create_default_context(cafile=self.place.authority / "ca.crt")
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        return trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    def raw(self, head: str) -> bytes:
        """The answer to these bytes, until the gate hangs up."""
        with self.connect() as connection:
            connection.sendall(head.encode())
            found = b""
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                while some := connection.recv(4096):
                    found += some
            return found

    async def upstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(r[15:]) for r in head.lower().split(b"\r\n") if r.startswith(b"content-length:"))
                self.seen.append(head + await reader.readexactly(length))
                writer.write(b"HTTP/1.1 200 OK\r\nflwr-note: hello\r\nx-other: no\r\ncontent-length: 3\r\n\r\nyes")
                await writer.drain()
        writer.close()

    async def live(self, ready: threading.Event, stop: asyncio.Event) -> None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.place.server / "server.crt", self.place.server / "server.key")
        rules = Rules(public_keys(self.place.server / "keys"), MAX_MESSAGE)
        gate = Gate(self.place.server, rules, Address("127.0.0.1", self.behind))
        async with await asyncio.start_server(self.upstream, "127.0.0.1", self.behind, ssl=tls):
            serving = asyncio.create_task(gate.serve(Address("127.0.0.1", self.port)))
            while not (self.place.server / GATE_JOURNAL).exists():
                await asyncio.sleep(0.01)
            ready.set()
            await stop.wait()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("gate"))
    write_keys(place, ["north", "south", "stranger"], ["127.0.0.1"])
    place.public_key("stranger").unlink()
    return place


@pytest.fixture
def gate(keys: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixture]:
    monkeypatch.setattr(gate_module, "_LINGER", 0.1)
    (keys.server / GATE_JOURNAL).unlink(missing_ok=True)
    fixture, ready, stop = Fixture(keys), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(fixture.live(ready, stop)))
    thread.start()
    assert ready.wait(30)
    try:
        yield fixture
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


def test_its_targets_are_those_of_the_installed_flower() -> None:
    fleet = {path for _, path in translation.PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    # Sites do not register themselves where they have keys, and SuperLink refuses it there.
    assert fleet - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"} == TARGETS


def test_what_a_site_asks_passes_as_a_new_request(gate: Fixture) -> None:
    with gate.client() as client:
        for number in range(3):
            more = {"x-forwarded-for": "10.0.0.1", "cookie": "a=b", "content-type": "application/protobuf"}
            answer = client.post(HEARTBEAT, content=b"x" * number, headers={**gate.headers(), **more})
            assert (answer.status_code, answer.text) == (200, "yes")
            assert answer.headers["flwr-note"] == "hello"
            assert "x-other" not in answer.headers
    assert len(gate.seen) == 3
    assert gate.seen[2].startswith(f"POST {HEARTBEAT} HTTP/1.1\r\n".encode())
    assert gate.seen[2].endswith(b"\r\n\r\nxx")
    assert b"cookie" not in gate.seen[2].lower()
    assert b"x-forwarded-for" not in gate.seen[2].lower()
    assert b"flwr-signature" in gate.seen[2]
    assert not gate.refused


TRICKS = [
    "/v1/control/list-runs",
    "/v1/control/register-node",
    "/v1/control/start-run",
    "/v1/runtime/get-nodes",
    "/v1/fleet/register-node",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "/v1/fleet/..;/control/list-runs",
    "/v1//fleet/get-run",
    "//v1/fleet/get-run",
    "/v1/fleet/get-run/",
    "/v1/fleet/get-run?x=1",
    "/v1/fleet/get-run#x",
    "/v1/fleet/get%2Drun",
    "/V1/FLEET/GET-RUN",
    "/v1/fleet\\get-run",
    "https://127.0.0.1/v1/fleet/get-run",
    "http://127.0.0.1/v1/control/list-runs",
    "/docs",
    "/",
    "*",
]


def test_no_other_path_and_no_other_spelling_passes(gate: Fixture) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    for target in TRICKS:
        answer = gate.raw(f"POST {target} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{signed}\r\n")
        assert answer.startswith(b"HTTP/1.1 403 "), target
    for method in ("GET", "PUT", "OPTIONS", "CONNECT", "post"):
        answer = gate.raw(f"{method} {HEARTBEAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{signed}\r\n")
        assert answer.startswith(b"HTTP/1.1 403 "), method
    assert not gate.seen
    assert {e["status"] for e in gate.refused} == {403}
    assert gate.refused[0]["reason"] == "POST /v1/control/list-runs"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("content-length: 5\r\ntransfer-encoding: chunked", 400),
        ("transfer-encoding: chunked", 400),
        ("transfer-encoding: gzip, chunked", 501),
        ("content-length: 5\r\ncontent-length: 6", 400),
        ("content-length: +5", 400),
        ("content-length: 5\r\nflwr-timestamp: now", 400),
        ("content-length: 5\r\nhost: b", 400),
        ("content-length : 5", 400),
        (" content-length: 5", 411),
        ("content-length: 5\r\nx: a\rb", 400),
        ("", 411),
    ],
)
def test_a_body_of_doubtful_length_is_refused(lines: str, status: int, gate: Fixture) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    hidden = "0\r\n\r\nPOST /v1/control/list-runs HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    head = f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}{lines}{chr(13) + chr(10) if lines else ''}\r\n"
    answer = gate.raw(head + hidden)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert answer.count(b"\r\n\r\n") == 1, "nothing after it was looked at"
    assert not gate.seen


def test_a_request_behind_another_one_is_held_against_the_rules_too(gate: Fixture) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    first = f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}content-length: 0\r\n\r\n"
    answer = gate.raw(first + "POST /v1/control/list-runs HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 403 " in answer
    assert len(gate.seen) == 1


def test_only_sites_with_a_key_of_the_federation_get_to_superlink(gate: Fixture) -> None:
    wrong = {**gate.headers(), "flwr-signature": gate.headers("south")["flwr-signature"]}
    with gate.client() as client:
        for headers in ({}, gate.headers("stranger"), wrong, gate.headers(age=400), gate.headers(age=-60)):
            assert client.post(HEARTBEAT, content=b"", headers=headers).status_code == 412
    assert not gate.seen
    assert all(e["status"] == 412 and "site" not in e for e in gate.refused), "who it was is not known"


def test_what_is_too_large_is_refused_before_it_is_read_and_written_down_with_its_sender(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_module, "_LINGER", 10.0)

    def push(target: str, size: int, site: str = "north") -> int:
        with gate.client() as client:
            return client.post(target, content=bytes(size), headers=gate.headers(site)).status_code

    def announce() -> int:
        with gate.client() as client:
            return client.post(PUSH_MESSAGE, content=_pushed(), headers=gate.headers()).status_code

    assert push(HEARTBEAT, 2_000_000) == 413
    assert push(PUSH_OBJECT, 7_000_000, "south") == 413
    assert not gate.seen
    # A message that comes in many pieces: the one that makes it too large is refused, and so are those after it.
    assert announce() == 200
    assert [push(PUSH_OBJECT, 4_000_000) for _ in range(4)] == [200, 200, 413, 413]
    assert push(PUSH_OBJECT, 4_000_000, "south") == 200, "which is another site"
    assert announce() == 200
    assert push(PUSH_OBJECT, 4_000_000) == 200, "the next message"
    assert [(e["site"], e["status"]) for e in gate.refused] == [("north", 413), ("south", 413)] + [("north", 413)] * 2
    assert "10,000,000" in gate.refused[-1]["reason"]


def _pushed(answers: str = "question", sender: int = 7, receiver: int = 1, messages: int = 1, trees: int = 1) -> bytes:
    metadata = Metadata(run_id=1, src_node_id=sender, dst_node_id=receiver, reply_to_message_id=answers)
    request = PushMessagesRequest(
        node=Node(node_id=7),
        messages_list=[Message(metadata=metadata)] * messages,
        message_object_trees=[ObjectTree(object_id="root")] * trees,
    )
    return request.SerializeToString()


@pytest.mark.parametrize(
    "body",
    [
        _pushed(answers=""),  # an instruction: SuperLink takes it for the server's if the sender says so
        _pushed(answers="", sender=1, receiver=8),
        _pushed(receiver=8),
        _pushed(sender=8),
        _pushed(messages=2),
        _pushed(messages=0),
        _pushed(trees=2),
        b"\x00" * 10,
    ],
)
def test_a_site_sends_its_own_answers_to_the_server_and_nothing_else(body: bytes, gate: Fixture) -> None:
    with gate.client() as client:
        assert client.post(PUSH_MESSAGE, content=body, headers=gate.headers()).status_code in (400, 403)
        assert not gate.seen
        assert client.post(PUSH_MESSAGE, content=_pushed(), headers=gate.headers()).status_code == 200
    assert gate.seen[0].endswith(_pushed())
    assert [e["site"] for e in gate.refused] == ["north"]


def test_who_does_not_speak_tls_or_trusts_another_authority_hears_nothing(gate: Fixture) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=30) as plain:
        plain.sendall(f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        found = b""
        with contextlib.suppress(ConnectionError):
            found = plain.recv(4096)
        assert b"HTTP" not in found
    with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(("127.0.0.1", gate.port)) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
    assert not gate.seen


def test_the_slow_and_the_many_are_cut_off_and_others_served(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_FROM_ONE_ADDRESS", 5)
    monkeypatch.setattr(gate_module, "_FIRST_HEAD", 1.0)
    monkeypatch.setattr(gate_module, "_BODY", 1.0)
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    beginnings = ["", "POST ", f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}content-length: 9\r\n\r\nshort"]
    slow = [gate.connect() for _ in range(5)]
    for connection, beginning in zip(slow, beginnings, strict=False):
        connection.sendall(beginning.encode())
    with pytest.raises((ConnectionError, ssl.SSLError)):
        gate.connect()  # the sixth
    for connection in slow:
        connection.settimeout(30)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            assert connection.recv(100) == b"", "cut off without an answer"
        connection.close()
    with gate.client() as client:
        assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 200
    assert "more than 5 connections" in [e["reason"] for e in gate.refused]


def test_a_head_without_end_is_refused(gate: Fixture) -> None:
    assert gate.raw(f"POST {HEARTBEAT} HTTP/1.1\r\nx: {'a' * 40_000}").startswith(b"HTTP/1.1 431 ")


def test_very_many_refusals_do_not_fill_the_disk(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_LINES", 3)
    with gate.client() as client:
        for _ in range(20):
            assert client.post("/").status_code == 403
    assert len(gate.refused) <= 6, "three in a minute, and the minute may have turned"


def test_superlink_away_is_said_so_that_sites_try_again(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise httpx.ConnectError("nobody listens")

    monkeypatch.setattr(httpx.AsyncClient, "post", away)
    with gate.client() as client:
        assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 502


def test_an_address() -> None:
    assert parse_address("[::1]:80") == Address("::1", 80)
    for wrong in ("8000", ":8000", "host:", "host:0", "host:99999", "host:x"):
        with pytest.raises(Exception, match="is not an address"):
            parse_address(wrong)
