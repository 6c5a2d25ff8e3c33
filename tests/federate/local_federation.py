"""A whole federation in this process: the server over Flower's messages, the sites behind a local grid."""

from pathlib import Path
from typing import Any

from local_grid import LocalGrid, Tamper

from fedgen.demo.divide import deal_out, needs_proxy
from fedgen.federate.deploy.folders import Folders
from fedgen.federate.journal import Journal
from fedgen.federate.schema import ServerSettings
from fedgen.federate.server.server import Server
from fedgen.simulator.setup import Setup


def local_federation(
    root: Path, setup: Setup, tamper: Tamper | None = None, **settings: Any
) -> tuple[Server, LocalGrid]:
    """A federation in this process, its folders filled from a simulator's setup."""
    folders = Folders(root)
    names = tuple(f"site-{n}" for n in range(setup.config.users))
    proxy = "proxy.npz" if needs_proxy(setup) else ""
    server = ServerSettings(
        **{"sites": names, "poll": 0.01, "keep_rounds": True, "test": "test.npz", "proxy": proxy, **settings}
    )
    deal_out(folders, setup, server)
    grid = LocalGrid(folders.app, [folders.site(name) for name in names], tamper)
    return Server(folders.app, folders.server, "run", grid, Journal(folders.server / "log.jsonl")), grid
