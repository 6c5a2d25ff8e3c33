"""What goes to sites and what comes back: replies from Flower, and word from the gate of those that it refused."""

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

from fedgen.federate.gate.rules import STRIKES
from fedgen.federate.journal import before

_PATIENCE = 2.0  # seconds to wait for a reply that is being fetched before looking at the others
# SuperLink cannot be reached, or has ended the run. Whatever else goes wrong with one site's message is that site's.
NO_SITES_FAULT = (httpx.TransportError, RunNotRunningException)


class UnsentError(Exception):
    """A message that could not be sent, to one site; its text is the reason."""


def send(grid: Grid, message: Message) -> str:
    """Send one message; gives its id."""
    try:
        pushed = list(grid.push_messages([message]))
    except NO_SITES_FAULT:
        raise
    except Exception as error:
        raise UnsentError(f"its message could not be sent: {type(error).__name__}: {error}") from None
    if not (pushed and pushed[0]):
        raise UnsentError("Flower did not take the message for it")
    return pushed[0]


class Replies:
    """Fetches replies, each in a thread of its own.

    Flower announces a reply before all of it is there and then waits for the rest, for minutes: a site that never
    sends it holds up its own thread and nobody else's reply.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._fetching: dict[str, _Fetch] = {}  # by the question's message id

    def take(self, questions: Iterable[str]) -> list[tuple[str, Message | Exception]]:
        """The replies to these questions that are there, or what came of unpacking one; each with its question."""
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
        """Keep nothing of these questions: a reply that is still being fetched goes when its thread ends."""
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
        except NO_SITES_FAULT as error:
            self._ended = error
        except Exception as error:
            self._replies = [error]

    def replies(self) -> list[Message | Exception]:
        """What there is; raises what is no site's fault."""
        if self._ended is not None:
            raise self._ended
        return self._replies


class Refusal(NamedTuple):
    """A message that the gate did not let through."""

    site: str
    reason: str
    question: str  # the id of the message that it answered; empty: the gate did not get to know


class GateNews:
    """What the gate has written down since the last look: the sites whose message it refused, and why.

    When another file has taken its journal's place, the rest of the one before is read first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._seen = 0, 0  # which file it is (its number in the file system), and how far it was read
        self._lines()

    def refused(self) -> list[Refusal]:
        """Each message of a site that was too large or not in order."""
        events = [e for e in map(_parsed, self._lines()) if e.get("status") in STRIKES and e.get("site")]
        return [Refusal(e["site"], e.get("reason", ""), e.get("question", "")) for e in events]

    def _lines(self) -> list[bytes]:
        """The whole lines that were not read yet."""
        found: list[bytes] = []
        for path in (before(self._path), self._path):
            try:
                with path.open("rb") as file:
                    about = os.fstat(file.fileno())
                    if about.st_ino != self._file:
                        if path != self._path:
                            continue  # an older one, which was read to its end
                        self._file, self._seen = about.st_ino, 0
                    file.seek(self._seen if about.st_size >= self._seen else 0)  # it may have been emptied
                    start, some = file.tell(), file.read()
            except FileNotFoundError:
                continue
            whole = some[: some.rfind(b"\n") + 1]
            self._seen = start + len(whole)
            found += whole.splitlines()
        return found


def _parsed(line: bytes) -> dict[str, Any]:
    """An event; none where the line is not one, as when the disk was full and half of it was written."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}
