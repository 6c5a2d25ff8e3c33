"""Messages to the sites and their replies: timeouts, failures, refused replies and exclusion of sites."""

import secrets
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgen.errors import FedgenError
from fedgen.federate.flower import UNPACKING_ERRORS, ObjectPullError
from fedgen.federate.gate.refusals import RefusalReader
from fedgen.federate.gate.sent_marks import SentMarks
from fedgen.federate.journal import Journal
from fedgen.federate.schema import ServerSettings
from fedgen.federate.server.membership import Membership
from fedgen.federate.server.replies import AT_ONCE, Replies, SendError, send
from fedgen.federate.server.roster import Roster, wait_until
from fedgen.federate.text import printable
from fedgen.federate.wire import InvalidMessageError, NotFiniteError

# Seconds that a message stays valid beyond the round's timeout, which starts only when all are sent: Flower must still
# accept a reply in the round's last seconds.
_LATE = 30.0
Answer = TypeVar("Answer")


_TAKEN_BACK = 0.5  # of a silence, by each answer: who is silent in every second round rests longer and longer


class Silences(NamedTuple):
    """The rounds in which a site was silent, less half of those in which it answered since."""

    times: float
    last: int


class Rest(NamedTuple):
    """The round when a silent site is asked again, also if it has reconnected or only if it has not."""

    arrival: str  # when it had connected
    returned: int
    still_there: int


class Exchange:
    """The server's messages to its sites. A site that fails or misbehaves costs its own reply and nothing else."""

    def __init__(
        self,
        grid: Grid,
        settings: ServerSettings,
        journal: Journal,
        members: Membership,
        gate: RefusalReader,
        marks: SentMarks,
    ) -> None:
        self._grid, self._settings, self._journal = grid, settings, journal
        self._replies, self._gate, self._marks = Replies(grid), gate, marks
        self.roster = Roster(grid, settings, journal, members)
        self.strikes: dict[str, int] = {}  # by the name of the site
        self.excluded: dict[str, int | None] = {}  # by name: the round when it is asked again; None: never
        self.not_finite: set[int] = set()  # sites whose last replies had values that are NaN or infinite
        self._silences: dict[tuple[int, str], Silences] = {}  # by site and kind of message
        self._rests: dict[int, Rest] = {}  # by site

    def resume(self, strikes: dict[str, int], excluded: dict[str, int | None], number: int) -> None:
        """Go on with what is known of sites before this round; who has `strikes` of them by now is excluded from here.

        So it is in older checkpoints, where only strikes say who is excluded, and after the setting was lowered.
        """
        self.strikes, self.excluded = strikes, excluded
        for name, count in list(strikes.items()):
            if count >= self._settings.strikes:
                self._exclude(name, number, count, after=number)

    def wait_for_all(self) -> None:
        """Wait until all sites are connected, at most `join_timeout`; later ones take part from then on."""
        deadline = time.monotonic() + self._settings.join_timeout
        while len(self.roster.present()) < len(self.roster.belonging()) and wait_until(deadline, self._settings.poll):
            pass

    def available(self, number: int, order: Callable[[], list[int]]) -> dict[int, int]:
        """The nodes of the sites that can be asked now, by site, in the order of the sites that belong to us now."""
        present = self.roster.present()
        return {site: present[site] for site in order() if site in present and self._may_be_asked(site, number)}

    def cohort(self, number: int, order: Callable[[], list[int]], active: int, good: int = 0) -> dict[int, int]:
        """The first sites of this order that can be asked; waits until they and the `good` valid updates are enough.

        Meanwhile sites may be added and removed, so that the order is asked for each time.
        """
        needed = self._settings.min_sites
        deadline, logged = time.monotonic() + self._settings.wait_timeout, False
        while True:
            available = self.available(number, order)
            present = len(available) + good
            if present >= needed:
                return dict(list(available.items())[: active - good])
            if not logged:
                self._journal.write("waiting", round=number, present=present, needed=needed)
                logged = True
            self._rests.clear()  # there is no choice but to ask those again
            if not wait_until(deadline, self._settings.poll):
                out = sum(not self._is_back(name, number) for name in list(self.excluded))
                excluded = f" ({out} are excluded for {self._settings.strikes} refused messages)" if out else ""
                raise FedgenError(
                    f"only {present} of the {needed} sites that are needed were connected for"
                    f" {self._settings.wait_timeout:g} seconds{excluded}; the {number} finished rounds are kept, and"
                    " the run can be resumed"
                )

    def ask(
        self,
        kind: str,
        run: str,
        number: int,
        arrays: ArrayRecord,
        sites: Mapping[int, int],
        take: Callable[[Message, ConfigRecord], Answer],
        objects: int,
    ) -> dict[int, Answer]:
        """The sites' replies within the round's timeout; `take` checks one and raises for what is not valid.

        `objects` is how many of Flower's objects a reply has at most.
        """
        waiting: dict[str, tuple[int, ConfigRecord]] = {}
        timeout = self._settings.round_timeout
        self._gate.refused()  # skip what concerned earlier messages
        self.not_finite = set()
        for site, node in sites.items():
            # A random ticket, which the reply must repeat.
            question = ConfigRecord({"run": run, "round": number, "site": site, "ticket": secrets.token_hex(8)})
            content = RecordDict({"broadcast": arrays, "about": question})
            # One by one: all together may be too large for one request, and sites would see them before their arrays.
            message = Message(content, node, kind, ttl=timeout + _LATE, group_id=str(number))
            try:
                waiting[asked := send(self._grid, message)] = site, question
                self._marks.mark(self.roster.name(site), asked, objects)
            except SendError as error:
                self._failed(site, number, str(error))
        answers: dict[int, Answer] = {}
        questions = list(waiting)
        identities = {site: self.roster.identity(site) for site in sites}
        deadline, unseen = time.monotonic() + timeout, 0
        while waiting:
            found = self._replies.take(list(waiting))
            for asked, reply in found:
                site, question = waiting.pop(asked)
                if isinstance(reply, httpx.HTTPStatusError | ObjectPullError):
                    self._failed(site, number, f"its answer could not be fetched: {reply}")
                    continue
                if isinstance(reply, UNPACKING_ERRORS):
                    self._strike(site, number, f"it cannot be unpacked: {type(reply).__name__}: {reply}"[:300])
                    continue
                if isinstance(reply, Exception):
                    self._failed_here(site, number, reply)
                    continue
                if reply.metadata.reply_to_message_id != asked:  # this, too, is under the site's control
                    self._strike(site, number, "it says that it answers another message")
                    continue
                if reply.has_error():
                    self._failed(site, number, reply.error.reason or f"error {reply.error.code}")
                    continue
                try:
                    answers[site] = take(reply, question)
                except NotFiniteError as error:  # an honest site's training may diverge, so that this is no strike
                    self.not_finite.add(site)
                    self._not_silent(site, kind)
                    self._journal.write("refused", round=number, site=self.roster.name(site), reason=str(error))
                except InvalidMessageError as error:
                    self._strike(site, number, str(error))
                except Exception as error:  # no answer may end the run for the others
                    self._failed_here(site, number, error)
                else:
                    self._not_silent(site, kind)
                    self._journal.write("answered", kind=kind, round=number, site=self.roster.name(site))
            for refusal in self._gate.refused():
                for message_id, (site, _) in list(waiting.items()):
                    if self.roster.name(site) == refusal.site and refusal.question in ("", message_id):
                        del waiting[message_id]
                        self._strike(site, number, f"the gate refused it: {refusal.reason}")
            self.roster.refresh()
            for message_id, (site, _) in list(waiting.items()):
                if self.roster.identity(site) != identities[site]:  # the gate lets no answer of it through
                    del waiting[message_id]
                    self._failed(site, number, "it was removed, or its key replaced, while it was asked")
            if unseen:
                unseen -= 1
                if not unseen:
                    break
            elif waiting and not found and not wait_until(deadline, self._settings.poll):
                unseen = -(-len(waiting) // AT_ONCE)  # looks at each that may have replied in the last seconds
        for site, _ in waiting.values():
            self._silent(site, kind, number)
        self._replies.forget(questions)  # the late ones, and those whose reply the gate refused
        return {site: answers[site] for site in sites if site in answers}

    def _may_be_asked(self, site: int, number: int) -> bool:
        """False for an excluded site, and for one that rests since it did not reply."""
        if not self._is_back(self.roster.name(site), number):
            return False
        if site in self._rests:
            rest = self._rests[site]
            if number < (rest.still_there if rest.arrival == self.roster.arrival(site) else rest.returned):
                return False
            del self._rests[site]
        return True

    def _silent(self, site: int, kind: str, number: int) -> None:
        """A silent site rests for `rest` rounds, or until it returns; if it is so often, longer each time."""
        before = self._silences.get((site, kind), Silences(0, -1))
        times = before.times + (before.last != number)  # it may be asked again within a round
        self._silences[site, kind] = Silences(times, number)
        rest, more = self._settings.rest, 0
        if rest and times >= 2:
            more = 1 + min(2 ** min(int(times) - 2, 30), self._settings.exclusion or sys.maxsize)
        self._rests[site] = Rest(self.roster.arrival(site), number + more, number + max(rest, more))
        again = ", again" if times >= 2 else ""
        self._failed(site, number, f"no answer within {self._settings.round_timeout:g} seconds{again}")

    def _not_silent(self, site: int, kind: str) -> None:
        """An answer takes back a part of a silence."""
        if (before := self._silences.get((site, kind))) is not None:
            self._silences[site, kind] = before._replace(times=max(before.times - _TAKEN_BACK, 0.0))

    def _is_back(self, name: str, number: int) -> bool:
        """Whether a site may be asked in this round: it was never excluded, or not any more."""
        if name not in self.excluded:
            return True
        until = self.excluded[name]
        if until is None or number < until:
            return False
        del self.excluded[name]
        self._journal.write("readmitted", round=number, site=name)
        return True

    def _failed(self, site: int, number: int, reason: str) -> None:
        self._journal.write("failed", round=number, site=self.roster.name(site), reason=printable(reason))

    def _failed_here(self, site: int, number: int, error: Exception) -> None:
        """What the site is not to blame for, such as too little memory at the server."""
        reason = f"its answer is lost, since the server failed to read it: {type(error).__name__}: {error}"
        self._failed(site, number, reason[:300])

    def _strike(self, site: int, number: int, reason: str) -> None:
        name = self.roster.name(site)
        reason = printable(reason)
        strikes = self.strikes[name] = self.strikes.get(name, 0) + 1
        self._journal.write("refused", round=number, site=name, reason=reason, strikes=strikes)
        if strikes >= self._settings.strikes:
            self._exclude(name, number, strikes, after=number + 1)

    def _exclude(self, name: str, number: int, strikes: int, *, after: int) -> None:
        """Leave a site out of `exclusion` rounds, of which `after` is the first."""
        rounds = self._settings.exclusion
        until = self.excluded[name] = after + rounds if rounds else None
        self.strikes[name] = 0
        reason = f"{strikes} messages were refused"
        self._journal.write("excluded", round=number, site=name, reason=reason, until=until)
