"""The gate: the one door to SuperLink from outside, which lets through what sites need and nothing else.

SuperLink serves everything on one port, and in Flower 1.41 anyone who reaches it may register a site or run a
program. So it listens on the loopback interface, and the gate on the address that sites use: it ends their TLS,
holds each request against the rules, reads it whole, and makes a new request of it. A site's answer is passed on when
all of it is there. All is bounded: connections, sizes and times.
"""

import asyncio
import contextlib
import json
import resource
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h11
import httpx
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest, PushObjectResponse
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from google.protobuf.message import DecodeError

from fedgen.errors import FedgenError
from fedgen.federate.gate import connections as gate_connections
from fedgen.federate.gate import line as gate_line
from fedgen.federate.gate.connections import Connections, Guest
from fedgen.federate.gate.line import Answer, Line
from fedgen.federate.gate.messages import Desk, Incoming, Question, desks
from fedgen.federate.gate.rules import (
    CONFIRM,
    HEARTBEAT,
    PULL_MESSAGE,
    PULL_OBJECT,
    PUSH_MESSAGE,
    PUSH_OBJECT,
    STRIKES,
    Head,
    Rules,
    TurnedAwayError,
)
from fedgen.federate.journal import GATE_JOURNAL, Journal

_NOT_ACTIVATED = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
_TO_SUPERLINK = 64  # connections
_HANDSHAKE, _FIRST_HEAD, _IDLE = 45.0, 15.0, 75.0  # seconds
_LINES = 60  # refusals in the journal, of one site or of all strangers, in a minute
_JOURNAL = 16 << 20  # bytes of the journal; then it is begun anew, and the one before is kept


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int


class Gate:
    """Takes connections from outside and passes on what the rules allow."""

    def __init__(self, folder: Path, keys: Mapping[str, bytes], max_message: int, superlink: Address) -> None:
        self.journal = Journal(folder / GATE_JOURNAL, limit=_JOURNAL)
        self._rules = Rules(keys)
        self._desks = desks(keys, folder / "incoming", max_message)
        self._connections = Connections()
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.set_alpn_protocols(["http/1.1"])
        self._upstream = f"https://{superlink.host}:{superlink.port}"
        try:
            self._tls.load_cert_chain(folder / "server.crt", folder / "server.key")
            self._trusted = ssl.create_default_context(cafile=folder / "ca.crt")
        except (OSError, ssl.SSLError) as error:
            raise FedgenError(f"the certificates in {folder} cannot be read: {error}") from error
        self._lines: Counter[str] = Counter()  # of the journal in this minute, by who caused them
        self._minute = 0

    async def serve(self, listen: Address) -> None:
        """Take connections until cancelled."""
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        try:
            listener = socket.create_server(listen, family=family, backlog=128)
        except OSError as error:
            raise FedgenError(f"the gate cannot listen on {listen.host}:{listen.port}: {error.strerror}") from error
        _allow_files(gate_connections.STRANGERS + gate_connections.OF_ONE_SITE * len(self._desks) + _TO_SUPERLINK + 64)
        limits = httpx.Limits(max_connections=_TO_SUPERLINK, max_keepalive_connections=16)
        client = httpx.AsyncClient(verify=self._trusted, trust_env=False, timeout=60, limits=limits)
        self.journal.write("open", address=f"{listen.host}:{listener.getsockname()[1]}")
        with listener:
            listener.setblocking(False)
            async with client, asyncio.TaskGroup() as connections:
                while True:
                    try:
                        taken, peer = await asyncio.get_running_loop().sock_accept(listener)
                    except OSError:  # no more files, or whoever it was has gone
                        await asyncio.sleep(0.1)
                        continue
                    connections.create_task(self._connection(taken, peer[0], client))

    async def _connection(self, taken: socket.socket, address: str, client: httpx.AsyncClient) -> None:
        """One connection from its first byte to its last; whatever goes wrong ends it and nothing else."""
        task = asyncio.current_task()
        assert task is not None
        guest = Guest(address, task.cancel)
        try:
            _reset_when_closed(taken, True)
            self._connections.enter(guest)
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader()
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), taken, ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE, ssl_shutdown_timeout=gate_line.LINGER,
            )  # fmt: skip
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            try:
                _reset_when_closed(taken, False)
                await self._requests(Line(reader, writer), guest, client)
            finally:
                try:
                    writer.close()
                    with contextlib.suppress(OSError, TimeoutError):
                        await asyncio.wait_for(writer.wait_closed(), gate_line.LINGER)
                finally:  # also where it has to go at once
                    transport.abort()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # no TLS, too slow, or gone
        except Exception as error:  # ours, and no reason to shut out everybody else
            self._note(address, TurnedAwayError(500, f"the gate failed: {type(error).__name__}: {error}"[:200]))
        finally:
            taken.close()
            self._connections.exit(guest)

    async def _requests(self, line: Line, guest: Guest, client: httpx.AsyncClient) -> None:
        patience = _FIRST_HEAD
        while True:
            before = line.received
            try:
                async with asyncio.timeout(patience):
                    request = await line.event()
                if not isinstance(request, h11.Request):
                    return
                head = self._rules.examine(request)
                self._connections.sign(guest, head.site)
                body = await line.body()
                desk = self._desks[head.site]
                desk.bytes_up += line.received - before
                answer, question = await self._handle(desk, head, body, line.received - before, client)
            except h11.RemoteProtocolError as error:
                refusal = TurnedAwayError(error.error_status_hint, str(error)[:80])
                break
            except TurnedAwayError as found:
                refusal = found
                break
            sent = await line.answer(answer)
            desk.bytes_down += sent
            if question is not None:
                question.bytes += sent
            if not line.goes_on():
                return
            patience = _IDLE
        self._note(guest.address, refusal)
        close = (("content-type", "application/json"), ("connection", "close"))
        why = {"code": _NOT_ACTIVATED, "detail": f"refused by the gate: {refusal.reason}"}  # SuperNode shows such words
        await line.answer(Answer(refusal.status, json.dumps(why).encode(), close))
        await line.linger()

    async def _handle(
        self, desk: Desk, head: Head, body: bytes, size: int, client: httpx.AsyncClient
    ) -> tuple[Answer, Question | None]:
        """What a site gets for a request of this many bytes; and the message that it is a part of, on its way down."""
        try:
            request: Any = PROTOBUF_REQUEST_TYPES["POST", head.target].FromString(body)
        except DecodeError:
            raise TurnedAwayError(400, "not a request of Flower's", head.site) from None
        question = None
        if head.target == PUSH_MESSAGE:
            return Answer(200, desk.announce(request, size).SerializeToString()), None
        if head.target == PUSH_OBJECT:
            incoming = desk.take(request, size)
            return await self._deliver_whole(desk, incoming, head, client), None
        if head.target == PULL_OBJECT:
            question = desk.question_with(request.object_id)
        if head.target == CONFIRM:
            question = desk.question(request.message_object_id)
        answer = await self._pass_on(head, head.target, request, client)
        if head.target == PULL_MESSAGE and answer.status == 200:
            question = desk.pass_down(PullMessagesResponse.FromString(answer.content))
        if head.target == CONFIRM and answer.status == 200 and question is not None and not question.confirmed:
            question.confirmed = True
            self._account(desk, "down", question, question.bytes, len(question.objects))
        return answer, question

    async def _deliver_whole(self, desk: Desk, incoming: Incoming, head: Head, client: httpx.AsyncClient) -> Answer:
        """Pass an answer on when its last object has come; a site that lost patience and asks again waits with us."""
        if not incoming.is_whole or incoming.delivered:
            return Answer(200, PushObjectResponse(stored=True).SerializeToString())
        if incoming.delivery is None:
            incoming.delivery = asyncio.create_task(self._deliver(desk, incoming, head, client))
        return await asyncio.shield(incoming.delivery)

    async def _deliver(self, desk: Desk, incoming: Incoming, head: Head, client: httpx.AsyncClient) -> Answer:
        try:
            answer = await self._pass_on(head, PUSH_MESSAGE, incoming.request, client)
            if answer.status != 200:
                return answer
            opened = PushMessagesResponse.FromString(answer.content)
            for name in opened.objects_to_push:
                pushed = PushObjectRequest(
                    node=incoming.request.node,
                    run_id=incoming.request.messages_list[0].metadata.run_id,
                    object_id=name,
                    object_content=incoming.content(name),
                    session_id=opened.session_id,
                )
                answer = await self._pass_on(head, PUSH_OBJECT, pushed, client)
                if answer.status != 200 or not PushObjectResponse.FromString(answer.content).stored:
                    return answer
            desk.finish(incoming)
            self._account(desk, "up", incoming.question, incoming.bytes, len(incoming.announced))
            return Answer(200, PushObjectResponse(stored=True).SerializeToString())
        finally:
            if not incoming.delivered:
                incoming.delivery = None  # the site may try again

    def _account(self, desk: Desk, way: str, question: Question, size: int, objects: int) -> None:
        """Write down how many bytes a message had on the wire, and the site's whole traffic so far."""
        total = {"bytes_up": desk.bytes_up, "bytes_down": desk.bytes_down}
        about = {"site": desk.site, "way": way, **question.about, "bytes": size, "objects": objects, **total}
        self._write("message", about)

    async def _pass_on(self, head: Head, target: str, request: Any, client: httpx.AsyncClient) -> Answer:
        """SuperLink's answer to a new request with the same meaning."""
        form = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE, "accept-encoding": "identity"}
        try:
            answer = await client.post(
                self._upstream + target, content=request.SerializeToString(), headers={**head.headers, **form}
            )
        except httpx.HTTPError as error:
            self._note("", TurnedAwayError(502, f"SuperLink does not answer: {type(error).__name__}", head.site))
            return Answer(502, b"", ())
        passed = [(n, v) for n, v in answer.headers.items() if n == "content-type" or n.startswith("flwr-")]
        status = answer.status_code
        if status >= 500 and target in (PULL_MESSAGE, HEARTBEAT):
            # A trouble of SuperLink's own: a SuperNode asks again after 503, and ends after most others.
            self._note("", TurnedAwayError(503, f"SuperLink answered {target} with {status}", head.site))
            status = 503
        return Answer(status, answer.content, tuple(passed))

    def _note(self, address: str, refusal: TurnedAwayError) -> None:
        """Write down a refusal; somebody who causes very many of them does not fill the disk, nor hide what counts."""
        who = f"{refusal.site} {refusal.status in STRIKES}"
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._lines.clear()
        self._lines[who] += 1
        if self._lines[who] <= _LINES:
            about = {"site": refusal.site} if refusal.site else {"address": address}
            if refusal.question:
                about["question"] = refusal.question
            self._write("refused", {"status": refusal.status, "reason": refusal.reason, **about})

    def _write(self, event: str, about: Mapping[str, Any]) -> None:
        """Where the disk is full or no file can be opened, a line is lost and nothing else."""
        with contextlib.suppress(OSError):
            self.journal.write(event, **about)


def _reset_when_closed(connection: socket.socket, reset: bool) -> None:
    """Whether closing a connection resets it: where that happens within TLS's handshake, a SuperNode tries again.

    A connection that is closed in order there is an error of TLS to it, and it gives up.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(reset), 0))


def _allow_files(needed: int) -> None:
    """See that there can be as many open files as connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
