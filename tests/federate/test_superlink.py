"""SuperLink with less to do for each request: what it answers itself, leaves to Flower, remembers and sums."""

import asyncio
import types
from typing import Any

from fedgen.federate.flower import PROTOBUF_MEDIA_TYPE, superlink_answers
from fedgen.federate.gate.superlink import ShortWay, remembered, summed


def ask(path: str, body: list[bytes], form: str = PROTOBUF_MEDIA_TYPE) -> list[Any]:
    """What is sent back, or what Flower's application got."""
    sent: list[Any] = []
    events = [{"type": "http.request", "body": b, "more_body": n + 1 < len(body)} for n, b in enumerate(body)]

    async def receive() -> Any:
        return events.pop(0)

    async def send(event: Any) -> None:
        sent.append(event)

    async def flower(scope: Any, receive: Any, send: Any) -> None:
        got = b""
        while (event := await receive())["more_body"]:
            got += event["body"]
        sent.append(("flower", got + event["body"]))

    def refuses(http: Any, body: bytes) -> bytes:
        raise ValueError("no")

    answers = {"/short": lambda http, body: body.upper(), "/refused": refuses}
    app = types.SimpleNamespace(state=types.SimpleNamespace())
    headers = [(b"content-type", form.encode())]
    scope = {"type": "http", "method": "POST", "path": path, "app": app, "headers": headers}
    asyncio.run(ShortWay(flower, answers)(scope, receive, send))
    return sent


def test_what_is_wrong_is_left_to_flower_with_its_whole_body() -> None:
    start, content = ask("/short", [b"a", b"b"])
    assert (start["status"], content["body"]) == (200, b"AB")
    assert (b"content-length", b"2") in start["headers"]
    for path, form in (("/refused", PROTOBUF_MEDIA_TYPE), ("/short", "text/plain"), ("/other", PROTOBUF_MEDIA_TYPE)):
        assert ask(path, [b"a", b"b"], form) == [("flower", b"ab")]


def test_the_requests_of_messages_are_answered() -> None:
    names = ["pull-messages", "push-messages", "pull-object", "push-object", "confirm-message-received"]
    assert {f"/v1/{api}/{name}" for api in ("fleet", "runtime") for name in names} < set(superlink_answers())


def test_a_run_that_goes_on_is_looked_at_now_and_then() -> None:
    looks: list[int] = []

    def look(run_id: int, against: list[str], state: Any) -> str | None:
        looks.append(run_id)
        return "ended" if run_id == 2 else None

    fast, slow = remembered(look, 0.0), remembered(look, 60.0)
    for _ in range(3):
        assert fast(1, ["finished"], None) is None
        assert slow(1, ["finished"], None) is None
        assert slow(2, ["finished"], None) == "ended"
    assert looks.count(1) == 3 + 1
    assert looks.count(2) == 3, "one that has ended is never remembered as going on"


def test_bytes_are_added_in_sums() -> None:
    stored: list[tuple[int, int, int]] = []

    def store(state: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        stored.append((run_id, bytes_sent, bytes_recv))

    often, rarely = summed(store, 0.0), summed(store, 60.0)
    for _ in range(3):
        often(None, 1, bytes_sent=2, bytes_recv=1)
        rarely(None, 2, bytes_sent=5, bytes_recv=0)
    assert stored == [(1, 2, 1), (2, 5, 0), (1, 2, 1), (1, 2, 1)]
