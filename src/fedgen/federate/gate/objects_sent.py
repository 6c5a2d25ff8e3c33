"""Objects that SuperLink gave to one site, kept for the others: the same model goes to all of them.

An object is named by the hash of its content. Whether a site may have it is decided before it is looked for here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from fedgen.federate.flower import PullObjectResponse
from fedgen.federate.gate.http import Response

_KEPT = 64 << 20  # bytes
_EACH = 2048  # bytes that a response takes beside its content, roughly: most objects are smaller than that


class SentObjects:
    """The latest responses with an object, up to a number of bytes."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._most = kept
        self._responses: OrderedDict[str, Response] = OrderedDict()
        self._bytes = 0
        self._asked: dict[str, asyncio.Future[None]] = {}  # those that SuperLink is just being asked for

    async def get(self, name: str, ask: Callable[[], Awaitable[Response]]) -> Response:
        """The response with this object; SuperLink is asked once, also where several sites ask at the same time."""
        while (asked := self._asked.get(name)) is not None:
            await asyncio.wait([asked])
        if name in self._responses:
            self._responses.move_to_end(name)
            return self._responses[name]
        asked = self._asked[name] = asyncio.get_running_loop().create_future()
        try:
            response = await ask()
        finally:
            del self._asked[name]
            asked.set_result(None)
        if response.status == 200 and PullObjectResponse.FromString(response.content).object_available:
            self._keep(name, response)
        return response

    def _keep(self, name: str, response: Response) -> None:
        self._responses[name] = response
        self._bytes += len(response.content) + _EACH
        while self._bytes > self._most:
            _, oldest = self._responses.popitem(last=False)
            self._bytes -= len(oldest.content) + _EACH
