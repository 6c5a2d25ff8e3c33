"""Real small sweeps: what they choose, what they spend, and that nothing depends on when they were interrupted."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedgen
from fedgen.config import read_toml, resolve
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.runs.options import options_for
from fedgen.runs.scores import score_of
from fedgen.simulator import run as simulation
from fedgen.simulator.run import Interrupted, run
from fedgen.simulator.setup import Setup, prepare
from fedgen.sweeps import run as sweeps_run
from fedgen.sweeps.identity import checksum, shapes
from fedgen.sweeps.outcome import Outcome, SweepWatch
from fedgen.sweeps.request import read_request
from helpers import SMALL, blobs, small_data

# Enough steps that a rate of 0.2 learns most within four rounds, and one of 0.001 nothing.
LEARNS = {"validation": 100, "rounds": 4, "local_steps": 10, "batch_size": 16, "alpha": 10.0}
BLOBS = {key: value for key, value in SMALL.items() if key != "dataset"} | LEARNS


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing them takes longer than the sweep."""
    monkeypatch.setattr(sweeps_run, "save_charts", lambda *_: None)


def swept(algorithms: Any = "fedavg", **more: Any) -> Any:
    settings = {key: value for key, value in BLOBS.items() if "." not in key} | {"seeds": 2, "final_seeds": 0} | more
    options = {key: value for key, value in BLOBS.items() if "." in key}
    return fedgen.sweep(algorithms, data=small_data(), options=options, **settings)


def by_hand(algorithm: str, seed: int, **settings: Any) -> float:
    """The score of one run on held-out samples, without any of the sweep's code."""
    layer = {**BLOBS, "algorithms": [algorithm], "dataset": "blobs", "seed": seed, "evaluate_on": "validation"}
    row = run(prepare(resolve(layer, settings, own={"dataset"}), small_data()))["results"][0]
    value = score_of(row, "accuracy")
    assert value is not None
    return value


class StopAfter(SweepWatch):
    """Asks to stop after so many reports of progress."""

    def __init__(self, reports: int) -> None:
        self.left = reports
        self.scored_trials: list[str] = []

    def advanced(self, unit: Any, share: float) -> None:
        self.left -= 1

    def scored(self, outcome: Outcome) -> None:
        self.scored_trials.append(outcome.trial.label)

    def stop_requested(self) -> bool:
        return self.left <= 0


def test_a_grid_is_scored_ranked_and_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    program = Setup.program
    monkeypatch.setattr(Setup, "program", lambda *a, **k: (compiled.append(a[1]), program(*a, **k))[1])
    out = tmp_path / "sweep"
    over = {"lr": [0.001, 0.2], "fedprox.mu": [0.1, 10.0]}
    found = swept(["fedavg", "fedprox"], over=over, final_seeds=2, out=out)
    assert compiled == ["fedavg", "fedprox"] * 2, "once for the search, once for the test set"
    fedavg, fedprox = found.results["algorithms"]
    assert (fedavg["tried"], fedprox["tried"]) == (2, 4)
    assert any("Unequal budgets: 2 of fedavg, 4 of fedprox" in note for note in found.results["notes"])
    first, second = fedavg["configurations"]
    assert (first["rank"], second["rank"]) == (1, 2)
    assert first["mean"] > second["mean"] + 5, "a rate at which nothing is learned is the worse"
    scores = {str(seed): pytest.approx(by_hand("fedavg", seed, lr=0.2), abs=1e-4) for seed in (100, 101)}
    assert first["scores"] == scores
    assert first["mean"] == pytest.approx(np.mean(list(first["scores"].values())), abs=1e-4)
    assert [entry["mean"] for entry in fedprox["configurations"]] == sorted(
        (entry["mean"] for entry in fedprox["configurations"]), reverse=True
    )
    assert found.best["fedavg"] == {"lr": 0.2}
    assert any("fedavg: the best lr, 0.2, is the largest that was tried" in note for note in found.results["notes"])

    # the final runs are those of `fedgen run --config best.toml`
    config = resolve(read_toml(out / "best.toml"), own={"dataset"})
    assert (config.algorithms, config.run_seeds, config.evaluate_on) == (("fedavg", "fedprox"), (0, 1), "test")
    assert config.of("fedavg")["lr"] == 0.2
    summary = run(prepare(config, small_data()))
    final = {row["algorithm"]: row for row in found.final}
    for row in summary["table"]:
        assert final[row["algorithm"]]["mean"] == pytest.approx(row["mean"], abs=1e-3)
    assert final["fedprox"]["diff_to_fedavg"] is not None
    for name in ("report.html", "figures/response.lr.png", "figures/response.mu.svg", "figures/final.png"):
        assert (out / name).stat().st_size > 0
    assert not (out / "unfinished").exists()
    assert len(found.table) == 6
    assert "| fedprox | 4 | lr 0.2, mu" in repr(found)


@pytest.mark.usefixtures("no_figures")
def test_poor_configurations_stop_early_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[int] = []
    advance = simulation.Program.advance
    monkeypatch.setattr(
        simulation.Program, "advance", lambda *a: (rounds.append(int(a[4]) - int(a[3])), advance(*a))[1]
    )
    rates = [1e-6, 1e-5, 1e-4, 1e-3, 0.2, 0.1, 0.05, 1e30, 2e-3]
    found = swept(over={"lr": rates}, method="halving", rounds=9, out=tmp_path / "sweep")
    assert found.results["rungs"] == [1, 3, 9]
    (one,) = found.results["algorithms"]
    reached = [entry["rounds"] for entry in one["configurations"]]
    assert sorted(reached) == [1] * 6 + [3] * 2 + [9]
    # two seeds: nine to round 1, three from there to round 3, one from there to round 9 (which the diverged ones,
    # stopped at round 1, do not change)
    assert sum(rounds) == 2 * (9 * 1 + 3 * 2 + 1 * 6)
    assert one["rounds"] == 2 * (6 * 1 + 2 * 3 + 9)
    best, last = one["configurations"][0], one["configurations"][-1]
    assert best["settings"]["lr"] in (0.05, 0.1, 0.2)
    assert best["scores"] == {
        str(seed): pytest.approx(by_hand("fedavg", seed, rounds=9, **best["settings"]), abs=1e-4) for seed in (100, 101)
    }, "going on from a rung is as running without a break"
    assert last["settings"]["lr"] == 1e30
    assert last["mean"] is None
    assert set(last["diverged_at"]) == {"100", "101"}
    assert [rounds for rounds, _ in best["rungs"]] == [1, 3, 9]
    assert not (tmp_path / "sweep/unfinished").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_an_interrupted_sweep_ends_with_the_same_bytes(tmp_path: Path) -> None:
    asked = {"over": {"lr": [0.001, 0.05, 0.2]}, "method": "halving", "rounds": 6, "final_seeds": 1}
    swept(out=tmp_path / "whole", **asked)
    watch, stops = StopAfter(1), 0
    while True:
        try:
            swept(out=tmp_path / "cut", watch=watch, **asked)
            break
        except Interrupted:
            watch, stops = StopAfter(3 + stops), stops + 1
    assert stops >= 3
    for name in ("sweep.json", "best.toml", "sweep.toml", "report.html"):
        ours, theirs = ((tmp_path / place / name).read_text() for place in ("whole", "cut"))
        assert ours == theirs.replace(str(tmp_path / "cut"), str(tmp_path / "whole")), name


@pytest.mark.usefixtures("no_figures")
def test_what_diverged_is_ranked_last_and_equal_scores_share_a_rank() -> None:
    """A weight decay of 1e-30 does not change a bit; with a rate of 1e30 every seed diverges."""
    found = swept(over={"lr": [1e30, 0.2], "weight_decay": [1e-29, 1e-30]}, seeds=1)
    (one,) = found.results["algorithms"]
    assert [entry["settings"]["lr"] for entry in one["configurations"]] == [0.2, 0.2, 1e30, 1e30]
    assert [entry["rank"] for entry in one["configurations"]] == [1, 1, 3, 3]
    assert found.best == {"fedavg": {"lr": 0.2, "weight_decay": 1e-29}}, "the first that was asked for"
    notes = " ".join(found.results["notes"])
    assert "a seed diverged in 2 of 4 configurations" in notes
    assert "equally good are lr 0.2, weight_decay 1e-29; lr 0.2, weight_decay 1e-30" in notes


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_plug_in_is_swept_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "softened.py").write_text(
        "from fedgen.algorithms.fedavg import fedavg\n"
        "from fedgen.algorithms.wrap import wrap\n"
        "def softened(task, federation, *, factor: float = 1.0):\n"
        "    def local_loss(loss, params, batch, local, step):\n"
        "        return loss._replace(value=factor * loss.value)\n"
        "    return wrap(fedavg(task, federation), local_loss=local_loss)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "softened:softened"
    found = swept([name, "fedavg"], over={"lr": [0.2], f"{name}.factor": [0.001, 1.0]}, seeds=1, out=tmp_path / "sweep")
    assert found.best[name] == {"lr": 0.2, f"{name}.factor": 1.0}
    plugged, plain = found.results["algorithms"]
    # a factor of 1 is FedAvg itself
    assert plugged["configurations"][0]["scores"] == plain["configurations"][0]["scores"]
    config = resolve(read_toml(tmp_path / "sweep/best.toml"), own={"dataset"})
    assert options_for(config, name)[0]["factor"] == 1.0
    del sys.modules["softened"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_file_of_ones_own_is_swept_and_tested_whole_and_told_from_another(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.npz", tmp_path / "sweep"

    def saved(seed: int) -> None:
        x, y = blobs(210, seed=seed)
        np.savez(file, x_train=x, y_train=y, x_test=x[:60], y_test=y[:60])

    def again() -> Any:
        small = {key: SMALL[key] for key in ("users", "active", "rounds", "local_steps", "batch_size", "eval_every")}
        options = {key: value for key, value in SMALL.items() if key.startswith(("model.", "partition."))}
        more = {"model": "mlp", "seeds": 1, "final_seeds": 2, "patience": 1, "options": options}
        return fedgen.sweep("fedavg", data=file, over={"lr": [0.2, 0.05]}, out=out, **small, **more)

    saved(0)
    found = again()
    config = resolve(read_toml(out / "best.toml"))
    assert (config.train_fraction, config.patience) == (1, 0)
    (row,) = run(prepare(config))["table"]
    assert found.final[0]["mean"] == pytest.approx(row["mean"], abs=1e-3), "as `fedgen run --config best.toml` has it"
    before = (out / "sweep.json").read_bytes()
    again()
    assert (out / "sweep.json").read_bytes() == before
    assert read_request(out).settings["dataset"] == str(file), "the command can go on with it"
    saved(1)
    with pytest.raises(FedgenError, match=r"holds a sweep that was made with other data \(by its checksum\)"):
        again()


def test_checksums_tell_data_and_networks_apart() -> None:
    data = small_data()
    other = data.x_test.copy()
    other[0, 0, 0, 0] ^= 1
    users = np.arange(len(data.y_train)) % 5
    found = [checksum(one) for one in (data, replace(data, x_test=other), replace(data, user_train=users))]
    assert len(set(found)) == 3
    assert checksum(small_data()) == found[0]
    networks = [MODELS["mlp"]((8, 8, 1), 4, hidden=hidden) for hidden in (12, 12, 13)]
    first, same, wider = (shapes(network, data) for network in networks)
    assert first == same != wider


def test_data_of_a_wrong_kind_is_refused_as_by_simulate() -> None:
    with pytest.raises(FedgenError, match=r"data is a ndarray; give a name, a path, or what fedgen\.from_arrays"):
        fedgen.sweep("fedavg", data=blobs(20)[0], over={"lr": [0.1]})
