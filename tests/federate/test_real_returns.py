"""A SuperNode that is killed while it trains returns within seconds and still answers in the same round."""

import re
from pathlib import Path

import pytest
from real import running, server_events, site_events, until, write
from test_real_resume import EXTRACTOR

from fedgen.demo.compare import differences
from fedgen.federate.deploy.folders import write_site
from fedgen.federate.journal import GATE_JOURNAL, read_journal
from fedgen.federate.schema import SiteSettings
from helpers import small_data, small_setup


@pytest.mark.slow
@pytest.mark.waits
def test_a_killed_supernode_is_back_within_seconds_and_answers_in_the_same_round(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=2, active=2, share="predictor", rounds=2, eval_every=2)
    folders, port = write(
        tmp_path / "federation", setup, small_data(), min_sites=2, round_timeout=900.0, join_timeout=900.0, attempts=1
    )
    for number in range(2):
        own = {"model": "own:build", "model_options": {"hidden": 12, "latent": 6}}
        write_site(folders, SiteSettings(name=f"site-{number}", number=number, data="data.npz", **own))
        (folders.site(f"site-{number}") / "own.py").write_text(EXTRACTOR)
    with running(folders, port) as processes:
        processes.start_superlink()
        processes.register()
        wait = folders.site("site-1") / "wait"
        wait.touch()
        for name in ("site-0", "site-1"):
            processes.start_site(name)
        processes.submit("run")
        gate = folders.server / GATE_JOURNAL
        until(lambda: read_journal(gate), event="message", site="site-1", way="down")  # it has all of the message
        processes.kill("site-1")  # as a power failure would: nobody tells SuperLink
        asked = len(site_events(processes, "site-1"))
        wait.unlink()
        processes.start_site("site-1")
        until(lambda: read_journal(gate), event="returned", site="site-1")
        until(lambda: site_events(processes, "site-1")[asked:], event="trained", round=0)
        until(lambda: server_events(processes), event="finished")
        events = server_events(processes)
        said = processes.log("site-1").read_text()
    assert re.search(r"\b412\b", said) is None, "it was not refused once"
    assert "Failed to activate" not in said
    assert [sorted(e["sites"]) for e in events if e["event"] == "done"] == [["site-0", "site-1"]] * 2
    assert not [e for e in events if e["event"] in ("failed", "retry")], "nothing was lost"
    assert max(row.difference for row in differences(setup, folders.server / "runs/run")) <= 1e-5
