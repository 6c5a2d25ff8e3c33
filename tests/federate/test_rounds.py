"""Rounds that are tried again, and settings that cannot work."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from local_federation import local_federation

from fedgen.errors import FedgenError
from fedgen.federate.folders import Place, write_server
from fedgen.federate.journal import read_journal
from fedgen.federate.server import Server
from fedgen.federate.settings import ServerSettings, read_settings
from fedgen.simulate.checkpoint import load_tree
from helpers import same_bits, small_setup


def test_a_round_that_is_tried_again_gives_what_the_first_try_would_have(tmp_path: Path) -> None:
    """All answers of round 1 are lost once, after the sites have trained and kept their new states."""
    setup = small_setup("fedavg", users=2, active=2, rounds=3, share="predictor")
    lost: set[int] = set()

    def lose(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if message.metadata.message_type == "train" and message.metadata.group_id == "1" and site not in lost:
            lost.add(site)
            return None
        return content

    disturbed, _ = local_federation(tmp_path / "disturbed", setup, lose, round_timeout=0.2)
    undisturbed, _ = local_federation(tmp_path / "undisturbed", setup)
    states = []
    for server in (disturbed, undisturbed):
        server.run()
        states.append(load_tree(server.run_folder.checkpoint_file, server.plan.forms.server))
    assert same_bits(*states)
    assert lost == {0, 1}
    events = read_journal(disturbed.journal.path)
    assert [e["round"] for e in events if e["event"] == "retry"] == [1]
    assert (disturbed.path / "metrics.jsonl").read_bytes() == (undisturbed.path / "metrics.jsonl").read_bytes()


def test_a_round_that_never_succeeds_ends_the_run_and_keeps_what_was_done(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=2, active=2, rounds=3)

    def fail(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if message.metadata.group_id == "1":
            raise RuntimeError("out of memory")
        return content

    server, grid = local_federation(tmp_path, setup, fail, attempts=2)
    with pytest.raises(FedgenError, match="round 1 ended 2 times with fewer than 2 good updates; the 1 finished"):
        server.run()
    failures = [e for e in read_journal(server.journal.path) if e["event"] == "failed"]
    assert len(failures) == 4
    assert failures[0]["reason"] == "out of memory"
    grid.tamper = None
    Server(tmp_path / "fedgen-federation", tmp_path / "server", "run", grid, server.journal).run()
    finished = [e["round"] for e in read_journal(server.journal.path) if e["event"] == "done"]
    assert finished == [0, 1, 2]
    with pytest.raises(FedgenError, match="is finished; give a new one another name"):
        Server(tmp_path / "fedgen-federation", tmp_path / "server", "run", grid, server.journal).run()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"min_sites": 3}, "min_sites is 3, but only 2 are active"),
        ({"sites": ("one",)}, "names 1 sites, but the configuration has 2 users"),
        ({"sites": ("one", "one")}, "names a site twice"),
        ({"test": ""}, "fedensemble predicts at the server"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    setup = small_setup("fedensemble", users=2, active=2)
    server, grid = local_federation(tmp_path, setup)
    good = read_settings(tmp_path / "server/server.toml", ServerSettings)
    write_server(Place(tmp_path), good.model_copy(update=settings))
    with pytest.raises(FedgenError, match=reason):
        Server(tmp_path / "fedgen-federation", tmp_path / "server", "other", grid, server.journal)
