"""Sending messages to sites, and fetching their replies."""

import threading
from collections.abc import Iterable

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedgen.federate.flower import RunNotRunningException

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
