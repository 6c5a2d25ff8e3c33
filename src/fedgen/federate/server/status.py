"""How a federation is doing, from the journals of server and gate and, where it answers, from SuperLink."""

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from fedgen.errors import FedgenError
from fedgen.federate.deploy.process_tree import is_running
from fedgen.federate.deploy.superlink import SuperLink
from fedgen.federate.flower import HEARTBEAT_PATIENCE, NodeInfo, NodeStatus
from fedgen.federate.journal import GATE_JOURNAL
from fedgen.federate.schema import ServerSettings, read_settings
from fedgen.federate.server.tail import Tail

_SCORES = ("accuracy", "accuracy_users", "accuracy_seen_labels", "accuracy_matching")
_CLOCK = 60.0  # seconds by which the clock may have been set forward since a run began


@dataclass
class SiteStatus:
    """One site."""

    name: str
    state: str = "never seen"  # present, away, busy, removed ...
    last_seen: float | None = None  # when, in seconds since 1970
    round: int | None = None  # the last one in which it trained; the first is 1
    seconds: float | None = None  # from being asked to its last answer
    bytes_up: int = 0  # on the wire, as the gate counts them
    bytes_down: int = 0
    failures: int = 0  # in this run: errors and time-outs
    refusals: int = 0  # in this run: answers that were refused
    strikes: int = 0
    excluded: bool = False
    trouble: str = ""  # what was last wrong, if it has not answered since


@dataclass
class RunStatus:
    """The latest run."""

    name: str = ""
    state: str = "no run yet"
    algorithm: str = ""
    rounds: int | None = None
    round: int = 0  # finished ones
    seconds: float | None = None  # of a round, the mean of the last ten
    score: dict[str, float] = field(default_factory=dict)
    score_round: int | None = None
    note: str = ""


class Status:
    """The state of a federation, which `update` brings up to date; `folder` is the server's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log, self._gate = Tail(folder / "log.jsonl"), Tail(folder / GATE_JOURNAL)
        self.run = RunStatus()
        self.sites: dict[str, SiteStatus] = {}
        self.superlink = ""  # empty: it answers; otherwise why it does not
        self.turned_away = 0  # requests of unknown senders that the gate refused
        self._present: set[str] = set()
        self._asked: dict[str, float] = {}  # by site: when; of those whose answer is waited for
        self._durations: list[float] = []
        self._pid, self._began = 0, 0.0  # the run's process, and when it said so
        self._ended = False
        self._earlier: dict[str, tuple[int, int]] = {}  # bytes up and down before the gate was last opened

    def update(self) -> None:
        """Take up what has happened since the last time."""
        settings = read_settings(self._folder / "server.toml", ServerSettings)
        for name in settings.sites:
            self.sites.setdefault(name, SiteStatus(name))
        events = [(event, self._server_event) for event in self._log.events()]
        events += [(event, self._gate_event) for event in self._gate.events()]
        for event, take_up in sorted(events, key=lambda pair: float(pair[0].get("time", 0))):
            take_up(event)
        try:
            nodes, self.superlink = SuperLink(self._folder).nodes(), ""
        except FedgenError as error:
            nodes, self.superlink = [], str(error)
        if self.run.name and not self._ended:
            self.run.state = "running" if self._alive() else "interrupted; server/run.sh resumes it"
        self._states(settings, nodes)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {
            "run": asdict(self.run),
            "sites": [asdict(site) for site in self.sites.values()],
            "superlink": self.superlink or "running",
            "turned_away": self.turned_away,
        }

    def _server_event(self, event: dict[str, Any]) -> None:
        kind, when = event["event"], float(event.get("time", 0))
        site = self.sites.get(str(event.get("site") or event.get("without") or ""))
        if kind in ("started", "resumed") or (kind == "continued" and not self.run.name):  # its beginning is deleted
            self._begin(event)
        elif kind == "round":
            self._asked.update(dict.fromkeys(map(str, event.get("cohort", ())), when))
            self.run.note, self._ended = "", False
        elif kind == "done":
            self._asked.clear()
            self._ended = False
            self.run.round = int(event["round"]) + 1
            self._durations = [*self._durations[-9:], float(event.get("seconds", 0))]
            self.run.seconds = sum(self._durations) / len(self._durations)
        elif kind == "score":
            self.run.score = {name: float(event[name]) for name in _SCORES if event.get(name) is not None}
            self.run.score_round = event.get("round")
        elif kind == "waiting":
            self.run.note = f"waiting: {event.get('present')} of the {event.get('needed')} sites needed are there"
        elif kind == "retry":
            self.run.note = f"the round is tried again: {event.get('good')} of {event.get('needed')} updates are good"
        elif kind == "unchanged":
            self.run.note = str(event.get("reason", ""))
        elif kind == "finished":
            self._ended, self.run.state = True, kind
        elif kind == "ended":
            self._end(event)
        if site is not None:
            self._site_event(site, kind, when, event)

    def _site_event(self, site: SiteStatus, kind: str, when: float, event: dict[str, Any]) -> None:
        if kind == "joined":
            self._present.add(site.name)
            self._seen(site, when)
        elif kind == "left":
            self._present.discard(site.name)
        elif kind == "answered":
            self._seen(site, when)
            site.trouble = ""
            if event.get("kind") == "train":
                site.round = int(event["round"]) + 1
                asked = self._asked.pop(site.name, None)
                site.seconds = None if asked is None else when - asked
        elif kind == "failed":
            self._asked.pop(site.name, None)
            site.failures += 1
            site.trouble = str(event.get("reason", ""))
        elif kind == "refused":
            self._asked.pop(site.name, None)
            site.refusals += 1
            site.strikes = int(event.get("strikes", site.strikes))
            site.trouble = str(event.get("reason", ""))
        elif kind in ("excluded", "readmitted"):
            site.excluded, site.strikes = kind == "excluded", 0
        elif kind == "taken back":
            reason = event.get("reason", "")
            site.trouble = f"round {int(event['round']) + 1} was taken back: {reason}"

    def _begin(self, event: dict[str, Any]) -> None:
        """A run begins, or goes on."""
        name = str(event.get("run", ""))
        if event["event"] == "started" or name != self.run.name:
            self.run = RunStatus(name, algorithm=str(event.get("algorithm", "")), rounds=event.get("rounds"))
            for site in self.sites.values():
                site.failures = site.refusals = site.strikes = 0
                site.excluded, site.round, site.trouble = False, None, ""
        self.run.round = int(event.get("round", 0))
        self.run.state, self.run.note, self._ended = "running", "", False
        self._pid, self._began = int(event.get("pid", 0)), float(event.get("time", 0))
        self._present.clear()
        self._asked.clear()
        self._durations = []

    def _end(self, event: dict[str, Any]) -> None:
        """The run's process ends, or another one that did not get as far as to begin or resume a run."""
        name, reason = str(event.get("run", "")), str(event.get("reason", ""))
        if self.run.name and (name, event.get("pid", self._pid)) != (self.run.name, self._pid):
            self.run.note = f"another start, of run {name}, ended: {reason}"
        else:
            self._ended, self.run.state = True, f"ended: {reason}"

    def _gate_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "open":  # its counts begin anew
            self._earlier = {name: (site.bytes_up, site.bytes_down) for name, site in self.sites.items()}
        elif event["event"] == "refused" and not event.get("site"):
            self.turned_away += 1
        site = self.sites.get(str(event.get("site", "")))
        if site is None:
            return
        self._seen(site, float(event.get("time", 0)))
        if event["event"] == "message":
            up, down = self._earlier.get(site.name, (0, 0))
            site.bytes_up = up + int(event.get("bytes_up", 0))
            site.bytes_down = down + int(event.get("bytes_down", 0))
        elif event["event"] == "refused":
            site.trouble = f"the gate refused it: {event.get('reason', '')}"

    def _states(self, settings: ServerSettings, nodes: Iterable[NodeInfo]) -> None:
        by_name = {node.name: node for node in nodes}
        for name, site in self.sites.items():
            node = by_name.get(name)
            if node is not None and node.online_until:
                # A node is online until it has missed this many heartbeats.
                self._seen(site, min(node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval, time.time()))
            if self.superlink:  # the run's own journal says who is there
                there = name in self._present and self._alive()
            else:
                there = node is not None and node.status == NodeStatus.ONLINE
            if name in settings.removed:
                site.state = "removed"
            elif site.excluded:
                site.state = "excluded"
            elif there:
                site.state = "asked" if name in self._asked and self._alive() else "present"
            elif node is None and not self.superlink and settings.authenticated:
                site.state = "not registered"
            else:
                site.state = "away" if site.last_seen else "never seen"

    def _alive(self) -> bool:
        """Whether the server's process of the latest run is still there, and not a later one with its pid."""
        try:
            process = psutil.Process(self._pid)
            return not self._ended and is_running(process) and process.create_time() < self._began + _CLOCK
        except psutil.NoSuchProcess:
            return False

    def _seen(self, site: SiteStatus, when: float) -> None:
        site.last_seen = max(when, site.last_seen or 0.0)
