"""A gate in a thread, before a server in SuperLink's place."""

import asyncio
import contextlib
import datetime
import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PullObjectResponse, PushObjectResponse
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from gate_traffic import objects

from fedgen.federate.deploy.folders import Folders, write_keys
from fedgen.federate.deploy.keys import public_keys
from fedgen.federate.gate import gate as gate_module
from fedgen.federate.gate import http as gate_http
from fedgen.federate.gate.gate import Address, Gate
from fedgen.federate.gate.rules import PULL_MESSAGE, PULL_OBJECT, PUSH_MESSAGE, PUSH_OBJECT
from fedgen.federate.journal import GATE_JOURNAL, read_journal

MAX_MESSAGE = 10_000_000
PATIENCE = 600.0  # seconds for anything that must happen; a test that meets it fails
REFUSAL = re.compile(rb".*content-length: (\d+)\r\n\r\n(.*)", re.DOTALL)


def ends_with_a_refusal(found: bytes) -> bool:
    """Whether the last of these responses is complete, and one after which the connection is closed."""
    last = REFUSAL.fullmatch(found)
    return last is not None and b"connection: close" in found and len(last[2]) == int(last[1])


class Fixture:
    """A gate in its own thread, before a server that accepts everything and records what it got."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.port = 0
        self.seen: list[bytes] = []  # whole requests that came through
        self.down = PullMessagesResponse()  # what sites get when they ask for messages
        self.status = 200

    @property
    def refused(self) -> list[dict]:
        return [e for e in read_journal(self.folders.server / GATE_JOURNAL) if e["event"] == "refused"]

    def headers(self, name: str = "north", age: float = 0.0) -> dict[str, str]:
        key = load_ssh_private_key(self.folders.site_key(name).read_bytes(), None)
        signed_at = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
        return {
            "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())).decode(),
            "flwr-timestamp": signed_at,
            "flwr-signature": b64encode(sign_message(key, signed_at.encode())).decode(),
        }

    def client(self) -> httpx.Client:
        trusted = ssl.create_default_context(cafile=self.folders.authority / "ca.crt")
        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}", verify=trusted, trust_env=False, timeout=PATIENCE
        )

    def post(self, target: str, content: bytes, site: str = "north") -> httpx.Response:
        with self.client() as client:
            return client.post(target, content=content, headers=self.headers(site))

    def connect(self) -> ssl.SSLSocket:
        trusted = ssl.create_default_context(cafile=self.folders.authority / "ca.crt")
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        return trusted.wrap_socket(plain, server_hostname="127.0.0.1")

    def raw(self, head: str) -> bytes:
        """The responses to these bytes, up to and with the one after which the gate closes the connection."""
        with self.connect() as connection:
            connection.sendall(head.encode())
            found = b""
            while not ends_with_a_refusal(found) and (some := connection.recv(4096)):
                found += some
            return found

    async def upstream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(r[15:]) for r in head.lower().split(b"\r\n") if r.startswith(b"content-length:"))
                body = await reader.readexactly(length)
                self.seen.append(head + body)
                said = self.answer(head.split()[1].decode(), body)
                more = f"flwr-note: hello\r\nx-other: no\r\ncontent-length: {len(said)}\r\n\r\n"
                writer.write(f"HTTP/1.1 {self.status} So\r\n{more}".encode() + said)
                await writer.drain()
        writer.close()

    def answer(self, target: str, body: bytes) -> bytes:
        if target == PULL_MESSAGE:
            return self.down.SerializeToString()
        if target == PUSH_MESSAGE:
            names = [
                name for tree in PushMessagesRequest.FromString(body).message_object_trees for name in objects(tree)
            ]
            return PushMessagesResponse(session_id="of SuperLink", objects_to_push=names).SerializeToString()
        if target == PULL_OBJECT:
            return PullObjectResponse(object_found=True).SerializeToString()
        return PushObjectResponse(stored=True).SerializeToString() if target == PUSH_OBJECT else b"yes"

    @property
    def came(self) -> list[str]:
        return [request.split()[1].decode() for request in self.seen]

    async def live(self, ready: threading.Event, stop: asyncio.Event) -> None:
        """Both ends listen where the system has a free port for them."""
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self.folders.server / "server.crt", self.folders.server / "server.key")
        async with await asyncio.start_server(self.upstream, "127.0.0.1", 0, ssl=tls) as server:
            behind = Address("127.0.0.1", server.sockets[0].getsockname()[1])
            gate = Gate(self.folders.server, public_keys(self.folders.server / "keys"), MAX_MESSAGE, behind)
            serving = asyncio.create_task(gate.serve(Address("127.0.0.1", 0)))
            async with asyncio.timeout(PATIENCE):
                while not (opened := read_journal(self.folders.server / GATE_JOURNAL)):
                    await asyncio.sleep(0.01)
            self.port = int(opened[0]["address"].rpartition(":")[2])
            ready.set()
            await stop.wait()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folders = Folders(tmp_path_factory.mktemp("gate"))
    write_keys(folders, ["north", "south", "stranger"], ["127.0.0.1"])
    folders.public_key("stranger").unlink()
    return folders


@pytest.fixture
def gate(keys: Folders, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixture]:
    # Only the tests of time limits have short ones, so that no other test depends on the machine's speed.
    monkeypatch.setattr(gate_http, "LINGER", PATIENCE)
    for limit in ("_FIRST_HEAD", "_IDLE", "_HANDSHAKE"):
        monkeypatch.setattr(gate_module, limit, PATIENCE)
    (keys.server / GATE_JOURNAL).unlink(missing_ok=True)
    fixture, ready, stop = Fixture(keys), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    # A thread that does not end must not keep the tests from ending.
    thread = threading.Thread(target=lambda: loop.run_until_complete(fixture.live(ready, stop)), daemon=True)
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield fixture
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        loop.close()
