"""The gate: a reverse proxy before SuperLink that forwards what sites need and nothing else.

SuperLink serves everything on one port, and in Flower 1.41 anyone who reaches it may register a site or run a
program. So SuperLink listens on the loopback interface, and the gate on the address that sites use. The gate terminates
their TLS, checks each request against the rules, reads it whole and makes a new request of it. A site's reply is
forwarded once it is complete. Connections, sizes and times are all bounded.
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
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import h11
import httpx
from google.protobuf.message import DecodeError

from fedgen.errors import FedgenError
from fedgen.federate.deploy.keys import key_files, public_keys
from fedgen.federate.flower import (
    CONTROL_LIST_NODES,
    CONTROL_LIST_RUNS,
    NODE_ONLINE,
    NOT_ACTIVATED,
    PROTOBUF_MEDIA_TYPE,
    PROTOBUF_REQUEST_TYPES,
    ActivateNodeResponse,
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    DeactivateNodeRequest,
    ListNodesRequest,
    ListNodesResponse,
    ListRunsRequest,
    Node,
    PullMessagesResponse,
    PullObjectResponse,
    PushMessagesResponse,
    PushObjectRequest,
    PushObjectResponse,
    SendNodeHeartbeatRequest,
)
from fedgen.federate.gate import connections as gate_connections
from fedgen.federate.gate import http as gate_http
from fedgen.federate.gate.connections import Connection, ConnectionPool
from fedgen.federate.gate.fields import check_fields
from fedgen.federate.gate.http import HttpConnection, Response
from fedgen.federate.gate.messages import Incoming, MessageQueue, ServerMessage, message_queues
from fedgen.federate.gate.objects_sent import SentObjects
from fedgen.federate.gate.refusals import REFUSALS, Refusal, RefusalWriter
from fedgen.federate.gate.rules import (
    ACTIVATE,
    CONFIRM,
    DEACTIVATE,
    GET_FAB,
    GET_RUN,
    HEARTBEAT,
    NOT_AUTHENTICATED,
    PULL_MESSAGE,
    PULL_OBJECT,
    PUSH_MESSAGE,
    PUSH_OBJECT,
    STRIKE_STATUSES,
    Head,
    RequestRefusedError,
    Rules,
)
from fedgen.federate.gate.sent_marks import SentMarks
from fedgen.federate.journal import GATE_JOURNAL, Journal

_RUN_ENDED = 403  # SuperLink's response where a run is not running
_TIDY = 300.0  # seconds
_TO_SUPERLINK = 8  # connections; SuperLink is one process, and more would only wait there for each other
_HANDSHAKE, _FIRST_HEAD, _IDLE = 45.0, 15.0, 75.0  # seconds
_KEYS_EVERY = 1.0  # seconds between looks at the folder of keys
# Refusals written to the journal in a minute, for each site and for all unauthenticated clients together; and returns.
# And lines in SuperLink's log that a site may cause in a minute: one for each of some requests, and for each failure.
_LINES = 60
_LOGGED = frozenset({ACTIVATE, DEACTIVATE, GET_RUN, GET_FAB})
# Requests that SuperLink is asked for a site in a minute, of those that cost a site nothing: SuperLink is one process.
# A SuperNode sends a heartbeat about every 20 seconds, asks for messages every 3, and fetches each message once.
_ASKED = {HEARTBEAT: 60, PULL_MESSAGE: 600, PULL_OBJECT: 600}
_JOURNAL = 16 << 20  # bytes after which the journal is rotated


class Address(NamedTuple):
    """A host and port to listen on or to connect to."""

    host: str
    port: int


class Gate:
    """Accepts connections from sites and forwards what the rules allow."""

    def __init__(self, folder: Path, keys: Mapping[str, bytes], max_message: int, superlink: Address) -> None:
        self.journal = Journal(folder / GATE_JOURNAL, limit=_JOURNAL)
        self._folder, self._max_message = folder, max_message
        self._keys, self._key_files, self._keys_due = keys, watched_keys(folder), 0.0
        self._rules = Rules(keys)
        self._marks = SentMarks(folder)
        self._queues = message_queues(keys, folder / "incoming", max_message, self._marks)
        self._refusals = RefusalWriter(folder / REFUSALS)  # for the server, which counts them as strikes
        self._pool, self._objects = ConnectionPool(), SentObjects()
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.set_alpn_protocols(["http/1.1"])
        self._upstream = f"https://{superlink.host}:{superlink.port}"
        try:
            self._tls.load_cert_chain(folder / "server.crt", folder / "server.key")
            self._trusted = ssl.create_default_context(cafile=folder / "ca.crt")
        except (OSError, ssl.SSLError) as error:
            raise FedgenError(f"the certificates in {folder} cannot be read: {error}") from error
        self._counts: Counter[str] = Counter()  # of this minute: lines in logs and requests, by who caused them
        self._minute = 0

    async def serve(self, listen: Address) -> None:
        """Accept connections until cancelled."""
        listener = listening(listen)
        _allow_files(len(self._queues))
        limits = httpx.Limits(max_connections=_TO_SUPERLINK, max_keepalive_connections=_TO_SUPERLINK)
        client = httpx.AsyncClient(verify=self._trusted, trust_env=False, timeout=60, limits=limits)
        self.journal.write("open", address=f"{listen.host}:{listener.getsockname()[1]}")
        with listener:
            listener.setblocking(False)
            async with client, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tidy(client))
                while True:
                    try:
                        accepted, peer = await asyncio.get_running_loop().sock_accept(listener)
                    except OSError:  # too many open files, or the client has gone
                        await asyncio.sleep(0.1)
                        continue
                    tasks.create_task(self._serve_connection(accepted, peer[0], client))

    async def _tidy(self, client: httpx.AsyncClient) -> None:
        """Ask SuperLink for its runs now and then: when it lists a finished one, it deletes the run's messages."""
        while True:
            await asyncio.sleep(_TIDY)
            with contextlib.suppress(Exception):  # the gate stays open, and tries again later
                await self._forward(Head(CONTROL_LIST_RUNS, "", {}), CONTROL_LIST_RUNS, ListRunsRequest(), client)

    async def _serve_connection(self, accepted: socket.socket, address: str, client: httpx.AsyncClient) -> None:
        """Serve one connection until it ends; whatever goes wrong ends this connection and nothing else."""
        task = asyncio.current_task()
        assert task is not None
        connection = Connection(address, task.cancel)
        try:
            _reset_when_closed(accepted, True)
            self._pool.add(connection)
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader()
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), accepted, ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE, ssl_shutdown_timeout=gate_http.LINGER,
            )  # fmt: skip
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            try:
                _reset_when_closed(accepted, False)
                await self._requests(HttpConnection(reader, writer), connection, client)
            finally:
                try:
                    writer.close()
                    with contextlib.suppress(OSError, TimeoutError):
                        await asyncio.wait_for(writer.wait_closed(), gate_http.LINGER)
                finally:  # also when this task is cancelled
                    transport.abort()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # not TLS, too slow, or disconnected
        except Exception as error:  # a bug of ours must not end the other connections
            self._note(address, RequestRefusedError(500, f"the gate failed: {type(error).__name__}: {error}"[:200]))
        finally:
            accepted.close()
            self._pool.remove(connection)

    async def _requests(self, http: HttpConnection, connection: Connection, client: httpx.AsyncClient) -> None:
        timeout = _FIRST_HEAD
        while True:
            before = http.received
            try:
                async with asyncio.timeout(timeout):
                    request = await http.next_event()
                if not isinstance(request, h11.Request):
                    return
                self._take_up_keys()
                head = self._rules.examine(request)
                queue = self._queues[head.site]
                self._pool.authenticate(connection, head.site)
                body = await http.body()
                if queue.retired:
                    raise RequestRefusedError(NOT_AUTHENTICATED, "the key was removed or replaced meanwhile", head.site)
                queue.bytes_up += http.received - before
                response, message = await self._handle(connection, queue, head, body, http.received - before, client)
            except h11.RemoteProtocolError as error:
                refusal = RequestRefusedError(error.error_status_hint, str(error)[:80])
                break
            except RequestRefusedError as found:
                refusal = found
                break
            sent = await http.respond(response)
            queue.bytes_down += sent
            if message is not None:
                message.bytes += sent
            if not http.start_next_request():
                return
            timeout = _IDLE
        self._note(connection.address, refusal)
        close = (("content-type", "application/json"), ("connection", "close"))
        why = {"code": NOT_ACTIVATED, "detail": f"refused by the gate: {refusal.reason}"}  # SuperNode logs it
        await http.respond(Response(refusal.status, json.dumps(why).encode(), close))
        await http.linger()

    def _take_up_keys(self) -> None:
        """Use the keys that are in the folder now: a site that was added is let in, and one that was removed is not."""
        if time.monotonic() < self._keys_due:
            return
        self._keys_due = time.monotonic() + _KEYS_EVERY
        if (files := watched_keys(self._folder)) == self._key_files:
            return
        self._key_files, folder = files, self._folder / "keys"
        try:
            keys = public_keys(folder)
        except FedgenError as error:  # whoever was removed is refused all the same
            self._write("unreadable", {"reason": str(error)})
            keys = {name: key for name, key in self._keys.items() if (folder / f"{name}.pub").exists()}
        new, gone = sorted(keys.keys() - self._keys.keys()), sorted(self._keys.keys() - keys.keys())
        replaced = sorted(name for name in keys if self._keys.get(name, keys[name]) != keys[name])
        self._keys, self._rules = keys, Rules(keys)
        for name in (*gone, *replaced):  # what was sent to the old key's node is not for the new one
            self._queues.pop(name).retire()
        for name in (*new, *replaced):
            incoming = self._folder / "incoming" / name
            self._queues[name] = MessageQueue(name, incoming, self._max_message, self._marks)
        _allow_files(len(self._queues))
        self._write("keys", {"added": new, "removed": gone, "replaced": replaced})

    async def _handle(
        self,
        connection: Connection,
        queue: MessageQueue,
        head: Head,
        body: bytes,
        size: int,
        client: httpx.AsyncClient,
    ) -> tuple[Response, ServerMessage | None]:
        """The response to a request of this many bytes, and the server's message that the request is about, if any."""
        try:
            request: Any = PROTOBUF_REQUEST_TYPES["POST", head.target].FromString(body)
        except DecodeError:
            raise RequestRefusedError(400, "not one of Flower's requests", head.site) from None
        check_fields(head.target, request, queue)
        at_superlink = f"{head.site} at SuperLink"
        if not self._may_be_written(at_superlink, head.target in _LOGGED):
            raise RequestRefusedError(503, "more requests in a minute than SuperLink's log is to hold", head.site)
        message = None
        if head.target == PUSH_MESSAGE:
            return Response(200, queue.announce(request, size).SerializeToString()), None
        if head.target == PUSH_OBJECT:
            incoming = queue.receive(request, size)
            return await self._deliver_when_complete(queue, incoming, head, client), None
        if head.target == PULL_OBJECT:
            message = queue.message_with(request.object_id)
            request.run_id = message.run_id
            if message.answered:
                return Response(200, PullObjectResponse(object_found=False).SerializeToString()), message
        if head.target == CONFIRM:
            # SuperLink would delete the message. Forwarded when the reply is there: until then a site may lose it.
            message = queue.message_or_answered(request.message_object_id)
            if not message.confirmed:
                message.confirmed = True
                self._account(queue, "down", message, message.bytes, len(message.objects))
            return Response(200, ConfirmMessageReceivedResponse().SerializeToString()), message
        response = await self._response(queue, head, request, message, client)
        if response.status >= 400:
            self._may_be_written(at_superlink)
        if head.target == ACTIVATE and response.status == NOT_AUTHENTICATED:
            response = await self._take_over(connection, queue, head, request, response, client)
        if head.target == PULL_MESSAGE and response.status == 200:
            message = queue.record_sent(PullMessagesResponse.FromString(response.content))
            if message is None and (message := queue.lost()) is not None:
                response = response._replace(content=message.offer_again().SerializeToString())
        elif head.target == PULL_OBJECT and response.status == 200 and message is not None:
            # The server has given it up.
            message.dropped |= not PullObjectResponse.FromString(response.content).object_found
        elif response.status == _RUN_ENDED and hasattr(request, "run_id"):
            queue.drop_run(request.run_id)
        return response, message

    async def _response(
        self, queue: MessageQueue, head: Head, request: Any, message: ServerMessage | None, client: httpx.AsyncClient
    ) -> Response:
        """SuperLink's response, or our own where it is known: an object that another site has got, or no new message.

        The message itself is asked for by each site: there it is seen that the server has given it up.
        """

        def ask() -> Awaitable[Response]:
            return self._forward(head, head.target, request, client)

        if message is not None and request.object_id != message.id:
            return await self._objects.get(request.object_id, ask)
        began = time.time()
        if head.target == PULL_MESSAGE and not self._marks.marked_since(queue.site, queue.nothing_at):
            return Response(200, PullMessagesResponse().SerializeToString())
        most = _ASKED.get(head.target)
        if most is not None and self._counted(f"{head.site} {head.target}") > most:
            raise RequestRefusedError(503, f"more than {most} requests for {head.target} in a minute", head.site)
        response = await ask()
        if head.target != PULL_MESSAGE:
            return response
        if response.status == 200 and not PullMessagesResponse.FromString(response.content).messages_list:
            queue.nothing_at = began
        return response

    async def _take_over(
        self,
        connection: Connection,
        queue: MessageQueue,
        head: Head,
        request: Any,
        refused: Response,
        client: httpx.AsyncClient,
    ) -> Response:
        """Activate a site that has returned while SuperLink still waits for its heartbeats, which takes a minute.

        The node is deactivated first, with the site's own signature, so that the server sees the site return. Where
        the server waits for the site's answer, SuperLink would say that the site is gone, so it gets a heartbeat
        instead. Not where the site is still connected from elsewhere: two SuperNodes with one key would take each
        other's messages.
        """
        if self._pool.is_elsewhere(connection):
            reason = "another SuperNode with this site's key is connected"
            raise RequestRefusedError(NOT_AUTHENTICATED, reason, head.site)
        listed = await self._forward(head, CONTROL_LIST_NODES, ListNodesRequest(), client)
        if listed.status != 200:
            return refused
        for node in ListNodesResponse.FromString(listed.content).nodes_info:
            if node.public_key == request.public_key and node.status == NODE_ONLINE:
                if self._may_be_written(f"{head.site} returned"):
                    self._write("returned", {"site": head.site})
                if queue.lost() is None:
                    await self._forward(head, DEACTIVATE, DeactivateNodeRequest(node_id=node.node_id), client)
                    return await self._forward(head, ACTIVATE, request, client)
                beat = SendNodeHeartbeatRequest(
                    node=Node(node_id=node.node_id), heartbeat_interval=request.heartbeat_interval
                )
                there = await self._forward(head, HEARTBEAT, beat, client)
                content = ActivateNodeResponse(node_id=node.node_id).SerializeToString()
                return there._replace(content=content) if there.status == 200 else refused
        return refused

    async def _deliver_when_complete(
        self, queue: MessageQueue, incoming: Incoming, head: Head, client: httpx.AsyncClient
    ) -> Response:
        """Forward a reply once its last object is here; a site that timed out and retries awaits the same delivery."""
        if not incoming.is_complete or incoming.delivered:
            return Response(200, PushObjectResponse(stored=True).SerializeToString())
        if incoming.delivery is None:
            incoming.delivery = asyncio.create_task(self._deliver(queue, incoming, head, client))
        return await asyncio.shield(incoming.delivery)

    async def _deliver(
        self, queue: MessageQueue, incoming: Incoming, head: Head, client: httpx.AsyncClient
    ) -> Response:
        try:
            response = await self._forward(head, PUSH_MESSAGE, incoming.request, client)
            if response.status != 200:
                return response
            opened = PushMessagesResponse.FromString(response.content)
            pushed_by = incoming.request.node
            for name in opened.objects_to_push:
                pushed = PushObjectRequest(
                    node=pushed_by,
                    run_id=incoming.request.messages_list[0].metadata.run_id,
                    object_id=name,
                    object_content=queue.content(incoming, name),
                    session_id=opened.session_id,
                )
                response = await self._forward(head, PUSH_OBJECT, pushed, client)
                if response.status != 200 or not PushObjectResponse.FromString(response.content).stored:
                    return response
            question = ConfirmMessageReceivedRequest(
                node=pushed_by, run_id=incoming.reply_to.run_id, message_object_id=incoming.reply_to_id
            )
            await self._forward(head, CONFIRM, question, client)
            queue.finish(incoming)
            self._account(queue, "up", incoming.reply_to, incoming.bytes, len(incoming.announced))
            return Response(200, PushObjectResponse(stored=True).SerializeToString())
        finally:
            if not incoming.delivered:
                incoming.delivery = None  # the site may try again
                self._may_be_written(f"{head.site} at SuperLink")

    def _account(self, queue: MessageQueue, way: str, message: ServerMessage, size: int, objects: int) -> None:
        """Log how many bytes a message had on the wire, and the site's total traffic so far."""
        total = {"bytes_up": queue.bytes_up, "bytes_down": queue.bytes_down}
        about = {"site": queue.site, "way": way, **message.about, "bytes": size, "objects": objects, **total}
        self._write("message", about)

    async def _forward(self, head: Head, target: str, request: Any, client: httpx.AsyncClient) -> Response:
        """SuperLink's response to a new request with the same content."""
        form = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE, "accept-encoding": "identity"}
        try:
            response = await client.post(
                self._upstream + target, content=request.SerializeToString(), headers={**head.headers, **form}
            )
        except (httpx.HTTPError, ExceptionGroup) as error:  # the latter where several addresses were tried
            self._note("", RequestRefusedError(502, f"SuperLink does not answer: {type(error).__name__}", head.site))
            return Response(502, b"", ())
        passed = [(n, v) for n, v in response.headers.items() if n == "content-type" or n.startswith("flwr-")]
        status = response.status_code
        if status >= 500 and target in (PULL_MESSAGE, HEARTBEAT):
            # An error of SuperLink itself. A SuperNode retries after 503 and exits after most other statuses.
            self._note("", RequestRefusedError(503, f"SuperLink answered {target} with {status}", head.site))
            status = 503
        return Response(status, response.content, tuple(passed))

    def _note(self, address: str, refusal: RequestRefusedError) -> None:
        """Log a refusal. Many of them neither fill the disk nor hide those that count as strikes."""
        if self._may_be_written(f"{refusal.site} {refusal.status in STRIKE_STATUSES}"):
            about = {"site": refusal.site} if refusal.site else {"address": address}
            if refusal.question:
                about["question"] = refusal.question
            self._write("refused", {"status": refusal.status, "reason": refusal.reason, **about})
            if refusal.status in STRIKE_STATUSES and refusal.site:
                with contextlib.suppress(OSError):
                    self._refusals.add(Refusal(refusal.site, refusal.reason, refusal.question))

    def _may_be_written(self, who: str, lines: int = 1) -> bool:
        """Whether a log takes so many more lines that this one has caused, in this minute."""
        return self._counted(who, lines) <= _LINES

    def _counted(self, who: str, more: int = 1) -> int:
        """How many there were of this in this minute, with these."""
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._counts.clear()
        self._counts[who] += more
        return self._counts[who]

    def _write(self, event: str, about: Mapping[str, Any]) -> None:
        """Log an event; where the disk is full or no file can be opened, only that line is lost."""
        with contextlib.suppress(OSError):
            self.journal.write(event, **about)


def listening(listen: Address) -> socket.socket:
    """A socket that listens there; on `::` for all addresses, those of IPv4 as well where the system can."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    both = listen.host == "::" and socket.has_dualstack_ipv6()
    try:
        return socket.create_server(listen, family=family, backlog=128, dualstack_ipv6=both)
    except OSError as error:
        raise FedgenError(f"the gate cannot listen on {listen.host}:{listen.port}: {error.strerror}") from error


def _reset_when_closed(connection: socket.socket, reset: bool) -> None:
    """Whether closing the socket sends a TCP reset.

    During the TLS handshake it should: a SuperNode retries after a reset, and gives up after an orderly close, which it
    takes for a TLS error.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", int(reset), 0))


def watched_keys(folder: Path) -> tuple[object, ...]:
    """What changes when a key in the server's folder is added, replaced or removed."""
    return key_files(sorted((folder / "keys").glob("*.pub")))


def _allow_files(sites: int) -> None:
    """Raise the limit of open files to what all connections need, as far as the system allows."""
    needed = gate_connections.UNAUTHENTICATED + gate_connections.PER_SITE * sites + _TO_SUPERLINK + 64
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
