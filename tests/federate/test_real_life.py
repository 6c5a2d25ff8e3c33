"""A federation with TLS that changes while a run goes on: one site joins, one is removed, and one gets another key."""

import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from real import PATIENCE, running, server_events, until, write

from fedgen.federate.deploy.folders import Folders, commented
from fedgen.federate.deploy.members import add_site, remove_site, rotate_key
from fedgen.federate.deploy.processes import Processes, free_port
from fedgen.federate.deploy.record import DEPLOYMENT, new_deployment
from fedgen.federate.deploy.scripts import PORT_VARIABLE
from fedgen.federate.deploy.superlink import SuperLink, register_keys
from fedgen.federate.gate import gate
from fedgen.federate.server.status import Status
from fedgen.federate.site.doctor import examine
from fedgen.files import write_whole
from helpers import small_data, small_setup


@pytest.mark.slow
@pytest.mark.waits
def test_sites_come_and_go_and_get_other_keys_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PORT_VARIABLE, str(free_port()))  # another program may have the usual one
    setup = small_setup("fedavg", users=3, active=3, rounds=200, eval_every=200)
    folders, port = write(
        tmp_path / "federation", setup, small_data(), min_sites=1, round_timeout=600.0, join_timeout=600.0
    )
    write_whole(folders.server / DEPLOYMENT, commented(new_deployment("127.0.0.1", port)).encode())
    with running(folders, port) as processes:
        processes.start_superlink()
        processes.register()
        processes.register()  # what is registered already does no harm
        for name in ("site-0", "site-1", "site-2"):
            processes.start_site(name)
        processes.submit("run")
        until(lambda: done(processes), who={"site-0", "site-1", "site-2"})

        new = add_site(folders, "site-3")
        shutil.copy(folders.site("site-0") / "data.npz", new)
        time.sleep(gate._KEYS_EVERY)  # which the gate may take to look
        (said,) = [finding for finding in examine(new) if finding.what == "key at the server"]
        assert (said.state, said.text) == ("wrong", "the gate knows it, but SuperLink does not")
        assert register_keys(folders.server) == ["SuperLink knows the key of site-3"]
        findings = {finding.what: finding for finding in examine(new)}
        assert not [finding for finding in findings.values() if finding.state != "ok"]
        assert findings["key at the server"].text == "gate and SuperLink know it, and let this site in"
        processes.start_site("site-3")
        remove_site(folders, "site-1")
        assert register_keys(folders.server) == ["SuperLink no longer knows the old key of site-1"]
        until(lambda: done(processes), who={"site-0", "site-2", "site-3"})
        time.sleep(gate._KEYS_EVERY)
        (said,) = [finding for finding in examine(with_rest(folders, "site-1")) if finding.what == "key at the server"]
        assert (said.state, "the key is not registered" in said.text) == ("wrong", True)

        place = rotate_key(folders, "site-2")
        assert place is not None
        assert len(register_keys(folders.server)) == 2, "the old key is forgotten, and the new one known"
        until(lambda: done(processes), who={"site-0", "site-3"})
        processes.kill("site-2")
        shutil.copy(place / "site.key", folders.site_key("site-2"))
        processes.start_site("site-2")
        before = len(done(processes))
        until(lambda: done(processes)[before:], who={"site-0", "site-2", "site-3"})

        status = Status(folders.server)
        status.update()
        assert {name for name, site in status.sites.items() if site.state in ("present", "asked")} == {
            "site-0", "site-2", "site-3",
        }  # fmt: skip
        assert (status.sites["site-1"].state, status.run.state, status.superlink) == ("removed", "running", "")
        assert status.sites["site-3"].bytes_up > 1000
        assert sorted(node.name for node in SuperLink(folders.server).nodes()) == ["site-0", "site-2", "site-3"]
        events = server_events(processes)
    assert [e["round"] for e in events if e["event"] == "done"] == list(range(len(done(processes)))), "none was lost"
    assert not [e for e in events if e["event"] in ("refused", "ended", "excluded")]


@pytest.mark.slow
@pytest.mark.waits
def test_a_run_that_is_started_twice_killed_and_moved_goes_on(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=2, active=2, rounds=200, eval_every=200)
    folders, port = write(tmp_path / "federation", setup, small_data(), min_sites=1, join_timeout=600.0)

    def start(processes: Processes) -> None:
        processes.start_superlink()
        processes.register()
        for name in ("site-0", "site-1"):
            processes.start_site(name)
        processes.submit("run")

    with running(folders, port) as processes:
        start(processes)
        until(lambda: done(processes), round=0)
        processes.submit("run")
        reason = until(lambda: server_events(processes), event="ended")["reason"]
        status = Status(folders.server)
        status.update()
        assert (" is in use: process " in reason, status.run.state) == (True, "running")
        os.kill(until(lambda: server_events(processes), event="started")["pid"], signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        while status.run.state == "running" and time.monotonic() < deadline:
            time.sleep(0.1)
            status.update()
        assert status.run.state == "interrupted; server/run.sh resumes it"
        before = len(done(processes))
    moved = Folders(folders.root.rename(tmp_path / "else where"))
    with running(moved, port) as processes:
        start(processes)
        until(lambda: done(processes), round=before)
        assert [event["event"] for event in server_events(processes)].count("resumed") == 1


def done(processes: Processes) -> list[dict]:
    """The finished rounds, with who took part."""
    return [{**e, "who": set(e["sites"])} for e in server_events(processes) if e["event"] == "done"]


def with_rest(folders: Folders, name: str) -> Path:
    """A site of the demonstration, which has no copy of what the federation expects, with another site's."""
    shutil.copytree(folders.site("site-3") / "federation", folders.site(name) / "federation")
    return folders.site(name)
