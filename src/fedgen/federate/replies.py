"""What comes back from sites, by two ways: replies from Flower, and word from the gate of those that it refused."""

import json
import threading
from collections.abc import Iterable
from pathlib import Path

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

_PATIENCE = 2.0  # seconds to wait for a reply that is being fetched before looking at the others
_TOO_LARGE = 413


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


class _Fetch(threading.Thread):
    def __init__(self, grid: Grid, question: str) -> None:
        super().__init__(daemon=True)
        self._grid, self._question = grid, question
        self._replies: list[Message | Exception] = []

    def run(self) -> None:
        try:
            self._replies = list(self._grid.pull_messages([self._question]))
        except Exception as error:
            self._replies = [error]

    def replies(self) -> list[Message | Exception]:
        """What there is; raises where SuperLink could not be reached, which is no site's fault."""
        for reply in self._replies:
            if isinstance(reply, httpx.HTTPError):
                raise reply
        return self._replies


class GateNews:
    """What the gate has written down since the last look: the sites whose message was too large, and why."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = path.stat().st_size if path.exists() else 0

    def too_large(self) -> dict[str, str]:
        """By the site's name."""
        if not self._path.exists():
            return {}
        with self._path.open("rb") as file:
            file.seek(self._seen)
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._seen += len(whole)
        events = map(json.loads, whole.splitlines())
        return {e["site"]: e["reason"] for e in events if e.get("status") == _TOO_LARGE and e.get("site")}
