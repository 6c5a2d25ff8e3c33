"""Asking sites and taking their answers: time limits, failures, refusals and exclusion."""

import secrets
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import httpx
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgen.errors import FedgenError
from fedgen.federate.journal import Journal
from fedgen.federate.server.replies import GateNews, Replies, UnsentError, send
from fedgen.federate.server.roster import Roster, wait_until
from fedgen.federate.settings import ServerSettings
from fedgen.federate.wire import RefusedError

# Seconds that a message is valid beyond the round's time, which begins only when all are sent; an answer in the round's
# last seconds must not be too late for Flower.
_LATE = 30.0
Answer = TypeVar("Answer")


class Exchange:
    """The server's side of the wire. A site that fails or misbehaves costs its own answer and nothing else."""

    def __init__(
        self, grid: Grid, settings: ServerSettings, journal: Journal, keys: Mapping[str, bytes], gate: GateNews
    ) -> None:
        self._grid, self._settings, self._journal = grid, settings, journal
        self._replies, self._gate = Replies(grid), gate
        self.roster = Roster(grid, settings, journal, keys)
        self.strikes: dict[str, int] = {}  # by the name of the site
        self._lost: dict[int, tuple[str, int]] = {}  # by site: its arrival, and the round in which it did not answer

    def await_all(self, users: int) -> None:
        """Give all sites time to come; who comes later takes part from then on."""
        deadline = time.monotonic() + self._settings.join_timeout
        while len(self.roster.present()) < users and wait_until(deadline, self._settings.poll):
            pass

    def able(self, number: int, order: list[int]) -> dict[int, int]:
        """The sites that can be asked now, in this order, and their nodes."""
        present = self.roster.present()
        return {site: present[site] for site in order if site in present and self._is_asked(site, number)}

    def cohort(self, number: int, order: list[int], active: int, good: int = 0) -> dict[int, int]:
        """The first sites of this order that can be asked, besides `good` that have answered; waits for enough."""
        needed = self._settings.min_sites
        deadline, said = time.monotonic() + self._settings.wait_timeout, False
        while True:
            able = self.able(number, order)
            there = len(able) + good
            if there >= needed:
                return dict(list(able.items())[: active - good])
            if not said:
                self._journal.write("waiting", round=number, present=there, needed=needed)
                said = True
            self._lost.clear()  # there is no choice but to ask the silent ones again
            if not wait_until(deadline, self._settings.poll):
                out = sum(strikes >= self._settings.strikes for strikes in self.strikes.values())
                excluded = f" ({out} are excluded for {self._settings.strikes} refused messages)" if out else ""
                raise FedgenError(
                    f"only {there} of the {needed} sites that are needed were there for"
                    f" {self._settings.wait_timeout:g} seconds{excluded}; the {number} finished rounds are kept, and"
                    " the run can be continued"
                )

    def ask(
        self,
        kind: str,
        run: str,
        number: int,
        arrays: ArrayRecord,
        sites: Mapping[int, int],
        take: Callable[[Message, ConfigRecord], Answer],
    ) -> dict[int, Answer]:
        """The sites' answers within the round's time; `take` checks one, and refuses what does not fit."""
        waiting: dict[str, tuple[int, ConfigRecord]] = {}
        timeout = self._settings.round_timeout
        self._gate.refused()  # what concerned earlier questions
        for site, node in sites.items():
            # Each question has a ticket of its own, which an answer must repeat.
            question = ConfigRecord({"run": run, "round": number, "site": site, "ticket": secrets.token_hex(8)})
            content = RecordDict({"broadcast": arrays, "about": question})
            # One by one: each holds the same arrays, and together they may be more than a request can carry.
            message = Message(content, node, kind, ttl=timeout + _LATE, group_id=str(number))
            try:
                waiting[send(self._grid, message)] = site, question
            except UnsentError as error:
                self._failed(site, number, str(error))
        answers: dict[int, Answer] = {}
        questions = list(waiting)
        deadline = time.monotonic() + timeout
        while waiting:
            for asked, reply in self._replies.take(list(waiting)):
                site, question = waiting.pop(asked)
                if isinstance(reply, httpx.HTTPStatusError):
                    self._failed(site, number, f"its answer could not be fetched: {reply}")
                    continue
                if isinstance(reply, Exception):  # a site's bytes that Flower could not unpack
                    self._strike(site, number, f"it cannot be unpacked: {type(reply).__name__}: {reply}"[:300])
                    continue
                if reply.metadata.reply_to_message_id != asked:  # the site writes this, too
                    self._strike(site, number, "it says that it answers another message")
                    continue
                if reply.has_error():
                    self._failed(site, number, reply.error.reason or f"error {reply.error.code}")
                    continue
                try:
                    answers[site] = take(reply, question)
                except RefusedError as error:
                    self._strike(site, number, str(error))
                except Exception as error:  # whatever a message does to us must not end the others' run
                    self._strike(site, number, f"it cannot be taken: {type(error).__name__}: {error}"[:300])
                else:
                    self._journal.write("answered", kind=kind, round=number, site=self.roster.name(site))
            for refusal in self._gate.refused():
                for message_id, (site, _) in list(waiting.items()):
                    if self.roster.name(site) == refusal.site and refusal.question in ("", message_id):
                        del waiting[message_id]
                        self._strike(site, number, f"the gate refused it: {refusal.reason}")
            if waiting and not wait_until(deadline, self._settings.poll):
                break
        for site, _ in waiting.values():
            self._lost[site] = self.roster.arrival(site), number
            self._failed(site, number, f"no answer within {timeout:g} seconds")
        self._replies.forget(questions)  # those that are late, and those whose answer the gate refused
        return {site: answers[site] for site in sites if site in answers}

    def _is_asked(self, site: int, number: int) -> bool:
        """Whether a site takes part: not excluded, and not silent unless it came back or has rested."""
        if self.strikes.get(self.roster.name(site), 0) >= self._settings.strikes:
            return False
        if site in self._lost:
            arrival, missed = self._lost[site]
            if arrival == self.roster.arrival(site) and number < missed + self._settings.rest:
                return False
            del self._lost[site]
        return True

    def _failed(self, site: int, number: int, reason: str) -> None:
        self._journal.write("failed", round=number, site=self.roster.name(site), reason=reason[:300])

    def _strike(self, site: int, number: int, reason: str) -> None:
        name = self.roster.name(site)
        strikes = self.strikes[name] = self.strikes.get(name, 0) + 1
        self._journal.write("refused", round=number, site=name, reason=reason, strikes=strikes)
        if strikes == self._settings.strikes:
            self._journal.write("excluded", round=number, site=name, reason=f"{strikes} messages were refused")
