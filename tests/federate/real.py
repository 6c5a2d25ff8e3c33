"""Real federations for tests: processes on the loopback interface, bounded in time, with nothing left behind."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgen.federate.demo import write_federation
from fedgen.federate.folders import new_folder
from fedgen.federate.journal import read_journal
from fedgen.federate.processes import Processes
from fedgen.federate.settings import ServerSettings

Event = dict[str, Any]
PATIENCE = 240.0  # seconds for anything that must happen; a test that meets it fails


def write(root: Path, setup: Any, data: Any, *, tls: bool = True, **settings: Any) -> tuple[Any, int]:
    """The folders of a federation with sites site-0, site-1 ..., and the port of its SuperLink."""
    place = new_folder(root)
    names = tuple(f"site-{n}" for n in range(setup.config.users))
    return place, write_federation(place, setup, data, ServerSettings(sites=names, **settings), tls=tls)


def server_events(processes: Processes) -> list[Event]:
    return read_journal(processes.place.server / "log.jsonl")


def site_events(processes: Processes, name: str) -> list[Event]:
    return read_journal(processes.place.site(name) / "log.jsonl")


def until(events: Callable[[], list[Event]], **wanted: Any) -> Event:
    """Wait for an event with these values and give it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for event in events():
            if all(event.get(key) == value for key, value in wanted.items()):
                return event
        time.sleep(0.1)
    raise AssertionError(f"{wanted} did not happen; what did: {events()[-10:]}")
