"""A federation on one machine, as separate processes over the loopback interface, compared with the simulator."""

import time
from collections.abc import Callable
from typing import Any

from fedgen.data.dataset import Dataset
from fedgen.demo.compare import RoundDifference, differences
from fedgen.demo.divide import deal_out, needs_proxy
from fedgen.errors import FedgenError
from fedgen.federate.deploy.connection import write_connection
from fedgen.federate.deploy.folders import Folders, write_keys
from fedgen.federate.deploy.processes import Processes, free_port, processes_of
from fedgen.federate.deploy.scripts import Endpoints, write_scripts
from fedgen.federate.schema import ServerSettings
from fedgen.federate.server.tail import Tail
from fedgen.simulator.setup import Setup

RUN = "run"
_LOOPBACK = ["127.0.0.1", "localhost"]
_JOIN = 600.0  # seconds to wait for all sites: they are started here, so all of them come
_PATIENCE = 300.0  # seconds without any event, beyond the timeout of a round, after which the server must have died


def write_federation(folders: Folders, setup: Setup, dataset: Dataset, settings: ServerSettings, *, tls: bool) -> int:
    """Write all folders of a federation on this machine; returns the port that its server will listen on."""
    proxy = "proxy.npz" if needs_proxy(setup) else ""
    settings = settings.model_copy(
        update={"authenticated": tls, "test": "test.npz", "proxy": proxy, "keep_rounds": True, "poll": 0.2}
    )
    port, names = free_port(), list(settings.sites)
    superlink = free_port() if tls else port
    address = f"127.0.0.1:{port}"
    deal_out(folders, setup, settings)
    if tls:
        write_keys(folders, names, _LOOPBACK)
    write_connection(folders.server, f"127.0.0.1:{superlink}", tls)
    write_scripts(folders, names, Endpoints(address if tls else "", superlink, address))
    return port


def demonstrate(
    folders: Folders,
    setup: Setup,
    dataset: Dataset,
    settings: ServerSettings,
    *,
    tls: bool,
    say: Callable[[dict[str, Any]], None],
) -> list[RoundDifference]:
    """Start all processes, run, stop them, and compare with the simulator; `say` is called with each event."""
    settings = settings.model_copy(update={"join_timeout": _JOIN})
    port = write_federation(folders, setup, dataset, settings, tls=tls)
    with processes_of(folders, port) as processes:
        start_all(processes, list(settings.sites), tls=tls, say=say)
        processes.submit(RUN)
        follow(processes, list(settings.sites), settings.round_timeout, say)
    say({"event": "comparing"})
    return differences(setup, folders.server / "runs" / RUN)


def start_all(processes: Processes, sites: list[str], *, tls: bool, say: Callable[[dict[str, Any]], None]) -> None:
    """Start SuperLink and all sites."""
    say({"event": "starting", "what": "SuperLink"})
    processes.start_superlink()
    if tls:
        say({"event": "starting", "what": "registering the sites' keys"})
        processes.register()
    for name in sites:
        say({"event": "starting", "what": name})
        processes.start_site(name)


def follow(processes: Processes, sites: list[str], round_timeout: float, say: Callable[[dict[str, Any]], None]) -> None:
    """Report the events of server and sites until the run is finished; raises when it ends otherwise."""
    folders = processes.folders
    journals = {name: Tail(folders.site(name) / "log.jsonl") for name in sites}
    journals = {"": Tail(folders.server / "log.jsonl"), **journals}
    quiet = time.monotonic()
    while True:
        for name, journal in journals.items():
            for event in journal.events():
                quiet = time.monotonic()
                say({"at": name, **event})
                if not name and event["event"] == "ended":
                    raise FedgenError(f"the federation ended early: {event['reason']}")
                if not name and event["event"] == "finished":
                    return
        if processes.running["superlink"].poll() is not None:
            raise FedgenError(f"SuperLink has ended; see {processes.log('superlink')}")
        if time.monotonic() - quiet > round_timeout + _PATIENCE:
            raise FedgenError(f"nothing has happened for long; see {processes.log('superlink')}")
        time.sleep(0.2)
