"""One connection of the gate as HTTP: requests come in, answers go out, and the bytes of both are counted."""

import asyncio
import contextlib
from typing import NamedTuple

import h11
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

_HEAD = 16 << 10  # bytes of a request before its body
_BODY = 120.0  # seconds that a body may take, either way
LINGER, _LINGER_BYTES = 3.0, 16 << 20  # what a refused sender may still send, so that it reads why


class Answer(NamedTuple):
    """What a request is answered with."""

    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = (("content-type", PROTOBUF_MEDIA_TYPE),)


class Line:
    """One connection. Bytes are those within TLS, which adds about 2 in 1000 of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        self._reader, self._writer = reader, writer
        self.received = 0

    async def event(self) -> h11.Event:
        """What comes next."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(1 << 16)
            self.received += len(data)
            self._http.receive_data(data)
        assert event is not h11.PAUSED, "a request is answered before the next one is looked at"
        return event  # type: ignore[return-value]

    async def body(self) -> bytes:
        """A body; the rules have limited its length, and the parser holds the sender to it."""
        found = bytearray()
        async with asyncio.timeout(_BODY):
            while isinstance(event := await self.event(), h11.Data):
                found += event.data
        return bytes(found)

    async def answer(self, answer: Answer) -> int:
        """Answer a request; gives the bytes that were sent."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return 0
        headers = [*answer.headers, ("content-length", str(len(answer.content)))]
        response = h11.Response(status_code=answer.status, headers=headers)
        sent = 0
        for event in (response, h11.Data(data=answer.content), h11.EndOfMessage()):
            data = self._http.send(event) or b""
            sent += len(data)
            self._writer.write(data)
        async with asyncio.timeout(_BODY):
            await self._writer.drain()
        return sent

    def goes_on(self) -> bool:
        """Whether another request may follow."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def linger(self) -> None:
        """Let the sender finish and read the answer: a connection that is cut at once takes the answer with it."""
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError, OSError):
            async with asyncio.timeout(LINGER):
                while left > 0 and (some := await self._reader.read(1 << 16)):
                    left -= len(some)
