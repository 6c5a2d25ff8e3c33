"""Sites that fail, with real processes: each has its own extractor, which fails as files in its folder say."""

import os
import signal
from pathlib import Path

import pytest
from real import running, server_events, site_events, training, until, write

from fedgen.federate.deploy.folders import write_site
from fedgen.federate.deploy.processes import Processes
from fedgen.federate.schema import SiteSettings
from helpers import small_data, small_setup

# The model of a site: another width at each site, and misbehaviour on demand.
EXTRACTOR = """
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord

from fedgen.federate import wire
from fedgen.models import MODELS


def build(sample, classes, **options):
    model = MODELS["mlp"](sample, classes, **options)
    here = Path(__file__).parent
    if (here / "bloat").exists():
        honest = wire.encode
        wire.encode = lambda tree: ArrayRecord({**honest(tree), "more": Array(np.zeros(3_000_000, np.uint8))})

    def extract(params, statistics, x, train):
        training = train and len(x) > 2  # shapes are checked with two samples before anything is trained
        while training and (here / "sleep").exists():
            time.sleep(0.1)
        if training and (here / "raise").exists():
            raise RuntimeError("the disk of this site is broken")
        z, statistics = model.extract(params, statistics, x, train)
        return (z * jnp.nan if (here / "poison").exists() else z), statistics

    return model._replace(extract=extract)
"""


@pytest.mark.slow
@pytest.mark.waits
def test_sites_fail_in_every_way_and_the_run_goes_on(tmp_path: Path) -> None:
    setup = small_setup("fedgen", users=4, active=4, share="predictor", rounds=6, eval_every=6)
    folders, port = write(
        tmp_path / "federation", setup, small_data(),
        min_sites=1, round_timeout=150.0, join_timeout=600.0, strikes=2, rest=99, max_message=2_000_000,
    )  # fmt: skip
    for number, hidden in enumerate((6, 9, 12, 15)):
        name = f"site-{number}"
        own = {"model": "own:build", "model_options": {"hidden": hidden, "latent": 6}}
        write_site(folders, SiteSettings(name=name, number=number, data="data.npz", **own))
        (folders.site(name) / "own.py").write_text(EXTRACTOR)

    with running(folders, port) as processes:
        processes.start_superlink()
        processes.register()
        for number in range(4):
            processes.start_site(f"site-{number}")
        processes.submit("run")

        # Round 1: site-0 raises, site-1 sends too much; the server logs why, and continues with the others.
        done(processes, 0)
        trouble = [flag(processes, "site-0", "raise"), flag(processes, "site-1", "bloat")]
        failed = until(lambda: server_events(processes), event="failed", site="site-0", round=1)
        assert "RuntimeError; the site's own log.jsonl says more" in failed["reason"]
        assert "broken" not in str(server_events(processes)), "what it says may be private"
        until(lambda: site_events(processes, "site-0"), reason="RuntimeError: the disk of this site is broken")
        refused = until(lambda: server_events(processes), event="refused", site="site-1", round=1)
        assert "the gate refused it: a message of more than 2,000,000 bytes" in refused["reason"]
        for file in trouble:
            file.unlink()

        # Round 2: site-1 is too slow, site-2's process is killed while it trains, site-3's whole SuperNode is.
        done(processes, 1)
        sleeping = [flag(processes, f"site-{n}", "sleep") for n in (1, 2, 3)]
        os.kill(training(processes, "site-2", 2)["pid"], signal.SIGKILL)
        run = training(processes, "site-3", 2)["run"]
        processes.kill("site-3")
        slow = until(lambda: server_events(processes), event="failed", site="site-1", round=2)
        assert "no answer within 150 seconds" in slow["reason"]

        # Round 3: site-0 is held up until site-3 is back. Round 4: site-3 goes on from the state it has on disk.
        done(processes, 2)
        holding = flag(processes, "site-0", "sleep")
        training(processes, "site-0", 3)
        for file in sleeping:
            file.unlink()
        state = folders.site("site-3") / "state" / run / "client.safetensors"
        kept = state.read_bytes()
        log = processes.log("site-3")
        said = len(log.read_text())
        processes.start_site("site-3")
        until(lambda: [{"connected": "SuperNode ID" in log.read_text()[said:]}], connected=True)
        holding.unlink()
        done(processes, 3)
        # In rounds 4 and 5 site-0 sends numbers that are not numbers, as after a training that diverged: no strike.
        flag(processes, "site-0", "poison")
        until(lambda: site_events(processes, "site-3"), event="train", round=4, after=1)
        done(processes, 4)
        assert state.with_name("before.safetensors").read_bytes() == kept, "what round 4 started from"
        refused = until(lambda: server_events(processes), event="refused", site="site-0")
        assert "NaN or infinite" in refused["reason"]
        until(lambda: server_events(processes), event="refused", site="site-0", round=5)
        until(lambda: server_events(processes), event="finished")
        events = server_events(processes)

    assert "excluded" not in {e["event"] for e in events}
    finished = {e["round"]: e["sites"] for e in events if e["event"] == "done"}
    assert list(finished) == list(range(6)), "every round was finished once"
    assert sorted(finished[0]) == ["site-0", "site-1", "site-2", "site-3"]
    assert sorted(finished[1]) == ["site-2", "site-3"]
    assert finished[2] == ["site-0"]
    assert "site-0" in finished[3], "which was held up"
    assert "site-3" not in finished[3], "which was not back yet"
    assert all("site-0" not in finished[number] for number in (4, 5)), "which was refused"
    assert all("site-3" in finished[number] for number in (4, 5))
    assert all("site-1" not in finished[number] for number in range(2, 6)), "silent sites rest"
    score = next(e for e in events if e["event"] == "score")
    assert 0 < score["accuracy_users"] <= 100
    assert (folders.server / "runs/run/summary.json").exists()


def flag(processes: Processes, site: str, word: str) -> Path:
    path = processes.folders.site(site) / word
    path.touch()
    return path


def done(processes: Processes, number: int) -> None:
    until(lambda: server_events(processes), event="done", round=number)
