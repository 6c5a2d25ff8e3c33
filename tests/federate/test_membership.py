"""Sites join a run between its rounds and leave it, and the others do not notice."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from local_federation import local_federation
from local_grid import LocalGrid

from fedgen.algorithms import ALGORITHMS
from fedgen.config import to_toml
from fedgen.core.contract import Task
from fedgen.federate.deploy.folders import Folders, write_server, write_site
from fedgen.federate.journal import Journal, read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings, SiteSettings, read_settings
from fedgen.federate.server import server as server_module
from fedgen.federate.server.membership import Membership
from fedgen.federate.server.server import Server, as_begun
from fedgen.federate.site.site import Site
from helpers import each, small_config, small_setup


def change(folders: Folders, **settings: Any) -> None:
    before = read_settings(folders.server / "server.toml", ServerSettings)
    write_server(folders, before.model_copy(update=settings))


def bring(folders: Folders, grid: LocalGrid, name: str) -> None:
    """A site that was not there at first, with the data of another one."""
    shutil.copytree(folders.site("site-0"), folders.site(name))
    write_site(folders, SiteSettings(name=name, number=len(grid.sites), data="data.npz"))
    grid.sites.append(Site(folders.site(name), folders.app))
    grid.names.append(name)


def done(server: Server) -> list[list[str]]:
    return [sorted(e["sites"]) for e in read_journal(server.journal.path) if e["event"] == "done"]


def test_one_joins_and_one_leaves_between_rounds(tmp_path: Path) -> None:
    folders, names = Folders(tmp_path), [f"site-{n}" for n in range(4)]

    def tamper(site: int, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.group_id == "0" and len(grid.sites) == 3:
            bring(folders, grid, "site-3")
            change(folders, sites=tuple(names))
        if message.metadata.group_id == "1":
            change(folders, sites=tuple(names), removed=("site-1",))
        if message.metadata.group_id == "2":
            (folders.server / "server.toml").write_text("sites = [")  # somebody is editing it
        return content

    server, grid = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=4), tamper)
    server.run()
    assert done(server) == [names[:3], names, [n for n in names if n != "site-1"], [n for n in names if n != "site-1"]]
    events = read_journal(server.journal.path)
    assert [(e["event"], e["site"]) for e in events if e["event"] in ("added", "removed")] == [
        ("added", "site-3"),
        ("removed", "site-1"),
    ]
    (unchanged,) = [e for e in events if e["event"] == "unchanged"]
    assert "server.toml cannot be read" in unchanged["reason"]


def test_a_site_that_is_removed_while_it_is_asked_is_not_waited_for(tmp_path: Path) -> None:
    def silent(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if site == 0:
            change(Folders(tmp_path), removed=("site-0",))
        return content if site else None

    setup = small_setup("fedavg", users=3, active=3, rounds=1)
    server, _ = local_federation(tmp_path, setup, silent, round_timeout=600.0)
    server.run()
    assert done(server) == [["site-1", "site-2"]]
    (failed,) = [e for e in read_journal(server.journal.path) if e["event"] == "failed"]
    assert (failed["site"], failed["reason"]) == (
        "site-0",
        "it was removed, or its key replaced, while it was asked",
    )


def test_who_cannot_join_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    def tamper(site: int, message: Message, content: RecordDict) -> RecordDict:
        if len(grid.sites) == 2:
            bring(Folders(tmp_path), grid, "site-2")
            change(Folders(tmp_path), sites=("site-0", "site-1", "site-2"))
        return content

    server, grid = local_federation(tmp_path, small_setup("fedensemble", users=2, active=2, rounds=2), tamper)
    server.run()
    assert done(server) == [["site-0", "site-1"]] * 2
    (event,) = [e for e in read_journal(server.journal.path) if e["event"] == "unchanged"]
    assert event["reason"].startswith("site-2 cannot join this run: the algorithm depends on the number of users")


@pytest.mark.parametrize("name", each(ALGORITHMS, quick=("fedavg", "fedgen", "fedensemble", "scaffold", "feddyn")))
def test_which_algorithms_depend_on_the_number_of_users(name: str) -> None:
    setup = small_setup(name)
    task: Task = setup.task
    # Their servers keep each user's model, or means over all users (class moments: FedDyn's).
    fixed = name in ("fedensemble", "scaffold", "feddyn", "fedmoments")
    assert Plan(setup.config, task).depends_on_users() is fixed


def test_a_run_is_resumed_with_a_site_that_was_added_since(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=2, active=2, rounds=2)
    server, grid = local_federation(tmp_path, setup)
    server._save(server._round(server._begin()))
    server.run_folder.close()
    folders = Folders(tmp_path)
    bring(folders, grid, "site-2")
    change(folders, sites=("site-0", "site-1", "site-2"))
    config = folders.app / "config.toml"
    config.write_text(config.read_text().replace("users = 2\n", "users = 3\n").replace("active = 2\n", "active = 3\n"))
    resumed = Server(folders.app, folders.server, "run", grid, server.journal)
    assert resumed.run()["results"]
    assert done(resumed) == [["site-0", "site-1"], ["site-0", "site-1", "site-2"]]
    (event,) = [e for e in read_journal(server.journal.path) if e["event"] == "resumed"]
    assert (event["algorithm"], event["rounds"], event["round"]) == ("fedavg", 2, 1), "all that `status` shows of a run"


def test_the_number_of_users_is_the_only_thing_that_may_have_grown() -> None:
    bounds = "max_update = 2.0\nmax_against = 2.0\n"
    begun = {"config": bounds + 'users = 5\nactive = 5\nalgorithms = ["fedavg"]'}
    assert as_begun(small_config("fedavg", users=6, active=6), begun) == small_config("fedavg", users=5, active=5)
    part = {"config": bounds + "users = 5\nactive = 3"}
    assert as_begun(small_config("fedavg", users=6, active=3), part) == small_config("fedavg", users=5, active=3)
    for other in (small_config("fedavg", users=6, active=3), small_config("fedavg", users=4, active=4)):
        assert as_begun(other, begun) == other, "it differs otherwise, too"
    assert as_begun(other, None) == other


def test_a_run_of_a_version_without_a_bound_is_resumed_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_then(text: str) -> str:
        assert text.count("max_against = 0.0\n") == 1
        return text.replace("max_against = 0.0\n", "")

    monkeypatch.setattr(server_module, "to_toml", lambda config: as_then(to_toml(config)))
    setup = small_setup("fedavg", users=2, active=2, rounds=2, max_against=0.0)
    server, grid = local_federation(tmp_path, setup)
    server._save(server._round(server._begin()))
    server.run_folder.close()
    app, folder = Folders(tmp_path).app, Folders(tmp_path).server
    (app / "config.toml").write_text(as_then((app / "config.toml").read_text()))
    monkeypatch.undo()
    resumed = Server(app, folder, "run", grid, server.journal)
    assert resumed.config.max_against == 0.0
    assert resumed.run()["results"]


def test_another_order_is_not_taken_up_and_a_new_key_is(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    settings = ServerSettings(sites=("a", "b"))
    write_server(folders, settings)
    journal = Journal(folders.server / "log.jsonl")
    members = Membership(folders.server, settings, journal)
    assert not members.refresh()
    change(folders, sites=("b", "a"))
    assert not members.refresh()
    assert "another order" in read_journal(journal.path)[-1]["reason"]
    assert members.sites == ("a", "b")
    change(folders, sites=("a", "b", "c"), removed=("a",))
    assert members.refresh()
    assert members.numbers() == [1, 2]
    folders.public_key("b").parent.mkdir()
    folders.public_key("b").write_text("no key")
    assert not members.refresh()
    assert "b.pub cannot be read" in read_journal(journal.path)[-1]["reason"]
