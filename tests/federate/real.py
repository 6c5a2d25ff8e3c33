"""Real federations for tests: processes on the loopback interface, bounded in time, with nothing left behind."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedgen.demo.demo import write_federation
from fedgen.federate.deploy.folders import Folders, new_folder
from fedgen.federate.deploy.processes import Processes, processes_of
from fedgen.federate.journal import read_journal
from fedgen.federate.schema import ServerSettings

Event = dict[str, Any]
PATIENCE = 1200.0  # seconds for anything that must happen; a test that meets it fails


def write(root: Path, setup: Any, data: Any, *, tls: bool = True, **settings: Any) -> tuple[Any, int]:
    """The folders of a federation with sites site-0, site-1 ..., and the port of its SuperLink."""
    folders = new_folder(root)
    names = tuple(f"site-{n}" for n in range(setup.config.users))
    return folders, write_federation(folders, setup, data, ServerSettings(sites=names, **settings), tls=tls)


@contextlib.contextmanager
def running(folders: Folders, port: int) -> Iterator[Processes]:
    """The processes of a federation, none of which is left in the end."""
    with processes_of(folders, port) as processes:
        yield processes
    left = left_behind(folders.root)
    assert not left, left


def left_behind(folder: Path) -> list[str]:
    """The processes that were started in a folder and are still there."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it has ended meanwhile, or is not ours
    return found


def server_events(processes: Processes) -> list[Event]:
    return read_journal(processes.folders.server / "log.jsonl")


def site_events(processes: Processes, name: str) -> list[Event]:
    return read_journal(processes.folders.site(name) / "log.jsonl")


def until(events: Callable[[], list[Event]], **wanted: Any) -> Event:
    """Wait for an event with these values and give it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for event in events():
            if all(event.get(key) == value for key, value in wanted.items()):
                return event
        time.sleep(0.1)
    raise AssertionError(f"{wanted} did not happen; what did: {events()[-10:]}")


def training(processes: Processes, site: str, number: int | None = None) -> dict:
    """The site's latest training that has not ended; wait for one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        events = [e for e in site_events(processes, site) if e["event"] in ("train", "trained", "failed")]
        if events and events[-1]["event"] == "train" and number in (None, events[-1]["round"]):
            return events[-1]
        time.sleep(0.05)
    raise AssertionError(f"{site} does not train: {site_events(processes, site)[-5:]}")
