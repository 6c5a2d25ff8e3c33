"""The gate: the one door to SuperLink from outside, which lets through what sites need and nothing else.

SuperLink serves everything on one port, and in Flower 1.41 anyone who reaches it may register a site or run a
program. So it listens on the loopback interface, and the gate on the address that sites use: it ends their TLS,
holds each request against the rules, reads it whole, and makes a new request of it. All is bounded: connections,
sizes and times.
"""

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import h11
import httpx
from flwr.supercore.error import ApiErrorCode

from fedgen.errors import FedgenError
from fedgen.federate.gate_rules import Head, Rules, TurnedAwayError
from fedgen.federate.journal import GATE_JOURNAL, Journal
from fedgen.federate.keys import public_keys
from fedgen.federate.settings import ServerSettings, read_settings

_NOT_ACTIVATED = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
_CONNECTIONS, _FROM_ONE_ADDRESS = 256, 128
_HEAD = 16 << 10  # bytes of a request before its body
_HANDSHAKE, _FIRST_HEAD, _IDLE, _BODY = 10.0, 15.0, 75.0, 120.0  # seconds
_LINGER, _LINGER_BYTES = 3.0, 16 << 20  # what a refused sender may still send, so that it reads why
_START, _STOP = 60.0, 10.0  # seconds that SuperLink has to answer, and to end
_LINES = 60  # of the journal, for one site or all strangers, in a minute


class Address(NamedTuple):
    """Where something listens."""

    host: str
    port: int


def parse_address(text: str) -> Address:
    """HOST:PORT."""
    host, sign, port = text.rpartition(":")
    if not (sign and host and port.isdigit() and 0 < int(port) < 65536):
        raise FedgenError(f"'{text}' is not an address such as 0.0.0.0:8000")
    return Address(host.strip("[]"), int(port))


def open_gate(folder: Path, listen: Address, superlink: Address, command: list[str]) -> int:
    """Start SuperLink by this command and the gate before it; ends when either does, or by SIGINT or SIGTERM."""
    settings = read_settings(folder / "server.toml", ServerSettings)
    gate = Gate(folder, Rules(public_keys(folder / "keys"), settings.max_message), superlink)
    return asyncio.run(_supervise(gate, listen, superlink, command))


async def _supervise(gate: "Gate", listen: Address, superlink: Address, command: list[str]) -> int:
    """SuperLink first: the gate opens when there is something behind it."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        raise FedgenError(f"{command[0]} cannot be started: {error.strerror}") from error
    ends = [asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())]
    try:
        serving = asyncio.create_task(_serve_behind(gate, listen, superlink))
        await asyncio.wait([*ends, serving], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()  # raises what kept the gate from opening
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


async def _serve_behind(gate: "Gate", listen: Address, superlink: Address) -> None:
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


class Gate:
    """Takes connections from outside and passes on what the rules allow."""

    def __init__(self, folder: Path, rules: Rules, superlink: Address) -> None:
        self.journal = Journal(folder / GATE_JOURNAL)
        self._rules = rules
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.set_alpn_protocols(["http/1.1"])
        self._upstream = f"https://{superlink.host}:{superlink.port}"
        try:
            self._tls.load_cert_chain(folder / "server.crt", folder / "server.key")
            self._trusted = ssl.create_default_context(cafile=folder / "ca.crt")
        except (OSError, ssl.SSLError) as error:
            raise FedgenError(f"the certificates in {folder} cannot be read: {error}") from error
        self._from: Counter[str] = Counter()  # open connections, by address
        self._lines: Counter[str] = Counter()  # of the journal in this minute, by who caused them
        self._minute = 0

    async def serve(self, listen: Address) -> None:
        """Take connections until cancelled."""
        family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
        try:
            listener = socket.create_server(listen, family=family, backlog=128)
        except OSError as error:
            raise FedgenError(f"the gate cannot listen on {listen.host}:{listen.port}: {error.strerror}") from error
        limits = httpx.Limits(max_connections=64, max_keepalive_connections=16)
        client = httpx.AsyncClient(verify=self._trusted, trust_env=False, timeout=60, limits=limits)
        self.journal.write("open", address=f"{listen.host}:{listen.port}")
        with listener:
            listener.setblocking(False)
            async with client, asyncio.TaskGroup() as connections:
                room = asyncio.Semaphore(_CONNECTIONS)  # more wait in the system's queue
                while True:
                    await room.acquire()
                    try:
                        taken, peer = await asyncio.get_running_loop().sock_accept(listener)
                    except OSError:  # no more files, or whoever it was has gone
                        room.release()
                        await asyncio.sleep(0.1)
                        continue
                    task = connections.create_task(self._connection(taken, peer[0], client))
                    task.add_done_callback(lambda _: room.release())

    async def _connection(self, taken: socket.socket, address: str, client: httpx.AsyncClient) -> None:
        """One connection from its first byte to its last; whatever goes wrong ends it and nothing else."""
        self._from[address] += 1
        try:
            if self._from[address] > _FROM_ONE_ADDRESS:
                self._note(address, TurnedAwayError(0, f"more than {_FROM_ONE_ADDRESS} connections"))
                return
            loop = asyncio.get_running_loop()
            reader = asyncio.StreamReader(limit=_HEAD)
            transport, protocol = await loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader), taken, ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE, ssl_shutdown_timeout=_LINGER,
            )  # fmt: skip
            writer = asyncio.StreamWriter(transport, protocol, reader, loop)
            try:
                await self._requests(reader, writer, address, client)
            finally:
                writer.close()
                with contextlib.suppress(OSError, TimeoutError):
                    await asyncio.wait_for(writer.wait_closed(), _LINGER)
                transport.abort()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # no TLS, too slow, or gone
        except Exception as error:  # ours, and no reason to shut out everybody else
            self._note(address, TurnedAwayError(500, f"the gate failed: {type(error).__name__}: {error}"[:200]))
        finally:
            taken.close()
            self._from[address] -= 1
            if not self._from[address]:
                del self._from[address]

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, client: httpx.AsyncClient
    ) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        patience = _FIRST_HEAD
        while True:
            try:
                async with asyncio.timeout(patience):
                    request = await _event(http, reader)
                if not isinstance(request, h11.Request):
                    return
                head = self._rules.examine(request)
                async with asyncio.timeout(_BODY):
                    body = await _body(http, reader)
                self._rules.examine_body(head, body)
            except h11.RemoteProtocolError as error:
                refusal = TurnedAwayError(error.error_status_hint, str(error)[:80])
                break
            except TurnedAwayError as found:
                refusal = found
                break
            status, headers, content = await self._pass_on(head, body, client)
            await _answer(http, writer, status, headers, content)
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                return
            http.start_next_cycle()
            patience = _IDLE
        self._note(address, refusal)
        close = [("content-type", "application/json"), ("connection", "close")]
        why = {"code": _NOT_ACTIVATED, "detail": f"refused by the gate: {refusal.reason}"}  # SuperNode shows such words
        await _answer(http, writer, refusal.status, close, json.dumps(why).encode())
        await _linger(reader)

    async def _pass_on(
        self, head: Head, body: bytes, client: httpx.AsyncClient
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """SuperLink's answer to a new request with the same meaning."""
        headers = {**head.headers, "accept-encoding": "identity"}
        try:
            answer = await client.post(self._upstream + head.target, content=body, headers=headers)
        except httpx.HTTPError as error:
            self._note("", TurnedAwayError(502, f"SuperLink does not answer: {type(error).__name__}", head.site))
            return 502, [], b""
        passed = [(n, v) for n, v in answer.headers.items() if n == "content-type" or n.startswith("flwr-")]
        return answer.status_code, passed, answer.content

    def _note(self, address: str, refusal: TurnedAwayError) -> None:
        """Write down a refusal; somebody who causes very many of them does not fill the disk."""
        who = refusal.site or "strangers"
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._lines.clear()
        self._lines[who] += 1
        if self._lines[who] <= _LINES:
            about = {"site": refusal.site} if refusal.site else {"address": address}
            self.journal.write("refused", status=refusal.status, reason=refusal.reason, **about)


async def _event(http: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    """The next event of a connection."""
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await reader.read(1 << 16))
    assert event is not h11.PAUSED, "a request is answered before the next one is looked at"
    return event  # type: ignore[return-value]


async def _body(http: h11.Connection, reader: asyncio.StreamReader) -> bytes:
    """A body; the rules have limited its length, and the parser holds the sender to it."""
    found = bytearray()
    while isinstance(event := await _event(http, reader), h11.Data):
        found += event.data
    return bytes(found)


async def _answer(
    http: h11.Connection, writer: asyncio.StreamWriter, status: int, headers: list[tuple[str, str]], content: bytes
) -> None:
    if http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    response = h11.Response(status_code=status, headers=[*headers, ("content-length", str(len(content)))])
    for event in (response, h11.Data(data=content), h11.EndOfMessage()):
        writer.write(http.send(event) or b"")
    async with asyncio.timeout(_BODY):
        await writer.drain()


async def _linger(reader: asyncio.StreamReader) -> None:
    """Let the sender finish and read the answer: a connection that is cut at once takes the answer with it."""
    left = _LINGER_BYTES
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(_LINGER):
            while left > 0 and (some := await reader.read(1 << 16)):
                left -= len(some)
