"""HTTP on one connection of the gate: requests in, responses out, and the bytes of both counted."""

import asyncio
import contextlib
from email.utils import formatdate
from typing import NamedTuple

import h11

from fedgen.federate.flower import PROTOBUF_MEDIA_TYPE

_HEAD = 16 << 10  # bytes of a request before its body
_BODY = 120.0  # seconds that a body may take, in either direction
LINGER, _LINGER_BYTES = (
    3.0,
    16 << 20,
)  # seconds and bytes that a refused client may still send, so that it gets to read why


class Response(NamedTuple):
    """The response to a request."""

    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", PROTOBUF_MEDIA_TYPE),)


class HttpConnection:
    """One connection. Bytes are counted within TLS, which adds about 0.2 %."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        self._reader, self._writer = reader, writer
        self.received = 0

    async def next_event(self) -> h11.Event:
        """The next event of the request: its head, a part of its body, its end."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(1 << 16)
            self.received += len(data)
            self._http.receive_data(data)
        assert event is not h11.PAUSED, "a request is answered before the next one is parsed"
        return event  # type: ignore[return-value]

    async def body(self) -> bytes:
        """The request's body; the rules have limited its announced length, and the parser enforces that length."""
        found = bytearray()
        async with asyncio.timeout(_BODY):
            while isinstance(event := await self.next_event(), h11.Data):
                found += event.data
        return bytes(found)

    async def respond(self, response: Response) -> int:
        """Send the response; returns the number of bytes that were sent."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return 0
        # By the date a site can tell whether its clock is right.
        fixed = ("date", formatdate(usegmt=True)), ("content-length", str(len(response.content)))
        headers = [*response.headers, *fixed]
        head = h11.Response(status_code=response.status, headers=headers)
        sent = 0
        for event in (head, h11.Data(data=response.content), h11.EndOfMessage()):
            data = self._http.send(event) or b""
            sent += len(data)
            self._writer.write(data)
        async with asyncio.timeout(_BODY):
            await self._writer.drain()
        return sent

    def start_next_request(self) -> bool:
        """Prepare for another request on this connection; False where there can be none."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def linger(self) -> None:
        """Read on for a moment before closing: a connection closed at once may be reset before the client has read."""
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER):
                while left > 0 and (some := await self._reader.read(1 << 16)):
                    left -= len(some)
