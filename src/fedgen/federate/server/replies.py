"""Sending messages to sites, fetching their replies, and learning from the gate which replies it refused."""

import json
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException

from fedgen.federate.gate.rules import STRIKE_STATUSES
from fedgen.federate.journal import rotated

_PATIENCE = 2.0  # seconds to wait for one reply that is being fetched before looking at the others
# SuperLink cannot be reached, or has ended the run. All other errors concern one site's message only.
SUPERLINK_ERRORS = (httpx.TransportError, RunNotRunningException)


class SendError(Exception):
    """A message to one site that could not be sent; its text is the reason."""


def send(grid: Grid, message: Message) -> str:
    """Send one message and return its id."""
    try:
        pushed = list(grid.push_messages([message]))
    except SUPERLINK_ERRORS:
        raise
    except Exception as error:
        raise SendError(f"its message could not be sent: {type(error).__name__}: {error}") from None
    if not (pushed and pushed[0]):
        raise SendError("Flower did not accept the message for it")
    return pushed[0]


class Replies:
    """Fetches replies, each in its own thread.

    Flower announces a reply before it is complete and then waits for the rest, for minutes: a site that never sends it
    blocks one thread and no other reply.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._fetching: dict[str, _Fetch] = {}  # by the id of the message it replies to

    def take(self, questions: Iterable[str]) -> list[tuple[str, Message | Exception]]:
        """The replies to these messages that have arrived, each with its message's id; an exception if not readable."""
        found: list[tuple[str, Message | Exception]] = []
        for question in questions:
            fetch = self._fetching.get(question)
            if fetch is None:
                fetch = self._fetching[question] = _Fetch(self._grid, question)
                fetch.start()
                fetch.join(_PATIENCE)
            if not fetch.is_alive():
                found += [(question, reply) for reply in self._fetching.pop(question).replies()]
        return found

    def forget(self, questions: Iterable[str]) -> None:
        """Forget these messages; a reply that is still being fetched is dropped when its thread ends."""
        for question in questions:
            self._fetching.pop(question, None)


class _Fetch(threading.Thread):
    def __init__(self, grid: Grid, question: str) -> None:
        super().__init__(daemon=True)
        self._grid, self._question = grid, question
        self._replies: list[Message | Exception] = []
        self._ended: BaseException | None = None

    def run(self) -> None:
        try:
            self._replies = list(self._grid.pull_messages([self._question]))
        except SUPERLINK_ERRORS as error:
            self._ended = error
        except Exception as error:
            self._replies = [error]

    def replies(self) -> list[Message | Exception]:
        """The replies; raises what concerns SuperLink and not the site."""
        if self._ended is not None:
            raise self._ended
        return self._replies


class Refusal(NamedTuple):
    """A reply that the gate refused."""

    site: str
    reason: str
    question: str  # the id of the message that it replied to; empty: the gate does not know it


class GateLog:
    """Follows the gate's journal: which replies it has refused since the last look, and why.

    After a rotation the rest of the old file is read first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._seen = 0, 0  # the file's inode, and how far it was read
        self._lines()

    def refused(self) -> list[Refusal]:
        """The replies that were too large or not valid, since the last call."""
        events = [e for e in map(_parsed, self._lines()) if e.get("status") in STRIKE_STATUSES and e.get("site")]
        return [Refusal(e["site"], e.get("reason", ""), e.get("question", "")) for e in events]

    def _lines(self) -> list[bytes]:
        """The complete lines that were not read yet."""
        found: list[bytes] = []
        for path in (rotated(self._path), self._path):
            try:
                with path.open("rb") as file:
                    about = os.fstat(file.fileno())
                    if about.st_ino != self._file:
                        if path != self._path:
                            continue  # an older file, which was read to its end
                        self._file, self._seen = about.st_ino, 0
                    file.seek(self._seen if about.st_size >= self._seen else 0)  # the file may have been truncated
                    start, some = file.tell(), file.read()
            except FileNotFoundError:
                continue
            whole = some[: some.rfind(b"\n") + 1]
            self._seen = start + len(whole)
            found += whole.splitlines()
        return found


def _parsed(line: bytes) -> dict[str, Any]:
    """An event; empty where the line is not one, as when the disk was full and only a part was written."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
