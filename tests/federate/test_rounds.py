"""Rounds that are tried again, and settings that cannot work."""

import itertools
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import jax
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Array, ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import RunNotRunningException
from local_federation import local_federation
from local_grid import LocalGrid, Tamper

from fedgen.config import to_toml
from fedgen.errors import FedgenError
from fedgen.federate.apps import error_for_server
from fedgen.federate.deploy.edit import set_values
from fedgen.federate.deploy.folders import Folders, write_server
from fedgen.federate.deploy.keys import make_site_keys
from fedgen.federate.flower import Arrival, ObjectPullError, ObjectTree, arrivals
from fedgen.federate.gate.refusals import REFUSALS, Refusal, RefusalWriter
from fedgen.federate.journal import Journal, read_journal
from fedgen.federate.schema import ServerSettings, read_settings
from fedgen.federate.server import exchange, replies
from fedgen.federate.server.membership import Membership
from fedgen.federate.server.roster import Roster
from fedgen.federate.server.server import Server
from fedgen.federate.site.site import Site
from fedgen.federate.wire import InvalidMessageError
from fedgen.files import write_whole
from fedgen.runs.checkpoint import load_tree, save_tree
from helpers import same_bits, small_setup

SERVER_ERROR = httpx.HTTPStatusError("500", request=httpx.Request("POST", "http://a"), response=httpx.Response(500))


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
    with pytest.raises(FedgenError, match=r"round 1 has 0 valid updates of the 2 .* failed 2 times; the 1 finished"):
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


class Kept:
    """SuperLink's answers to the server app: replies by question, with those that it fails at."""

    def __init__(self, there: dict[str, str], poison: set[str]) -> None:
        self.there, self.poison = there, poison
        self.requests, self.freed = 0, list[str]()
        self.away = False

    def arrivals(self, _: object, questions: list[str]) -> list[Arrival]:
        self.requests += 1
        if self.away:
            raise httpx.ConnectError("nobody listens")
        if self.poison.intersection(questions):
            raise SERVER_ERROR
        found = [question for question in questions if question in self.there]
        return [Arrival(q, self.there[q], partial(self.freed.append, self.there.pop(q))) for q in found]


def test_one_late_reply_that_superlink_fails_at_keeps_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept({f"q{n}": f"r{n}" for n in range(20)}, {"q30"})
    monkeypatch.setattr(replies, "arrivals", kept.arrivals)
    late = replies._Late(object())  # type: ignore[arg-type]
    for number in range(40):
        late.add(f"q{number}")
    kept.away = True
    late._fetch_all(list(late._questions))
    assert len(late._questions) == 40, "SuperLink is away, and will be back"
    kept.away = False
    kept.requests = 0
    late._fetch_all(list(late._questions))
    assert sorted(kept.freed) == sorted(f"r{n}" for n in range(20))
    assert kept.requests < 20, "halves, and not each by itself"
    for _ in range(2):
        assert set(late._questions) == {f"q{n}" for n in range(20, 40)}
        late._fetch_all(list(late._questions))
    assert set(late._questions) == {f"q{n}" for n in range(20, 40)} - {"q30"}, "it is not asked for without end"


def test_a_reply_that_superlink_fails_at_may_still_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It was not announced, so that SuperLink may have it and keep it: it is one of the late ones."""

    class Failing(LocalGrid):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            raise SERVER_ERROR

    found = replies.Replies(Failing(tmp_path, []))
    monkeypatch.setattr(replies, "arrivals", lambda *_: None)
    assert found.take(["q"]) == [("q", SERVER_ERROR)]
    found.forget(["q"])
    assert set(found._late._questions) == {"q"}


def test_what_cannot_be_fetched_is_deleted_at_superlink(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="q", message_id="r"))
    missing = SimpleNamespace(object_found=False)
    deleted: list[str] = []
    client = SimpleNamespace(
        PullMessages=lambda _: SimpleNamespace(
            messages_list=[announced], message_object_trees=[ObjectTree(object_id="r")]
        ),
        PullObject=lambda _: missing,
        ConfirmMessageReceived=lambda request: deleted.append(request.message_object_id),
    )
    (arrival,) = arrivals(SimpleNamespace(_runtime_client=client, node=None), ["q"]) or []  # type: ignore[arg-type]
    with pytest.raises(ObjectPullError):
        arrival.fetch()
    assert deleted == ["r"]


def failing(*sites: int) -> Tamper:
    def fail(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site in sites and message.metadata.message_type == "train":
            raise RuntimeError("out of memory")
        return content

    return fail


def poisoning(*sites: int) -> Tamper:
    def poison(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site in sites and "upload" in content:
            name = next(iter(content["upload"]))
            content["upload"][name] = Array(content["upload"][name].numpy().astype(np.float64))
        return content

    return poison


@pytest.mark.parametrize("tamper", [failing, poisoning])
def test_bad_sites_are_replaced_and_end_no_run_while_enough_remain(tamper: Any, tmp_path: Path) -> None:
    """Four of six sites are bad, two are drawn and two are needed: whoever is drawn, the two good ones are found."""
    setup = small_setup("fedavg", users=6, active=2, rounds=3)
    server, grid = local_federation(tmp_path, setup, tamper(0, 1, 2, 3), attempts=1, min_sites=2)
    server.run()
    events = read_journal(server.journal.path)
    assert [sorted(e["sites"]) for e in events if e["event"] == "done"] == [["site-4", "site-5"]] * 3
    assert "retry" in {e["event"] for e in events}
    trained = [(m.metadata.group_id, s) for s, m in grid.sent if is_question(m)]
    assert len(trained) == len(set(trained)), "nobody is asked twice in a round: good answers are kept"


def is_question(message: Message) -> bool:
    return message.metadata.message_type == "train" and not message.metadata.reply_to_message_id


def test_strikes_and_messages_are_on_disk_when_a_run_ends_early(tmp_path: Path) -> None:
    """Site 1 is poisonous and the only one besides site 0; the run that is continued has not forgotten that."""
    setup = small_setup("fedavg", users=2, active=2, rounds=2)
    server, grid = local_federation(tmp_path, setup, poisoning(1), strikes=2, wait_timeout=0.05)
    with pytest.raises(FedgenError, match=r"only 1 of the 2 .* [(]1 are excluded for 2 refused messages[)]"):
        server.run()
    again = Server(tmp_path / "fedgen-federation", tmp_path / "server", "run", grid, server.journal)
    with pytest.raises(FedgenError, match="1 are excluded"):
        again.run()
    assert again.run_state.excluded == {"site-1": 21}
    assert again.run_state.messages == {"site-0": 1, "site-1": 2}


def test_what_was_asked_counts_even_if_the_server_dies_while_it_waits(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=2, active=2, rounds=1)

    def die(site: int, message: Message, content: RecordDict) -> RecordDict:
        raise KeyboardInterrupt

    server, _ = local_federation(tmp_path, setup, die)
    with pytest.raises(KeyboardInterrupt):
        server.run()
    about = server.run_folder.about()
    assert about is not None
    assert about["run_state"]["messages"] == {"site-0": 1, "site-1": 1}


def test_a_round_is_on_disk_before_it_is_evaluated(tmp_path: Path) -> None:
    """The server dies while sites test round 1; the run that is continued tests it, and trains only what is left."""
    setup = small_setup("fedavg", users=2, active=2, rounds=2, eval_every=1, share="predictor")

    def die(site: int, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.message_type == "evaluate":
            raise KeyboardInterrupt
        return content

    server, grid = local_federation(tmp_path / "killed", setup, die)
    with pytest.raises(KeyboardInterrupt):
        server.run()
    assert [e["round"] for e in read_journal(server.journal.path) if e["event"] == "done"] == [0]
    grid.tamper = None
    folders = Folders(tmp_path / "killed")
    Server(folders.app, folders.server, "run", grid, server.journal).run()
    assert [e["round"] for e in read_journal(server.journal.path) if e["event"] == "done"] == [0, 1]
    undisturbed, _ = local_federation(tmp_path / "undisturbed", setup)
    undisturbed.run()
    assert (server.path / "metrics.jsonl").read_bytes() == (undisturbed.path / "metrics.jsonl").read_bytes()
    assert len((server.path / "metrics.jsonl").read_text().splitlines()) == 2


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """Its checkpoint has other names and another text of the configuration, which lacks settings that came later."""
    setup = small_setup("fedavg", users=2, active=2, rounds=2)

    def die(site: int, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.group_id == "1":
            raise KeyboardInterrupt
        return content

    server, grid = local_federation(tmp_path / "killed", setup, die)
    with pytest.raises(KeyboardInterrupt):
        server.run()
    about = server.run_folder.about()
    assert about is not None
    state = server.run_folder.restore(server.plan.forms.server)
    about["standing"] = about.pop("run_state")
    lines = about["config"].splitlines()
    added_later = [line for line in lines if line.split(" = ")[0] in ("optimizer", "clip", "dp_noise")]
    assert len(added_later) == 3
    older = {**about, "config": "\n".join(line for line in lines if line not in added_later)}
    save_tree(server.run_folder.checkpoint_file, state, older)
    grid.tamper = None
    again = Server(tmp_path / "killed/fedgen-federation", tmp_path / "killed/server", "run", grid, server.journal)
    again.run()
    assert again.run_state.messages == {"site-0": 3, "site-1": 3}, "round 1 was asked for twice"
    undisturbed, _ = local_federation(tmp_path / "undisturbed", setup)
    undisturbed.run()
    assert (server.path / "metrics.jsonl").read_bytes() == (undisturbed.path / "metrics.jsonl").read_bytes()
    other = server.config.model_copy(update={"lr": 0.5})
    save_tree(server.run_folder.checkpoint_file, state, {**about, "config": to_toml(other)})
    with pytest.raises(FedgenError, match="holds a run with other settings"):
        Server(tmp_path / "killed/fedgen-federation", tmp_path / "killed/server", "run", grid, server.journal).run()


def test_a_second_key_under_a_sites_name_does_not_take_its_place(tmp_path: Path, monkeypatch: Any) -> None:
    setup = small_setup("fedavg", users=3, active=3, rounds=1)
    server, grid = local_federation(tmp_path, setup, join_timeout=0.0)
    nodes = [*grid.get_nodes(), NodeInfo(node_id=9999, name="site-1", last_activated_at="2026-02-02")]
    monkeypatch.setattr(grid, "get_nodes", lambda: nodes)
    server.run()
    events = read_journal(server.journal.path)
    assert [sorted(e["sites"]) for e in events if e["event"] == "done"] == [["site-0", "site-2"]]
    assert [(e["site"], e["reason"][:8]) for e in events if e["event"] == "failed"] == [("site-1", "two keys")]
    assert {site for site, _ in grid.sent} == {0, 2}


def test_a_site_is_who_has_the_key_in_the_servers_folder(tmp_path: Path, monkeypatch: Any) -> None:
    """Site 1 is away, and another key was registered under its name; site 2's was taken away; site 0 has its own."""
    setup = small_setup("fedavg", users=3, active=3, rounds=1)
    _, grid = local_federation(tmp_path, setup, join_timeout=0.0, min_sites=1)
    folders, keys = Folders(tmp_path), {}
    for name in ("site-0", "site-1", "site-1-of-another"):
        public = make_site_keys()[1]
        keys[name] = load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_whole(folders.public_key(name), public)
    nodes = list(grid.get_nodes())
    nodes[0].public_key, nodes[1].public_key = keys["site-0"], keys["site-1-of-another"]
    monkeypatch.setattr(grid, "get_nodes", lambda: nodes)
    server = Server(folders.app, folders.server, "run", grid, Journal(folders.server / "log.jsonl"))
    server.run()
    events = read_journal(server.journal.path)
    assert [sorted(e["sites"]) for e in events if e["event"] == "done"] == [["site-0"]]
    assert [e["reason"] for e in events if e["event"] == "stranger"] == [
        "its key is not that of site-1", "its key is not that of site-2",
    ]  # fmt: skip


def test_models_are_tested_by_one_program(tmp_path: Path) -> None:
    """Three rounds are evaluated, at the server and at a site, and the evaluation is compiled once at each."""
    setup = small_setup("fedavg", users=2, active=2, rounds=3)
    server, grid = local_federation(tmp_path / "whole", setup)
    server.run()
    assert server._tester is not None
    assert server._tester._labels._cache_size() == 1
    partial, grid = local_federation(tmp_path / "partial", small_setup("fedavg", users=2, active=2, share="predictor"))
    partial.run()
    assert [site._test._labels._cache_size() for site in grid.sites if site._test is not None] == [1, 1]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"min_sites": 3}, "min_sites is 3, but only 2 are active"),
        ({"sites": ("one",)}, "names 1 sites, but the configuration has 2 users"),
        ({"sites": ("one", "one")}, "names a site twice"),
        ({"test": ""}, "fedensemble predicts at the server"),
        ({"max_message": 1000}, "raise max_message"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    setup = small_setup("fedensemble", users=2, active=2)
    server, grid = local_federation(tmp_path, setup)
    good = read_settings(tmp_path / "server/server.toml", ServerSettings)
    write_server(Folders(tmp_path), good.model_copy(update=settings))
    with pytest.raises(FedgenError, match=reason):
        Server(tmp_path / "fedgen-federation", tmp_path / "server", "other", grid, server.journal)


def test_a_model_of_more_arrays_than_the_gate_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgen.federate.server.server.RECORDS", 2500)
    setup = small_setup("fedavg", users=2, active=2)
    local_federation(tmp_path / "open", setup, authenticated=False)  # there is no gate
    with pytest.raises(FedgenError, match=r"messages of \d+ arrays, .* and the gate takes 2,500: use a model of fewer"):
        local_federation(tmp_path / "closed", setup, authenticated=True)


def test_a_site_with_another_number_than_the_server_thinks_is_told_so(tmp_path: Path) -> None:
    """Draws depend on the number: with a wrong one, a site would train on others' draws without anybody's notice."""
    setup = small_setup("fedavg", users=2, active=2, rounds=1)
    server, grid = local_federation(tmp_path, setup, min_sites=1)
    grid.sites[1].settings = grid.sites[1].settings.model_copy(update={"number": 0})
    server.run()
    (failed,) = [e for e in read_journal(server.journal.path) if e["event"] == "failed"]
    assert failed["site"] == "site-1"
    assert "site.toml of site-1 says number = 0, but in the server's list of sites it is number 1" in failed["reason"]


def test_errors_of_a_site_tell_the_server_nothing_private() -> None:
    assert error_for_server(ValueError("patient 7 in /data/x.npz")) == "ValueError; the site's own log.jsonl says more"
    for text in ("/srv/Data of Ann/positive.npz: training labels are 3 to 9", "image Hans_1961.png does not decode"):
        assert (
            error_for_server(FedgenError(text))
            == "its data or settings are not in order; the site's own log.jsonl says more"
        )
    assert (
        error_for_server(InvalidMessageError("the server's message has 9 bytes")) == "the server's message has 9 bytes"
    )


def test_a_reply_that_never_arrives_whole_holds_up_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower announces a reply before all of it is there, and then waits for the rest, for minutes."""
    monkeypatch.setattr(replies, "_PATIENCE", 0.1)
    setup = small_setup("fedavg", users=3, active=3, rounds=1)
    server, grid = local_federation(tmp_path, setup)
    ends = threading.Event()

    def until_two_have_answered(deadline: float, pause: float) -> bool:
        """The round's time is over when the others' replies are there, however long they take."""
        time.sleep(pause)
        return sum(e["event"] == "answered" for e in read_journal(server.journal.path)) < 2

    monkeypatch.setattr(exchange, "wait_until", until_two_have_answered)
    pull = grid.pull_messages

    def stuck(message_ids: Iterable[str]) -> Iterable[Message]:
        found = list(pull(message_ids))
        if any(m.metadata.src_node_id == 1000 for m in found):
            ends.wait(600)
        return found

    monkeypatch.setattr(grid, "pull_messages", stuck)
    try:
        server.run()
        assert not server.exchange._replies._fetching, "nothing is kept of what comes too late"
    finally:
        ends.set()
    events = read_journal(server.journal.path)
    assert [e["site"] for e in events if e["event"] == "failed"] == ["site-0"]
    (done,) = [e for e in events if e["event"] == "done"]
    assert sorted(done["sites"]) == ["site-1", "site-2"]


@pytest.mark.parametrize(
    "trouble",
    [
        SERVER_ERROR,
        ObjectPushError("0" * 64, 1, "session"),
    ],
)
def test_a_message_that_cannot_be_sent_costs_the_turn_of_its_site_only(
    trouble: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SuperLink refuses a message whose objects somebody has announced as made of others."""
    server, grid = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=2))
    push = grid.push_messages

    def fails(messages: Iterable[Message]) -> Iterable[str]:
        (message,) = messages
        if message.metadata.dst_node_id == 1001 and message.metadata.group_id == "0":
            raise trouble
        return push([message])

    monkeypatch.setattr(grid, "push_messages", fails)
    server.run()
    events = read_journal(server.journal.path)
    assert [(e["site"], e["round"]) for e in events if e["event"] == "failed"] == [("site-1", 0)]
    assert [len(e["sites"]) for e in events if e["event"] == "done"] == [2, 3]
    assert not [e for e in events if e["event"] == "refused"], "it is no fault of the site"


def test_without_keys_one_nodes_bad_answer_is_nobody_elses_trouble(tmp_path: Path) -> None:
    """Nodes are asked for their names: one answers, one cannot be asked at first, one sends what cannot be unpacked."""

    class Nodes(LocalGrid):
        def __init__(self) -> None:
            self.asked: list[int] = []

        def get_nodes(self) -> Iterable[NodeInfo]:
            return [NodeInfo(node_id=n, last_activated_at="2026-01-01") for n in (1, 2, 3)]

        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            (message,) = messages
            node = message.metadata.dst_node_id
            self.asked.append(node)
            if self.asked == [1, 2]:
                raise SERVER_ERROR
            return [f"to {node}"]

        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            (node,) = (int(message_id[3:]) for message_id in message_ids)
            if node == 3:
                raise AttributeError("'ArrayChunk' object has no attribute 'metadata'")
            answer = RecordDict({"site": ConfigRecord({"name": f"site-{node}"})})
            return [Message(answer, reply_to=Message(RecordDict(), node, "query"))]

    settings = ServerSettings(sites=("site-1", "site-2", "site-3"), authenticated=False)
    journal = Journal(tmp_path / "log.jsonl")
    roster = Roster(Nodes(), settings, journal, Membership(tmp_path, settings, journal))
    assert roster.present() == {0: 1}
    assert roster.present() == {0: 1, 1: 2}
    (stranger,) = [e for e in read_journal(journal.path) if e["event"] == "stranger"]
    assert (stranger["node"], stranger["reason"]) == ("3", "its answer cannot be unpacked: AttributeError")


@pytest.mark.parametrize("way", ["push_messages", "pull_messages"])
@pytest.mark.parametrize("trouble", [httpx.ConnectError("nobody listens"), RunNotRunningException()])
def test_what_is_no_sites_fault_ends_the_run_at_once(
    way: str, trouble: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SuperLink is gone, or has ended the run."""
    server, grid = local_federation(tmp_path, small_setup("fedavg", users=2, active=2, rounds=1))

    def fails(_: Iterable[Any]) -> Iterable[Any]:
        raise trouble

    monkeypatch.setattr(grid, way, fails)
    with pytest.raises(type(trouble)):
        server.run()
    assert not [e for e in read_journal(server.journal.path) if e["event"] in ("failed", "refused")]


@pytest.mark.parametrize("asked", [lambda message: "", lambda message: message.metadata.message_id])
def test_what_the_gate_refused_is_a_strike_against_the_site_that_sent_it(
    asked: Callable[[Message], str], tmp_path: Path
) -> None:
    setup = small_setup("fedavg", users=3, active=3, rounds=2)
    (tmp_path / "server").mkdir()
    gate = RefusalWriter(tmp_path / "server" / REFUSALS)
    gate.add(Refusal("site-1", "of an earlier run", ""))

    def too_large(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if site != 2:
            return content
        gate.add(Refusal("site-1", "late", "a message of another run"))
        gate.add(Refusal("site-2", "a message of more than 9 bytes", asked(message)))
        return None

    server, _ = local_federation(tmp_path, setup, too_large, strikes=1)
    server.run()
    events = read_journal(server.journal.path)
    (refused,) = [e for e in events if e["event"] == "refused"]
    assert (refused["site"], refused["reason"]) == ("site-2", "the gate refused it: a message of more than 9 bytes")
    assert [e["site"] for e in events if e["event"] == "excluded"] == ["site-2"]
    assert [sorted(e["sites"]) for e in events if e["event"] == "done"] == [["site-0", "site-1"]] * 2


def asked(server: Server, site: str) -> list[int]:
    return [e["round"] for e in read_journal(server.journal.path) if e["event"] == "round" and site in e["cohort"]]


def reconnecting(grid: LocalGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    """Site 0 connects anew each time that somebody looks."""
    times = itertools.count()

    def nodes() -> list[NodeInfo]:
        return [
            NodeInfo(node_id=1000 + n, name=name, last_activated_at=f"{next(times) if n == 0 else 0:06}")
            for n, name in enumerate(grid.names)
        ]

    monkeypatch.setattr(grid, "get_nodes", nodes)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_site_that_is_silent_again_and_again_rests_longer_whatever_it_reconnects(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first silence costs it nothing, then it rests 1, 2, 4 and 4 rounds; answers of another kind are no help."""
    setup = small_setup("fedavg", users=3, active=3, rounds=18, eval_every=1, share="predictor")

    def silent(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        return None if site == 0 and message.metadata.message_type == kind else content

    server, grid = local_federation(tmp_path, setup, silent, round_timeout=0.05, exclusion=4)
    reconnecting(grid, monkeypatch)
    server.run()
    if kind == "train":
        assert asked(server, "site-0") == [0, 1, 3, 6, 11, 16]
    failed = [e for e in read_journal(server.journal.path) if e["event"] == "failed"]
    assert len(failed) == 6
    assert failed[0]["reason"] == "no answer within 0.05 seconds"
    assert failed[-1]["reason"] == "no answer within 0.05 seconds, again"


@pytest.mark.parametrize(
    ("every", "rounds"),
    [
        # 1, 1.5, 2, 2.5, 3 and 3.5 silences: none rests, none, 1 round, 1, 2 and 2.
        (2, [0, 1, 2, 3, 4, 6, 7, 9, 10, 13, 14, 17, 18]),
        (3, list(range(19))),  # each is taken back by the two answers after it
    ],
)
def test_an_answer_takes_back_half_of_a_silence(
    every: int, rounds: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that crashes now and then and returns is asked in each round; one that does each second time is not."""
    setup = small_setup("fedavg", users=3, active=3, rounds=19)
    times = itertools.count()

    def silent(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        is_silent = site == 0 and message.metadata.message_type == "train" and next(times) % every == 0
        return None if is_silent else content

    server, grid = local_federation(tmp_path, setup, silent, round_timeout=0.05, exclusion=2)
    reconnecting(grid, monkeypatch)
    server.run()
    assert asked(server, "site-0") == rounds


@pytest.mark.parametrize(("exclusion", "rounds"), [(2, [0, 1, 4, 5]), (0, [0, 1])])
def test_whom_a_lower_setting_excludes_is_back_after_so_many_rounds(
    exclusion: int, rounds: list[int], tmp_path: Path
) -> None:
    """A site has one strike of three when the server is stopped; it goes on with `strikes = 1`."""
    setup = small_setup("fedavg", users=3, active=3, rounds=6)

    def bad(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if message.metadata.group_id == "2" and site == 2:
            raise KeyboardInterrupt
        if site == 1 and message.metadata.group_id == "0":
            content["upload"].pop(next(iter(content["upload"])))
        return content

    server, grid = local_federation(tmp_path, setup, bad, exclusion=exclusion, min_sites=1)
    with pytest.raises(KeyboardInterrupt):
        server.run()
    about = server.run_folder.about()
    assert about is not None
    assert (about["run_state"]["round"], about["run_state"]["strikes"]) == (2, {"site-1": 1})
    grid.tamper = None
    folders, before = Folders(tmp_path), len(read_journal(server.journal.path))
    set_values(folders.server / "server.toml", strikes=1)
    again = Server(folders.app, folders.server, "run", grid, server.journal)
    again.run()
    events = read_journal(server.journal.path)[before:]
    assert [e["round"] for e in events if e["event"] == "done" and "site-1" in e["sites"]] == rounds[2:]
    assert [e["until"] for e in events if e["event"] == "excluded"] == [2 + exclusion if exclusion else None]


def test_a_silent_site_that_stays_connected_rests_as_the_setting_says(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=3, active=3, rounds=12)

    def silent(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        return None if site == 0 else content

    for rest, rounds in ((0, list(range(12))), (3, [0, 3, 6, 9])):
        server, _ = local_federation(tmp_path / str(rest), setup, silent, round_timeout=0.05, rest=rest)
        server.run()
        assert asked(server, "site-0") == rounds


def test_with_noise_a_site_answers_a_message_once(tmp_path: Path) -> None:
    """The gate offers a message again where the answer was lost; another answer would have other noise."""
    private = {"dp_clip": 0.5, "dp_noise": 4.0, "dp_count_noise": 4.0, "share": "predictor"}
    own = {"fedmoments__reach": 5.0, "fedmoments__noise": 1.0}  # the algorithm's
    cases: list[tuple[str, str, dict[str, Any]]] = [
        ("private", "fedgen", private), ("own", "fedmoments", own), ("open", "fedgen", {"share": "predictor"})
    ]  # fmt: skip
    for name, algorithm, settings in cases:
        setup = small_setup(algorithm, users=2, active=2, rounds=1, **settings)
        server, _ = local_federation(tmp_path / name, setup)
        folders = Folders(tmp_path / name)
        site = Site(folders.site("site-0"), folders.app)
        received = jax.device_get(server.plan.configure(server.plan.hyper)[0].broadcast(server.plan.server_init(), 0))
        site.train("0" * 16, 0, received, "ticket")
        site.train("0" * 16, 0, received, "of a round that is asked for again")
        if name != "open":
            with pytest.raises(InvalidMessageError, match="answered already, and an answer with noise is given only"):
                site.train("0" * 16, 0, received, "of a round that is asked for again")
        else:
            site.train("0" * 16, 0, received, "of a round that is asked for again")


def test_replies_that_came_in_the_last_seconds_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few are asked for at a time: after the deadline each message is looked at once more."""
    monkeypatch.setattr(replies, "AT_ONCE", 1)
    monkeypatch.setattr(exchange, "AT_ONCE", 1)
    setup = small_setup("fedavg", users=4, active=4, rounds=1)
    server, _ = local_federation(tmp_path, setup, round_timeout=1e-6, poll=60.0)
    server.run()
    (done,) = [e for e in read_journal(server.journal.path) if e["event"] == "done"]
    assert len(done["sites"]) == 4
