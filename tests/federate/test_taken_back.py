"""A round that breaks the model is taken back and done again without the outlier, whoever judges it."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flwr.app import Array, Message, MetricRecord, RecordDict
from local_federation import local_federation
from local_grid import Tamper

from fedgen.algorithms.feddyn import Drift
from fedgen.algorithms.scaffold import Control
from fedgen.algorithms.wrap import With
from fedgen.federate.journal import read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.server.judge import (
    Judgement,
    Unjudged,
    any_samples,
    broken,
    fell,
    loss_rose,
    mean_loss,
    mended,
    most,
    outliers,
    pooled,
    rose,
)
from fedgen.federate.server.server import Server
from fedgen.federate.server.status import Status
from fedgen.models import layers
from fedgen.runs.checkpoint import load_tree
from helpers import same_bits, small_setup

UNBOUNDED = {"users": 4, "active": 4, "rounds": 4, "lr": 0.1, "local_steps": 8, "max_update": 0.0}


def shot(number: str, size: float) -> Tamper:
    """Site 1 sends its model negated and this much larger, in one round."""

    def tamper(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 1 and "upload" in content and message.metadata.group_id == number:
            for name, array in content["upload"].items():
                content["upload"][name] = Array(-np.float32(size) * array.numpy())
        return content

    return tamper


def zeros(forms: Any) -> Any:
    return jax.tree.map(lambda form: np.zeros(form.shape, form.dtype), forms)


def events(server: Server, kind: str) -> list[dict[str, Any]]:
    return [e for e in read_journal(server.journal.path) if e["event"] == kind]


def state(server: Server, rounds: int) -> Any:
    return load_tree(server.path / "rounds" / f"{rounds}.safetensors", server.plan.forms.server)


def test_what_is_clearly_broken() -> None:
    assert fell(80.0, 30.0)
    assert not fell(80.0, 45.0), "an honest round may cost some"
    assert not fell(25.0, 10.0), "as in the first rounds"
    assert rose(0.5, 2.0)
    assert rose(0.5, float("nan"))
    assert not rose(0.1, 0.9)
    assert not rose(1.0, 2.5)


def test_a_model_that_predicts_no_numbers_is_broken_where_it_did_before() -> None:
    good, blind = Judgement(finite=True, accuracy=80.0), Judgement(finite=True, predicts=False, accuracy=10.0)
    assert broken(good, Judgement(finite=False)) == "the model was not finite"
    assert broken(good, blind) == "the model's predictions were not finite"
    assert broken(blind, blind) == ""
    assert broken(good, good._replace(accuracy=30.0)) == "the accuracy fell from 80.0 to 30.0 %"
    assert broken(good, good._replace(accuracy=None)) == ""
    assert mended(good, blind, blind), "one suspect goes after the other"


def test_without_a_suspect_at_least_half_of_the_accuracy_is_back() -> None:
    """A little more accuracy is what any other cohort may have."""
    good, bad = Judgement(finite=True, accuracy=80.0), Judgement(finite=True, accuracy=20.0)
    assert not mended(good, bad, bad._replace(accuracy=49.0))
    assert mended(good, bad, bad._replace(accuracy=50.0))


def test_no_single_site_moves_the_loss_by_which_a_round_is_judged() -> None:
    assert loss_rose(0.5, [0.4, 3.0, 3.0])
    assert not loss_rose(0.5, [0.4, 0.5, 1e6])
    assert not loss_rose(0.5, [3.0, 3.0]), "too few"
    assert not loss_rose(None, [3.0, 3.0, 3.0])


def test_half_of_the_sites_are_not_most_of_them() -> None:
    assert most(3, 5)
    assert most(3, 4)
    assert not most(2, 4)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float32"])
def test_samples_of_the_tasks_form(dtype: str) -> None:
    form = jax.ShapeDtypeStruct((3, 5), np.dtype(dtype))
    x = any_samples(form, 4)
    assert (x.shape, x.dtype) == ((4, 3, 5), form.dtype)
    if dtype.startswith("uint"):
        assert x.max() > 0.8 * np.iinfo(dtype).max
    else:
        assert 0 <= x.min() < x.max() <= 1


def test_a_round_of_two_updates_is_not_taken_back_whatever_the_least(tmp_path: Path) -> None:
    setup = small_setup("fedavg")
    plan = Plan(setup.config, setup.task)
    unjudged, upload = Unjudged(tmp_path, plan.forms), zeros(plan.forms.upload)
    for number, sites in enumerate([(0, 1), (0, 1, 2), (0, 1, 2)]):
        unjudged.keep(number, zeros(plan.forms.server), dict.fromkeys(sites, upload), taken_back=number == 2)
    assert [unjudged.can_lose_one(number, 1) for number in range(4)] == [False, True, False, False]
    assert not unjudged.can_lose_one(1, 3)


def test_the_outlier_is_the_one_far_from_the_median() -> None:
    uploads = {s: {"a": np.float32([s, 1.0]), "counts": np.int32([900 * s])} for s in (3, 5, 4)}
    uploads[7] = {"a": np.float32([4.0, -9.0]), "counts": np.int32([0])}
    assert outliers(uploads) == [7, 3, 5, 4]


def test_each_part_of_an_upload_is_measured_by_itself() -> None:
    """Site 3 moves the control variates tenfold, which are short beside honest parameters."""
    rng = np.random.default_rng(0)
    uploads = {
        site: With(
            With({"a": np.float32(100 * rng.normal(size=50))}, Drift(np.float32(np.full(4, 2.0)))),
            Control({"a": np.float32((10 if site == 3 else 1) * 1e-3 * rng.normal(size=50))}),
        )
        for site in range(7)
    }
    assert outliers(uploads)[0] == 3
    uploads[5] = With(With(uploads[5].base.base, Drift(np.float32(np.full(4, 2.1)))), uploads[5].own)
    assert outliers(uploads)[:2] == [3, 5], "where all the others send the same, one that does not is far"


@pytest.mark.slow
def test_a_model_that_is_not_finite_is_never_kept(tmp_path: Path) -> None:
    """Two of five send numbers whose sum is too large for 32 bits; without one of them it is merely a useless model."""
    setup = small_setup("fedavg", **{**UNBOUNDED, "users": 5, "active": 5})

    def huge(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site in (1, 2) and "upload" in content and message.metadata.group_id == "3":
            for name, array in content["upload"].items():
                content["upload"][name] = Array(np.full_like(array.numpy(), 3e38))
        return content

    server, _ = local_federation(tmp_path, setup, huge)
    (row,) = server.run()["results"]
    taken = events(server, "taken back")
    assert {e["without"] for e in taken} == {"site-1", "site-2"}
    assert taken[0]["reason"].startswith("the model was not finite; it is done again without")
    assert row["diverged_at"] is None


def test_the_servers_test_samples_judge_at_once(tmp_path: Path) -> None:
    """As if the site had not been there in that round."""
    setup = small_setup("fedavg", **UNBOUNDED)
    server, _ = local_federation(tmp_path / "shot", setup, shot("2", 30.0))
    server.run()
    (taken,) = events(server, "taken back")
    assert (taken["round"], taken["without"]) == (2, "site-1")
    assert "the accuracy fell from" in taken["reason"]
    server.journal.write("taken back", round=2, without="site-1", reason=taken["reason"])  # it has answered since
    status = Status(tmp_path / "shot/server")
    status.update()
    said = status.sites["site-1"].trouble
    assert said.startswith("round 3 was taken back: the accuracy fell from")
    assert said.endswith("; it is done again without this site's update, which is suspected only")
    assert [len(e["sites"]) for e in events(server, "done")] == [4, 4, 3, 4]

    def silent(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 1 and "upload" in content and message.metadata.group_id == "2":
            raise ValueError("it has nothing to say")
        return content

    without, _ = local_federation(tmp_path / "silent", setup, silent)
    without.run()
    assert same_bits(state(server, 4), state(without, 4))


@pytest.mark.parametrize("found", [True, False])
def test_the_test_samples_judge_without_whom_it_is_better(
    found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The farthest is innocent: of the first three suspects, the one without whom the accuracy is back is left out."""
    order = [3, 2, 1, 0] if found else [3, 2, 0, 1]
    monkeypatch.setattr("fedgen.federate.server.server.outliers", lambda uploads: [s for s in order if s in uploads])
    server, _ = local_federation(tmp_path, small_setup("fedavg", **UNBOUNDED), shot("2", 30.0))
    server.run()
    assert [e["without"] for e in events(server, "taken back")] == ["site-1"] * found


def test_a_round_after_which_most_sites_diverge_is_taken_back_whatever_the_test_samples_said(tmp_path: Path) -> None:
    """As if the suspect had not been in it: its update costs no accuracy yet, and then all answer with NaN, once."""
    setup = small_setup("fedavg", **UNBOUNDED)
    diverged: set[int] = set()

    def slowly(site: int, message: Message, content: RecordDict) -> RecordDict:
        if "upload" in content and site == 1 and message.metadata.group_id == "1":
            for name, array in content["upload"].items():
                content["upload"][name] = Array(np.float32(3.0) * array.numpy())
        if "upload" in content and message.metadata.group_id == "2" and site not in diverged:
            diverged.add(site)
            for name, array in content["upload"].items():
                content["upload"][name] = Array(np.float32(np.nan) * array.numpy())
        return content

    server, _ = local_federation(tmp_path / "pushed", setup, slowly)
    server.run()
    (taken,) = events(server, "taken back")
    assert (taken["round"], taken["without"]) == (1, "site-1")
    assert taken["reason"].startswith("the sites' training losses rose or were not finite")
    assert not list(server.path.glob("round*.safetensors")), "nothing is left of what is judged"

    def silent(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 1 and "upload" in content and message.metadata.group_id == "1":
            raise ValueError("it has nothing to say")
        return content

    without, _ = local_federation(tmp_path / "silent", setup, silent)
    without.run()
    assert same_bits(state(server, 4), state(without, 4))


@pytest.mark.parametrize("number", [0, 2])
def test_a_round_after_which_the_model_predicts_no_numbers_is_taken_back(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A negative variance that the model does not know of: all that is sent is finite, and so are the losses."""
    monkeypatch.setattr(layers, "variances", lambda norms: ())
    setup = small_setup("fedavg", model="cnn", **{**UNBOUNDED, "rounds": number + 1})

    def negative(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 1 and "upload" in content and message.metadata.group_id == str(number):
            name = ".statistics['norm1']['variance']"
            content["upload"][name] = Array(content["upload"][name].numpy() - np.float32(20))
        return content

    server, _ = local_federation(tmp_path, setup, negative, test="")
    server.run()
    (taken,) = events(server, "taken back")
    assert (taken["round"], taken["without"]) == (number, "site-1")
    assert taken["reason"].startswith("the model's predictions were not finite; it is done again without")
    assert state(server, number + 1).statistics["norm1"]["variance"].min() > 0
    assert [len(e["sites"]) for e in events(server, "done")] == [4] * number + [3]


def test_what_sites_say_of_their_losses_is_averaged_without_what_is_absurd() -> None:
    honest = [0.31, 1.7, 0.02, 0.3, 4.4, 9.9]
    assert mean_loss(honest) == float(np.mean(honest)), "to the bit, as the simulator's"
    assert mean_loss([1e5, 3e5, 2e5]) == 2e5, "training that diverges"
    assert mean_loss([-0.5, 0.5]) == 0.0
    for absurd in (3.4e38, -3.4e38, 1e3):
        assert mean_loss([0.5, absurd, 1.5]) == 1.0
        assert mean_loss([absurd, 0.5]) == 0.5
    assert mean_loss([]) is None


def test_what_sites_say_of_their_tests_is_pooled_and_none_of_them_sets_it() -> None:
    def site(right: float, total: float) -> dict[str, float]:
        return {"correct_seen": right, "total_seen": total}

    honest = [site(31, 40), site(7, 10), site(55, 99), site(0, 0)]
    assert pooled(honest) == 100 * (31 + 7 + 55) / (40 + 10 + 99), "to the bit, as the simulator's"
    assert pooled([site(0, 0), site(0, 0)]) is None
    assert pooled([site(300, 400), site(20, 40)]) == 100 * 320 / 440, "ten times as many are believed"
    for claim in (1e3, 1e6):
        assert pooled([*honest, site(claim, claim)]) == pytest.approx(100 * (93 + 400) / (149 + 400)), "40 is the usual"


def test_what_one_site_says_of_its_tests_does_not_set_the_score(tmp_path: Path) -> None:
    def lying(site: int, message: Message, content: RecordDict) -> RecordDict:
        if message.metadata.message_type == "evaluate":
            right, total = (0, 1e6) if site == 1 else (10, 10)
            score = {"correct": right, "total": total, "correct_seen": right, "total_seen": total, "matching": 50.0}
            content["metrics"] = MetricRecord(score)
        return content

    server, _ = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=1), lying, test="")
    server.run()
    assert server.records[-1]["accuracy_seen_labels"] == pytest.approx(100 * 20 / 120)


@pytest.mark.parametrize("said", [1e6, -3.4e38])
def test_what_one_site_says_of_its_loss_moves_nothing(said: float, tmp_path: Path) -> None:
    def lying(site: int, message: Message, content: RecordDict) -> RecordDict:
        content["metrics"]["loss"] = said if site == 1 else 0.5
        return content

    server, _ = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=1), lying)
    server.run()
    assert server.run_state.loss == 0.5
    assert server.records[-1]["train_loss"] == 0.5
    (done,) = events(server, "done")
    assert done["loss"] == 0.5


def test_with_differential_privacy_no_uploads_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guarantee is for what is sent; who reads the server's disk later is not to find it there."""
    monkeypatch.setattr(Unjudged, "forget", lambda *_: None)
    private = {"dp_clip": 0.5, "dp_noise": 4.0}
    server, _ = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=1, **private))
    server.run()
    assert not list(server.path.glob("round*.safetensors"))


def test_the_corrected_model_is_judged_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the accuracy of the broken one, which nothing can fall from, would hide what the next round does."""
    monkeypatch.setattr(Unjudged, "forget", lambda *_: None)
    server, _ = local_federation(tmp_path, small_setup("fedavg", **UNBOUNDED))
    server.run()
    _, uploads = server._unjudged.load(3)
    server._judgement = Judgement(finite=True, accuracy=10.0)
    with server.run_folder:
        corrected = server._last_round_taken_back(4)
    suspect = outliers(uploads)[0]
    uploads[suspect] = jax.tree.map(lambda a: np.float32(-30) * a, uploads[suspect])
    server._aggregated(4, corrected, uploads)
    assert [e["round"] for e in events(server, "taken back")] == [3, 4]


@pytest.mark.slow
def test_the_sites_losses_judge_in_the_next_round_also_after_a_kill(tmp_path: Path) -> None:
    """The server has no test samples. It is killed while the next round is asked; the result is the same."""
    setup = small_setup("fedavg", **UNBOUNDED)
    results = []
    for name in ("whole", "killed"):
        tamper = shot("1", 30.0)

        def killing(site: int, message: Message, content: RecordDict, tamper: Tamper = tamper) -> RecordDict | None:
            if message.metadata.group_id == "2" and site == 3:
                raise KeyboardInterrupt
            return tamper(site, message, content)

        server, grid = local_federation(tmp_path / name, setup, killing if name == "killed" else tamper, test="")
        if name == "killed":
            with pytest.raises(KeyboardInterrupt):
                server.run()
            grid.tamper = tamper
            server = Server(
                tmp_path / name / "fedgen-federation", tmp_path / name / "server", "run", grid, server.journal
            )
        server.run()
        (taken,) = events(server, "taken back")
        assert (taken["round"], taken["without"]) == (1, "site-1")
        assert not list(server.path.glob("round*.safetensors")), "nothing is left of what is judged"
        assert len(events(server, "score")) > len(server.records), "the score of the broken model was taken back"
        kept = [json.loads(line)["round"] for line in (server.path / "metrics.jsonl").read_text().splitlines()]
        assert kept == [1, 3, 4]
        assert not events(server, "refused")
        results.append(state(server, 4))
    assert same_bits(*results)


@pytest.mark.slow
def test_with_take_back_off_the_model_stays_broken(tmp_path: Path) -> None:
    setup = small_setup("fedavg", **{**UNBOUNDED, "rounds": 2})
    server, _ = local_federation(tmp_path, setup, shot("1", 30.0), take_back=False)
    (row,) = server.run()["results"]
    assert row["accuracy"] < 50
    assert not events(server, "taken back")


@pytest.mark.slow
def test_where_it_was_no_single_update_a_round_is_taken_back_once(tmp_path: Path) -> None:
    """Two of five break the model together: the round is repeated without one of them, and the run goes on."""
    setup = small_setup("fedavg", **{**UNBOUNDED, "users": 5, "active": 5, "rounds": 3})

    def two(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site in (1, 2) and "upload" in content and message.metadata.group_id == "1":
            for name, array in content["upload"].items():
                content["upload"][name] = Array(-np.float32(60) * array.numpy())
        return content

    server, _ = local_federation(tmp_path, setup, two, test="")
    server.run()
    (taken,) = events(server, "taken back")
    assert taken["without"] in ("site-1", "site-2")
    assert [e["round"] for e in events(server, "done")] == [0, 1, 2]


def test_of_two_updates_nobody_knows_which_is_the_outlier(tmp_path: Path) -> None:
    setup = small_setup("fedavg", **{**UNBOUNDED, "users": 2, "active": 2, "rounds": 2})
    server, _ = local_federation(tmp_path, setup, shot("1", 30.0), min_sites=1)
    server.run()
    assert not events(server, "taken back")
    assert [len(e["sites"]) for e in events(server, "done")] == [2, 2]
