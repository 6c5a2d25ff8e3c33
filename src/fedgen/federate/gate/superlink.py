"""Flower's SuperLink as a process that does less for each request; superlink.sh runs it.

A message of two arrays is some thirty requests at SuperLink, and with a hundred sites a round is thousands. Each passes
nine layers of SuperLink's web framework, which take longer than what the request is for. Here the requests that
messages are made of are answered before these layers, by SuperLink's own functions. And for each object that a site
fetches or sends, SuperLink looks whether the run goes on, which marks app processes without a heartbeat as failed, and
adds the object's bytes to the run's: two or three writing transactions. Here it does both once a second.
"""

import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.middleware import Middleware
from starlette.requests import Request

from fedgen.federate.flower import PROTOBUF_MEDIA_TYPE, SuperLinkParts, superlink_answers, superlink_command

_EVERY = 1.0  # seconds
_EVENT_LOG = "fleet_event_log_plugin"  # of a SuperLink that logs each request, which its own layers do


def replaced(parts: SuperLinkParts) -> SuperLinkParts:
    """The parts of SuperLink as they are used here."""
    answers = superlink_answers()
    return SuperLinkParts(
        remembered(parts.ends), summed(parts.count_bytes), lambda: [Middleware(ShortWay, answers), *parts.layers()]
    )


class ShortWay:
    """An ASGI application before SuperLink's that answers some requests itself.

    Whatever is wrong with a request, and every other one, is left to SuperLink, which says what is wrong.
    """

    def __init__(self, app: Any, answers: Mapping[str, Callable[[Any, bytes], bytes]]) -> None:
        self._app, self._answers = app, answers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        answer = self._answers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if answer is None or getattr(scope["app"].state, _EVENT_LOG, None) is not None:
            await self._app(scope, receive, send)
            return
        body, more = bytearray(), True
        while more:
            event = await receive()
            if event["type"] == "http.disconnect":
                return
            body += event.get("body", b"")
            more = event.get("more_body", False)
        try:
            http = Request(scope)
            if http.headers.get("content-type") != PROTOBUF_MEDIA_TYPE:
                raise ValueError("not one of Flower's requests")
            content = answer(http, bytes(body))  # in this thread: handing it to another one takes longer
        except Exception:
            await self._app(scope, _again(bytes(body), receive), send)
            return
        headers = [(b"content-type", PROTOBUF_MEDIA_TYPE.encode()), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


def _again(body: bytes, receive: Any) -> Callable[[], Awaitable[Any]]:
    """A request's events with its whole body as the first."""
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Any:
        return events.pop() if events else await receive()

    return receive_again


def remembered(look: Callable[..., Any], every: float = _EVERY) -> Callable[..., Any]:
    """The function of a run's number, remembered for a while where it was None: there is nothing against the run."""
    fine_until: dict[tuple[int, tuple[str, ...]], float] = {}

    def looked(run_id: int, against: list[str], state: Any) -> Any:
        key, now = (run_id, tuple(against)), time.monotonic()
        if now < fine_until.get(key, 0.0):
            return None
        found = look(run_id, against, state)
        if found is None:
            fine_until[key] = now + every
        else:
            fine_until.pop(key, None)
        return found

    return looked


def summed(store: Callable[..., None], every: float = _EVERY) -> Callable[..., None]:
    """The method that adds bytes to a run's, called with their sum now and then."""
    lock = threading.Lock()
    sums: dict[int, list[int]] = {}
    due: dict[int, float] = {}

    def added(state: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        now = time.monotonic()
        with lock:
            total = sums.setdefault(run_id, [0, 0])
            total[0] += bytes_sent
            total[1] += bytes_recv
            if now < due.get(run_id, 0.0):
                return
            due[run_id] = now + every
            del sums[run_id]
        store(state, run_id, bytes_sent=total[0], bytes_recv=total[1])

    return added


if __name__ == "__main__":
    sys.argv[0] = "flower-superlink"  # Flower looks at its name
    command = superlink_command(replaced)
    gc.freeze()  # what is loaded now stays, so that it need not be looked at again and again
    command()
