"""A site's message that is not what was due is refused, with the reason, and changes nothing."""

import io
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import flax.linen as nn
import jax
import numpy as np
import pytest
import torch
from flax import nnx
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from local_federation import local_federation

import fedgen
from fedgen.algorithms.wrap import With
from fedgen.config import resolve
from fedgen.core.trees import nbytes
from fedgen.federate import wire
from fedgen.federate.journal import read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings
from fedgen.federate.server.checks import checked_score, checked_update
from fedgen.federate.wire import InvalidMessageError, NotFiniteError
from fedgen.models import MODELS
from fedgen.models.adapt import as_model
from fedgen.simulator.setup import prepare
from helpers import SMALL, same_bits, small_data, small_setup

SETTINGS = ServerSettings(sites=("a", "b"))
QUESTION = {"run": "0123456789abcdef", "round": 3, "site": 0, "ticket": "feedfeedfeedfeed"}
WEIGHT = ".base.params.predictor['weight']"
COUNTS = ".counts"


@pytest.fixture(scope="module")
def plan() -> Plan:
    setup = small_setup("fedgen", share="predictor")
    return Plan(setup.config, setup.task)


def zeros(tree: object) -> object:
    return jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), tree)


def honest(plan: Plan) -> RecordDict:
    """What a site would send that drew label 0 all the time and whose update is 0."""
    upload = zeros(plan.forms.upload)
    upload.own.counts[0] = plan.config.local_steps * plan.config.batch_size
    return honest_of(upload)


def honest_of(upload: object) -> RecordDict:
    return RecordDict(
        {"upload": wire.encode(upload), "about": ConfigRecord(dict(QUESTION)), "metrics": MetricRecord({"loss": 1.0})}
    )


def check(plan: Plan, content: RecordDict) -> Any:
    reply = Message(content, reply_to=Message(RecordDict(), 1, "train"))
    algorithm, _ = plan.configure(plan.hyper)
    question = ConfigRecord(dict(QUESTION))
    return checked_update(reply, question, plan, algorithm, SETTINGS)[0]


def change(name: str, f: Callable[[np.ndarray], np.ndarray]) -> Callable[[RecordDict], None]:
    def tamper(content: RecordDict) -> None:
        content["upload"][name] = Array(f(content["upload"][name].numpy()))

    return tamper


def put(place: tuple[int, ...], value: float) -> Callable[[np.ndarray], np.ndarray]:
    def f(array: np.ndarray) -> np.ndarray:
        array[place] = value
        return array

    return f


def pickled(content: RecordDict) -> None:
    """An array of Python objects, which only unpickling could read."""
    there = content["upload"][WEIGHT]
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": print}], object), allow_pickle=True)
    content["upload"][WEIGHT] = Array(dtype=there.dtype, shape=there.shape, stype=there.stype, data=buffer.getvalue())


def reshaped_secretly(content: RecordDict) -> None:
    there = content["upload"][WEIGHT]
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(there.shape[::-1], np.float32))
    content["upload"][WEIGHT] = Array(dtype=there.dtype, shape=there.shape, stype=there.stype, data=buffer.getvalue())


def truncated(content: RecordDict) -> None:
    there = content["upload"][WEIGHT]
    content["upload"][WEIGHT] = Array(
        dtype=there.dtype, shape=there.shape, stype=there.stype, data=there.data[: len(there.data) // 2]
    )


def holding(data: bytes) -> Callable[[RecordDict], None]:
    """An array that says it is what is due, with other bytes in it."""

    def tamper(content: RecordDict) -> None:
        there = content["upload"][WEIGHT]
        content["upload"][WEIGHT] = Array(dtype=there.dtype, shape=there.shape, stype=there.stype, data=data)

    return tamper


def header(text: str) -> bytes:
    """The beginning of a file in NumPy's format, and nothing after it."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def claiming(shape: str) -> bytes:
    return header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}")


def remove(record: str, name: str) -> Callable[[RecordDict], None]:
    return lambda content: content[record].pop(name) and None


def replace(record: str, value: object) -> Callable[[RecordDict], None]:
    return lambda content: content.__setitem__(record, value)


BIG = Array(np.zeros(1 << 18, np.float32))
CASES = {
    "a NaN": (change(WEIGHT, put((0, 0), np.nan)), "NaN or infinite"),
    "an infinity": (change(WEIGHT, put((1, 1), np.inf)), "NaN or infinite"),
    "another shape": (change(WEIGHT, lambda a: a[:-1]), r"shape \(5, 4\), not float32 of shape \(6, 4\)"),
    "another type": (change(WEIGHT, lambda a: a.astype(np.float64)), "is float64"),
    "a missing array": (remove("upload", WEIGHT), "is missing"),
    "an extra array": (lambda c: c["upload"].__setitem__("extra", Array(np.zeros(3))), "not expected"),
    "a negative count": (change(COUNTS, lambda a: a + np.array([1, -1, 0, 0], np.int32)), "counts from -1"),
    "too many counts": (change(COUNTS, lambda a: a + np.int32(5)), "not those of 24 draws"),
    "absurd counts": (change(COUNTS, put((0,), 2_000_000_000)), "not those of 24 draws"),
    "counts that wrap around": (change(COUNTS, lambda a: a + np.int32([1 << 30] * 4)), "not those of 24 draws"),
    "too many bytes": (lambda c: c["upload"].__setitem__("extra", BIG), r"1,049,\d+ bytes; [\d,]+ are allowed"),
    "a ticket with much beside it": (replace("about", ConfigRecord({**QUESTION, "x": b"x" * (1 << 20)})), "bytes; "),
    "a ticket with a little beside it": (replace("about", ConfigRecord({**QUESTION, "x": 1})), "repeats more"),
    "metrics with much in them": (replace("metrics", MetricRecord({"loss": [1.0] * (1 << 17)})), "bytes; "),
    "metrics that nobody asked for": (replace("metrics", MetricRecord({"loss": 1.0, "x": 1})), "not the expected ones"),
    "no loss": (replace("metrics", MetricRecord({})), "not the expected ones"),
    "an absurd loss": (replace("metrics", MetricRecord({"loss": 1e308})), "not a finite number"),
    "pickled objects": (pickled, "but is object"),
    "another shape inside": (reshaped_secretly, "says it is"),
    "half of an array": (truncated, "cannot be read"),
    "an empty archive": (holding(b"PK\x05\x06" + bytes(18)), "cannot be read"),
    "a broken archive": (holding(b"PK\x03\x04" + bytes(40)), "cannot be read"),
    "more numbers than memory": (holding(claiming(f"({10**15},)")), "says it is"),
    "more numbers than can be counted": (holding(claiming(f"({10**26},)")), "says it is"),
    "a header without its end": (holding(header("{'descr': '<f4', 'shape': (((")), "cannot be read"),
    "a header without numbers": (holding(claiming("(6, 4)")), "has 0 bytes of numbers"),
    "columns for rows": (holding(claiming("(6, 4)").replace(b"False", b" True")), "stored by columns"),
    "another round": (replace("about", ConfigRecord({**QUESTION, "round": 2})), "another message: its round is '2'"),
    "another ticket": (replace("about", ConfigRecord({**QUESTION, "ticket": "f" * 16})), "another message: its ticket"),
    "another run": (replace("about", ConfigRecord({**QUESTION, "run": "f" * 16})), "another message: its run"),
    "no ticket": (remove("about", "ticket"), "its ticket is None"),
    "a ticket of another type": (replace("about", ConfigRecord({**QUESTION, "ticket": 7})), "its ticket is 7"),
    "a missing record": (lambda c: c.pop("metrics") and None, "it has the records about, upload"),
    "an extra record": (replace("more", ConfigRecord({})), "about, metrics, more, upload"),
    "a record of another kind": (replace("upload", ConfigRecord({})), "not a ArrayRecord"),
    "a loss that is NaN": (replace("metrics", MetricRecord({"loss": float("nan")})), "NaN or infinite"),
}


def test_an_honest_message_is_taken(plan: Plan) -> None:
    check(plan, honest(plan))


@pytest.mark.parametrize("case", CASES)
def test_refused(case: str, plan: Plan) -> None:
    tamper, reason = CASES[case]
    content = honest(plan)
    tamper(content)
    with pytest.raises(InvalidMessageError, match=reason):
        check(plan, content)


@pytest.mark.parametrize("private", [False, True])
def test_counts_of_more_than_the_draws_are_refused_whatever_they_add_up_to(private: bool) -> None:
    """24 draws; four counts that add up to 24 modulo 2^32, and one that no noise of standard deviation 48 explains."""
    noise = {"dp_noise": 1.0, "dp_clip": 1.0, "dp_count_noise": 2.0} if private else {}
    setup = small_setup("fedgen", share="predictor", **noise)
    plan = Plan(setup.config, setup.task)
    algorithm, _ = plan.configure(plan.hyper)
    assert algorithm.check_upload is not None
    nothing = zeros(plan.forms.upload)

    def refused(*counts: int) -> bool:
        sent = With(nothing.base, nothing.own._replace(counts=np.array(counts, np.int32)))
        return any(map(bool, algorithm.check_upload(sent).values()))

    assert not refused(24, 0, 0, 0)
    assert refused((1 << 30) + 24, 1 << 30, 1 << 30, 1 << 30)
    assert refused(300, 0, 0, 0) != private, "noise may do that"


@pytest.mark.parametrize(
    ("score", "reason"),
    [
        (
            {"correct": 11, "total": 10, "correct_seen": 1, "total_seen": 1, "matching": 50.0},
            "more correct predictions",
        ),
        ({"correct": -1, "total": 10, "correct_seen": 1, "total_seen": 1, "matching": 50.0}, "negative"),
        ({"correct": 1, "total": 10, "correct_seen": 1, "total_seen": 1, "matching": float("inf")}, "not finite"),
        ({"correct": 1}, "does not have the expected numbers"),
    ],
)
def test_a_false_score_is_refused(score: dict, reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        scored(score)


def scored(score: dict) -> dict[str, float]:
    """The score as it counts where 1000 samples count at most."""
    content = RecordDict({"about": ConfigRecord(dict(QUESTION)), "metrics": MetricRecord(score)})
    reply = Message(content, reply_to=Message(RecordDict(), 1, "evaluate"))
    return checked_score(reply, ConfigRecord(dict(QUESTION)), 1000)


@pytest.mark.parametrize("size", [1000, 1001, 4_000_000, 10**18, 1e308])
def test_a_score_on_more_samples_counts_as_one_on_the_most(size: float) -> None:
    """An honest site may have them: the same accuracies, and the weight of `max_samples`."""
    taken = scored({"correct": size * 0.75, "total": size, "correct_seen": size * 0.25, "total_seen": size * 0.5,
                    "matching": 61.5})  # fmt: skip
    wanted = {"correct": 750, "total": 1000, "correct_seen": 250, "total_seen": 500, "matching": 61.5}
    assert taken == pytest.approx(wanted, rel=1e-12)


def test_a_site_that_sends_poison_changes_nothing_and_is_excluded(tmp_path: Path) -> None:
    """As if it were not there: bit for bit the run without the site."""
    setup = small_setup("fedgen", users=3, active=3, rounds=4)

    def poison(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 1 and "upload" in content:
            name = next(iter(content["upload"]))
            content["upload"][name] = Array(content["upload"][name].numpy().astype(np.float64))
        return content

    server, grid = local_federation(tmp_path / "poisoned", setup, poison, strikes=2)
    server.run()
    events = read_journal(server.journal.path)
    refused = [e for e in events if e["event"] == "refused"]
    assert [(e["site"], e["strikes"]) for e in refused] == [("site-1", 1), ("site-1", 2)]
    assert all("is float64" in e["reason"] for e in refused)
    assert [e["site"] for e in events if e["event"] == "excluded"] == ["site-1"]
    asked = [e["cohort"] for e in events if e["event"] == "round"]
    assert all("site-1" in cohort for cohort in asked[:2])
    assert not any("site-1" in cohort for cohort in asked[2:])
    assert not [m for s, m in grid.sent if s == 1 and m.metadata.group_id in ("2", "3")], "it is not even asked"

    absent, other = local_federation(tmp_path / "absent", setup, join_timeout=0.0)
    other.absent = {1}
    absent.run()
    for number in range(1, 5):
        one, two = (s.path / "rounds" / f"{number}.safetensors" for s in (server, absent))
        assert same_bits(*(load(path, server.plan) for path in (one, two)))


def test_what_an_honest_site_may_send_is_no_strike_and_exclusion_ends(tmp_path: Path) -> None:
    """Site 0 diverges in each round; site 1 sends too few arrays in the first two, is left out of two, and is back."""
    setup = small_setup("fedavg", users=4, active=4, rounds=6)

    def bad(site: int, message: Message, content: RecordDict) -> RecordDict:
        if "upload" in content:
            name = next(iter(content["upload"]))
            if site == 0:
                content["upload"][name] = Array(content["upload"][name].numpy() + np.float32(np.nan))
            if site == 1 and message.metadata.group_id in ("0", "1"):
                content["upload"].pop(name)
        return content

    server, _ = local_federation(tmp_path, setup, bad, strikes=2, exclusion=2)
    server.run()
    events = read_journal(server.journal.path)
    took_part = [sorted(e["sites"]) for e in events if e["event"] == "done"]
    others = ["site-2", "site-3"]
    assert took_part == [others, others, others, others, ["site-1", *others], ["site-1", *others]]
    refused = [(e["site"], e.get("strikes")) for e in events if e["event"] == "refused"]
    assert refused.count(("site-0", None)) == 6
    assert refused.count(("site-1", 1)) == refused.count(("site-1", 2)) == 1
    assert [(e["site"], e["until"]) for e in events if e["event"] == "excluded"] == [("site-1", 4)]
    assert [(e["site"], e["round"]) for e in events if e["event"] == "readmitted"] == [("site-1", 4)]


@pytest.mark.parametrize(
    ("where", "error"),
    [
        ("fetched", MemoryError("too little")),
        ("fetched", OSError("too many files")),
        ("checked", MemoryError("too little")),
        ("begun", RuntimeError("can't start new thread")),
    ],
)
def test_an_answer_that_the_server_fails_to_read_is_lost_and_costs_no_strike(
    where: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An honest site's answer is lost in the first round, whatever the server is short of; the run goes on."""
    server, grid = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=2), strikes=1)
    pull, start, failed = grid.pull_messages, threading.Thread.start, list[int]()

    def once(happens: bool) -> None:
        if happens and not failed:
            failed.append(1)
            raise error

    def fetched(message_ids: Iterable[str]) -> list[Message]:
        found = list(pull(message_ids))
        once(any(message.metadata.src_node_id == 1001 for message in found))
        return found

    def checked(reply: Message, *due: Any) -> Any:
        once(reply.metadata.src_node_id == 1001)
        return checked_update(reply, *due)

    def begun(thread: threading.Thread) -> None:
        once(thread.name.endswith("(_run)"))
        start(thread)

    if where == "fetched":
        monkeypatch.setattr(grid, "pull_messages", fetched)
    elif where == "checked":
        monkeypatch.setattr("fedgen.federate.server.server.checked_update", checked)
    else:
        monkeypatch.setattr(threading.Thread, "start", begun)
    server.run()
    events = read_journal(server.journal.path)
    (lost,) = [e for e in events if e["event"] == "failed"]
    assert lost["reason"] == (
        f"its answer is lost, since the server failed to read it: {type(error).__name__}: {error}"
    )
    assert not [e for e in events if e["event"] in ("refused", "excluded")]
    assert [len(e["sites"]) for e in events if e["event"] == "done"] == [2, 3]


def test_no_message_makes_numpy_run_out_of_memory(plan: Plan) -> None:
    """A header that is nested a thousand times makes Python's parser say so; it is longer than any honest one."""
    like = np.zeros(10_000, np.float32)
    nested = header("-" * 9_000 + "1").ljust(like.nbytes + 128, b" ")
    record = ArrayRecord({"['a']": Array(dtype="float32", shape=like.shape, stype="numpy.ndarray", data=nested)})
    with pytest.raises(InvalidMessageError, match="cannot be read"):
        wire.decode(record, {"a": like})


def test_memory_that_is_short_is_no_fault_of_the_message(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> Any:
        raise MemoryError

    for place in ("fedgen.federate.wire.npy.read_magic", "fedgen.federate.wire.recorddict_to_proto"):
        with monkeypatch.context() as patched:
            patched.setattr(place, short)
            with pytest.raises(MemoryError):
                check(plan, honest(plan))


@pytest.mark.parametrize(
    ("settings", "fits"),
    [
        ({"local_epochs": 5}, 5_000_000),
        ({"local_steps": 2000, "batch_size": 1000}, 2_000_000),
    ],
)
def test_the_draws_of_a_large_honest_site_are_no_strike(settings: dict[str, int], fits: int) -> None:
    """It has `max_samples`, and draws each one five times, or two million times with replacement."""
    plan = Plan(*[getattr(small_setup("fedgen", share="predictor", **settings), n) for n in ("config", "task")])
    content = honest(plan)
    content["upload"][COUNTS] = Array(np.array([fits, 0, 0, 0], np.int32))
    assert check(plan, content).own.counts.tolist() == [fits, 0, 0, 0]


def test_a_site_with_more_than_max_samples_counts_as_one_with_so_many() -> None:
    """An honest site may have them. Its labels keep their shares; its draws do not bound its weight."""
    setup = small_setup("fedgen", share="predictor", local_epochs=5)
    plan = Plan(setup.config, setup.task)
    content = honest(plan)
    content["upload"][COUNTS] = Array(np.array([6_000_000, 0, 3_000_000, 12_000_000], np.int32))
    counts = check(plan, content).own.counts
    assert (counts.tolist(), counts.dtype) == ([2_500_000, 0, 1_250_000, 5_000_000], np.int32)
    setup = small_setup("fedavg", weighting="samples", local_epochs=5)
    plan = Plan(setup.config, setup.task)
    for samples, counted in ((1_000_000, 1_000_000), (1_000_001, 1_000_000), (2**31 - 1, 1_000_000), (7, 7)):
        content = honest_of(zeros(plan.forms.upload)._replace(samples=np.int32(samples)))
        assert check(plan, content).samples == counted


@pytest.mark.parametrize("way", ["bytes", "another question"])
def test_a_reply_that_cannot_be_unpacked_or_names_another_question_costs_a_strike(
    way: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Flower unpacks what a site sent while it is fetched, and believes the site about what it answers."""
    server, grid = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=2))
    pull = grid.pull_messages

    def unpacked(message_ids: Iterable[str]) -> Iterable[Message]:
        for message in pull(message_ids):
            if message.metadata.src_node_id == 1001:
                if way == "bytes":
                    raise AttributeError("'ArrayChunk' object has no attribute 'metadata'")
                message.metadata.__dict__["_reply_to_message_id"] = "message-0-of-another-round"
            yield message

    monkeypatch.setattr(grid, "pull_messages", unpacked)
    server.run()
    events = read_journal(server.journal.path)
    said = {"bytes": "it cannot be unpacked: AttributeError", "another question": "it says that it answers another"}
    refused = [e for e in events if e["event"] == "refused"]
    assert [e["site"] for e in refused] == ["site-1", "site-1"]
    assert all(e["reason"].startswith(said[way]) for e in refused)
    assert [sorted(e["sites"]) for e in events if e["event"] == "done"] == [["site-0", "site-2"]] * 2


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        return nn.Dense(4)(nn.BatchNorm(use_running_average=not train)(x.reshape(len(x), -1)))


class Nnx(nnx.Module):
    def __init__(self, key: jax.Array, size: int) -> None:
        self.norm, self.head = nnx.BatchNorm(size, rngs=nnx.Rngs(key)), nnx.Linear(size, 4, rngs=nnx.Rngs(key))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.norm(x.reshape(len(x), -1)))


class Equinox(eqx.Module):
    norm: eqx.nn.BatchNorm
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array, mode: Literal["ema", "batch"]) -> None:
        self.norm, self.head = eqx.nn.BatchNorm(64, "batch", mode=mode), eqx.nn.Linear(64, 4, key=key)

    def __call__(self, x: jax.Array, state: eqx.nn.State) -> tuple[jax.Array, eqx.nn.State]:
        x, state = self.norm(x.ravel(), state)
        return self.head(x), state


def by_hand(_: Any, classes: int) -> fedgen.Model:
    cnn = MODELS["cnn"]((8, 8, 1), classes)
    assert cnn.never_negative == ("['norm0']['variance']", "['norm1']['variance']")
    return cnn._replace(never_negative=("['norm1']['mean']",))  # what they have in common


# What makes the network, an algorithm, and an array of its upload that is never negative.
NORMS: dict[str, tuple[Any, str, str]] = {
    "own": (MODELS["cnn"], "fedavg", ".statistics['norm1']['variance']"),
    "own, residual": (MODELS["resnet"], "fedavg", ".statistics['stage2block0b-norm']['variance']"),
    "linen": (lambda *_: Linen(), "fedgen", ".base.statistics['batch_stats/BatchNorm_0/var']"),
    "nnx": (lambda key: Nnx(key, 64), "fedavg", ".statistics['norm.var']"),
    "equinox": (lambda key: Equinox(key, "ema"), "scaffold", ".base.statistics['norm.ema_state_index.1']"),
    "equinox, batch": (lambda key: Equinox(key, "batch"), "fedavg", ".statistics['norm.batch_state_index.1']"),
    "equinox, counter": (lambda key: Equinox(key, "batch"), "fedavg", ".statistics['norm.batch_counter']"),
    "torch": (
        lambda *_: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4)),
        "fedavg",
        ".statistics['1.running_var']",
    ),
    "by hand": (by_hand, "fedavg", ".statistics['norm1']['mean']"),
}


def plan_of(network: Any, algorithm: str, **settings: Any) -> Plan:
    small = {key: value for key, value in SMALL.items() if not key.startswith("model")}
    config = resolve(small, {"algorithms": [algorithm], "model": "own", **settings}, own={"dataset", "model"})
    setup = prepare(config, small_data(), as_model(network, jax.ShapeDtypeStruct((8, 8, 1), np.float32), 4))
    return Plan(setup.config, setup.task)


@pytest.mark.filterwarnings("ignore:When `eqx.nn.BatchNorm")
@pytest.mark.parametrize("kind", NORMS)
def test_a_variance_that_is_negative_is_refused(kind: str) -> None:
    """Averaged, it would make every prediction a NaN, though all that was sent is finite."""
    network, algorithm, name = NORMS[kind]
    plan = plan_of(network, algorithm)
    content = honest(plan) if algorithm == "fedgen" else honest_of(zeros(plan.forms.upload))
    for other in set(content["upload"]) - set(plan.never_negative):
        if ".statistics" in other:
            content["upload"][other] = Array(np.asarray(content["upload"][other].numpy() - 1))
    check(plan, content)
    numbers = np.array(content["upload"][name].numpy())
    numbers.flat[-1] = -1e-6
    content["upload"][name] = Array(numbers)
    with pytest.raises(InvalidMessageError, match=re.escape(f"{name} has a negative number")) as error:
        check(plan, content)
    assert not isinstance(error.value, NotFiniteError), "it is a strike"


@pytest.mark.parametrize(("share", "sent"), [("all", 2), ("extractor", 2), ("predictor", 0)])
def test_what_is_not_sent_is_not_checked(share: str, sent: int) -> None:
    assert len(plan_of(MODELS["cnn"], "fedprox", share=share).never_negative) == sent
    assert len(plan_of(MODELS["cnn"], "fedavg", share=share, statistics="local").never_negative) == sent


def test_a_site_that_sends_a_negative_variance_gets_a_strike(tmp_path: Path) -> None:
    def below(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 1 and "upload" in content:
            name = ".statistics['norm1']['variance']"
            content["upload"][name] = Array(-content["upload"][name].numpy())
        return content

    setup = small_setup("fedavg", model="cnn", users=3, active=3, rounds=1)
    server, _ = local_federation(tmp_path, setup, below)
    server.run()
    (refused,) = [e for e in read_journal(server.journal.path) if e["event"] == "refused"]
    assert (refused["site"], refused["strikes"]) == ("site-1", 1)


def load(path: Path, plan: Plan) -> object:
    from fedgen.runs.checkpoint import load_tree

    return load_tree(path, plan.forms.server)


def test_a_replayed_message_is_refused(tmp_path: Path) -> None:
    """Site 0 sends its first round's answer again in the second."""
    setup = small_setup("fedavg", users=2, active=2, rounds=2)
    first: dict[str, RecordDict] = {}

    def replay(site: int, message: Message, content: RecordDict) -> RecordDict:
        return first.setdefault("answer", content) if site == 0 and "upload" in content else content

    server, _ = local_federation(tmp_path, setup, replay, min_sites=1)
    server.run()
    (refused,) = [e for e in read_journal(server.journal.path) if e["event"] == "refused"]
    assert (refused["site"], refused["round"]) == ("site-0", 1)
    assert "answers another message: its round is '0', not 1" in refused["reason"]


def test_partial_sharing_sends_predictor_counts_and_generator_and_no_sample(tmp_path: Path) -> None:
    """All that crosses the wire, as Flower serialises it."""
    from flwr.common.serde import recorddict_to_proto

    setup = small_setup("fedgen", users=2, active=2, rounds=1, share="predictor")
    server, grid = local_federation(tmp_path, setup)
    server.run()
    predictor, classes, latent = "params.predictor", 4, 6
    up = {f".base.{predictor}['weight']": latent * classes * 4, f".base.{predictor}['bias']": classes * 4, COUNTS: 16}
    samples = [np.asarray(site.data.x) for site in grid.sites]
    kinds = set()
    for _, message in grid.sent:
        kind = message.metadata.message_type, "broadcast" in message.content
        kinds.add(kind)
        whole = recorddict_to_proto(message.content).SerializeToString()
        if kind == ("train", False):
            sent = {name: array.numpy().nbytes for name, array in message.content["upload"].items()}
            assert sent == up
            assert len(whole) < sum(up.values()) + 1000, "names and headers, and nothing else of any size"
        if kind == ("train", True):
            names = {name.split("[")[0] for name in message.content["broadcast"]}
            assert names <= {f".base.{predictor}", ".generator.params", ".generator.statistics", ".prior"}
            assert len(whole) < nbytes(server.plan.forms.broadcast) + 5000
        for x in samples:
            for image in x[:10]:
                assert image.tobytes() not in whole
                assert np.float32(image).tobytes() not in whole
    assert kinds == {("train", True), ("train", False), ("evaluate", True), ("evaluate", False)}


def test_a_site_refuses_what_the_server_should_not_send(tmp_path: Path) -> None:
    from fedgen.federate.apps import answer
    from fedgen.federate.journal import Journal

    setup = small_setup("fedavg", users=2, active=2)
    _, grid = local_federation(tmp_path, setup)
    site = grid.sites[0]
    arrays = wire.encode(zeros(site.plan.forms.broadcast))
    name = next(iter(arrays))

    def ask(about: dict, arrays: ArrayRecord) -> None:
        content = RecordDict({"broadcast": arrays, "about": ConfigRecord(about)})
        answer(site, Message(content, 1, "train"), Journal(tmp_path / "log.jsonl"), train=True)

    with pytest.raises(InvalidMessageError, match="16 hexadecimal digits"):
        ask({**QUESTION, "run": "../../../../etc"}, arrays)
    with pytest.raises(InvalidMessageError, match="its round is '3'"):
        ask({**QUESTION, "round": "3"}, arrays)
    with pytest.raises(InvalidMessageError, match="is missing"):
        ask(QUESTION, ArrayRecord({n: a for n, a in arrays.items() if n != name}))
    assert not (site.folder / "state").exists()


def test_a_round_that_comes_late_does_not_take_the_place_of_a_newer_one(tmp_path: Path) -> None:
    """The last round may be asked for again; one before it is over, and the site's own state stays what it is."""
    setup = small_setup("fedavg", users=2, active=2, share="predictor")
    _, grid = local_federation(tmp_path, setup)
    site, run = grid.sites[0], str(QUESTION["run"])
    broadcast = zeros(site.plan.forms.broadcast)
    for number in (2, 5, 5):
        site.train(run, number, broadcast)
    kept = {path.name: path.read_bytes() for path in (site.folder / "state" / run).iterdir()}
    assert len(kept) == 2, "the state after round 5, and the one before it"
    for number in (0, 2, 4):
        with pytest.raises(InvalidMessageError, match=f"round {number} is over: this site has trained in round 5"):
            site.train(run, number, broadcast)
    assert {path.name: path.read_bytes() for path in (site.folder / "state" / run).iterdir()} == kept
