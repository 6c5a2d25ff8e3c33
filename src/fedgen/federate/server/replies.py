"""Sending messages to sites, and fetching their replies."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from fedgen.federate.flower import Arrival, RunNotRunningException, arrivals, discard_object

_PATIENCE = 2.0  # seconds to wait for replies that are being fetched before looking at the others
AT_ONCE = 8  # replies that are fetched at a time
_SWEEP, _MOST_LATE = 10.0, 10_000  # seconds between looks for late replies, and how many are looked for
_LOOKS = 3  # at a late reply for which SuperLink fails, though not for others
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
        self._late = _Late(grid)
        self._good: set[str] = set()  # the messages that were answered, and not with an error
        self._looked: dict[str, int] = {}  # when each message was last asked for
        self._turn = 0
        self._over: set[str] = set()  # those that SuperLink has an end of: a reply, or an error in its place

    def take(self, questions: Iterable[str]) -> list[tuple[str, Message | Exception]]:
        """The replies to these messages that have arrived, each with its message's id; an exception if not readable."""
        questions = list(questions)
        self._late.sweep()
        self._look([question for question in questions if question not in self._fetching])
        self._fetch_some()
        found: list[tuple[str, Message | Exception]] = []
        for question in questions:
            if (fetch := self._fetching.get(question)) is not None and fetch.has_ended():
                replies = self._fetching.pop(question).replies()
                found += [(question, reply) for reply in replies]
                if fetch.reply or any(isinstance(reply, Message) for reply in replies):
                    self._over.add(question)
                if any(isinstance(reply, Message) and not reply.has_error() for reply in replies):
                    self._good.add(question)
        return found

    def _look(self, questions: list[str]) -> None:
        """Find out which replies can be fetched: of all messages by one request.

        Where it fails, which one site's message may have caused, and where the grid has no such request, some messages
        are asked for one by one, in turn.
        """
        try:
            found = arrivals(self._grid, questions)
        except SUPERLINK_ERRORS:
            raise
        except Exception:
            found = None
        if found is not None:
            self._fetching |= {arrival.question: _Fetch.of(arrival) for arrival in found}
            return
        for question in sorted(questions, key=lambda question: self._looked.get(question, 0))[:AT_ONCE]:
            self._turn += 1
            self._looked[question] = self._turn
            self._fetching[question] = _Fetch(partial(self._pulled, question))

    def _pulled(self, question: str) -> list[Message]:
        return list(self._grid.pull_messages([question]))

    def _fetch_some(self) -> None:
        """Fetch the next replies, and wait for them a little; those that take long do not count."""
        busy = [fetch for fetch in self._fetching.values() if fetch.is_busy()]
        waiting = [fetch for fetch in self._fetching.values() if fetch.began is None]
        for fetch in waiting[: AT_ONCE - len(busy)]:
            fetch.begin()
            busy.append(fetch)
        deadline = time.monotonic() + _PATIENCE
        for fetch in busy:
            fetch.join(max(deadline - time.monotonic(), 0.0))

    def forget(self, questions: Iterable[str]) -> None:
        """Forget these messages, also at SuperLink; a reply that is still being fetched is dropped when it comes.

        SuperLink keeps a message until the site has fetched it, and a reply until the server has, or the run has ended.
        """
        for question in questions:
            fetch = self._fetching.pop(question, None)
            if fetch is not None and fetch.began is None and fetch.reply:
                _discard(self._grid, fetch.reply)  # it was announced, once, and there was no time to fetch it
                self._over.add(question)
            if question not in self._good:
                _discard(self._grid, question)
            if question not in self._over:
                self._late.add(question)
            self._looked.pop(question, None)
        self._good.clear()
        self._over.clear()


class _Late:
    """Messages that nobody waits for any more: their replies are fetched and thrown away, so that SuperLink is rid of
    them. After its time to live, SuperLink answers a message with an error, which is an end, too."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._questions: dict[str, int] = {}  # and how often SuperLink failed when it was asked for one alone
        self._sweeping: threading.Thread | None = None
        self._next = 0.0

    def add(self, question: str) -> None:
        self._questions[question] = 0
        while len(self._questions) > _MOST_LATE:
            del self._questions[next(iter(self._questions))]

    def sweep(self) -> None:
        """Look for late replies now and then, in a separate thread."""
        if not self._questions or time.monotonic() < self._next or (self._sweeping and self._sweeping.is_alive()):
            return
        self._next = time.monotonic() + _SWEEP
        sweeping = threading.Thread(target=self._fetch_all, args=[list(self._questions)], daemon=True)
        with contextlib.suppress(RuntimeError):  # the system has no more threads; it is tried again
            sweeping.start()
            self._sweeping = sweeping

    def _fetch_all(self, questions: list[str]) -> None:
        """Look for all by one request; where SuperLink fails, for each half, since one may keep the others back."""
        try:
            found = arrivals(self._grid, questions) or []
        except SUPERLINK_ERRORS:
            return  # it is tried again
        except Exception:
            if len(questions) > 1:
                half = len(questions) // 2
                self._fetch_all(questions[:half])
                self._fetch_all(questions[half:])
            else:
                self._failed(*questions)
            return
        for arrival in found:
            self._questions.pop(arrival.question, None)  # it is not announced again
            with contextlib.suppress(Exception):  # whatever is wrong concerns nobody
                arrival.fetch()

    def _failed(self, question: str) -> None:
        """SuperLink cannot say what became of a message: it may do so later, but not for ever."""
        looks = self._questions[question] = self._questions.get(question, 0) + 1
        if looks >= _LOOKS:
            del self._questions[question]


def _discard(grid: Grid, question: str) -> None:
    try:
        discard_object(grid, question)
    except SUPERLINK_ERRORS:
        raise
    except Exception:
        return  # it only takes up space, until the run ends


class _Fetch:
    """The fetching of what replies there are to one message, in a thread."""

    def __init__(self, fetch: Callable[[], list[Message]], reply: str = "") -> None:
        self._fetch, self.reply = fetch, reply
        self.began: float | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._replies: list[Message | Exception] = []
        self._ended: BaseException | None = None

    @classmethod
    def of(cls, arrival: Arrival) -> "_Fetch":
        return cls(lambda: [arrival.fetch()], arrival.reply)

    def begin(self) -> None:
        self.began = time.monotonic()
        try:
            self._thread.start()
        except RuntimeError as error:  # the system has no more threads
            self._replies = [error]

    def is_busy(self) -> bool:
        """Whether it began a moment ago and has not ended."""
        return self.began is not None and not self.has_ended() and time.monotonic() - self.began < _PATIENCE

    def has_ended(self) -> bool:
        return self.began is not None and not self._thread.is_alive()

    def join(self, seconds: float) -> None:
        if not self.has_ended():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._replies = list(self._fetch())
        except SUPERLINK_ERRORS as error:
            self._ended = error
        except Exception as error:
            self._replies = [error]

    def replies(self) -> list[Message | Exception]:
        """The replies; raises what concerns SuperLink and not the site."""
        if self._ended is not None:
            raise self._ended
        return self._replies
