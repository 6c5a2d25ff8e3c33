"""Early stopping: decided by a run's own records, whoever runs beside it, and the best models kept."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedgen
from fedgen.config import resolve
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.runs.stopping import best_of, out_of_patience, score_at
from fedgen.runs.watch import Watch
from fedgen.simulator import run as runner
from fedgen.simulator.run import Interrupted, run
from fedgen.simulator.setup import prepare
from helpers import SMALL, play, same_bits, small_data, small_setup
from use_runs import named_data, small_run

HELD_OUT = {"evaluate_on": "validation", "validation": 60}


def _records(*scores: float) -> list[dict[str, Any]]:
    return [{"round": 5 * n, "accuracy": s, "accuracy_seen_labels": 100 - s} for n, s in enumerate(scores, 1)]


def test_patience_counts_evaluations_without_a_better_one() -> None:
    records = _records(50, 60, 55, 60, 58)
    assert best_of(records, "accuracy") is records[1]  # the first of two equal ones
    assert [out_of_patience(records[:n], "accuracy", 2) for n in range(1, 6)] == [False, False, False, True, True]
    assert [out_of_patience(records[:n], "accuracy", 3) for n in range(1, 6)] == [False, False, False, False, True]
    assert not out_of_patience(records, "accuracy", 0)
    assert best_of(records, "seen") is records[0]  # by the score that the run is judged by
    assert score_at({"round": 1, "diverged_at": 1}, "accuracy") is None
    assert best_of([], "accuracy") is None


def test_the_test_set_must_not_choose() -> None:
    for given in ({"patience": 2}, {"keep_best": True}):
        with pytest.raises(FedgenError, match=f"{next(iter(given))} .*--evaluate-on validation"):
            resolve(given)
        resolve({**given, **HELD_OUT})


def test_a_run_without_progress_ends(tmp_path: Path) -> None:
    result = small_run(tmp_path / "run", "fedavg", rounds=9, lr=1e-9, patience=2, **HELD_OUT)
    (row,) = result["results"]
    assert [r["round"] for r in result.metrics] == [1, 2, 3]
    assert (row["stopped_at"], row["rounds"], row["best"]["round"]) == (3, 3, 1)
    assert row["best"]["score"] == result.metrics[0]["accuracy"]
    assert result.metrics[-1]["stopped"] == "patience"
    assert (result.model().round, result.model(best=True).round) == (3, 1)
    page = (tmp_path / "run/report.html").read_text()
    assert "stopped early, at round 3; its best evaluation was at round 1" in page
    again = small_run(tmp_path / "run", "fedavg", rounds=9, lr=1e-9, patience=2, resume=True, **HELD_OUT)
    assert again.metrics == result.metrics, "nothing is left to do"


@pytest.mark.slow
def test_the_best_evaluations_model_is_kept_beside_the_last(tmp_path: Path) -> None:
    settings = {"rounds": 4, "lr": 0.5, "share": "predictor", **HELD_OUT}
    result = small_run(tmp_path / "run", "fedavg", keep_best=True, **settings)
    best = max(result.metrics, key=lambda r: (r["accuracy_users"], -r["round"]))
    state = play(small_setup("fedavg", **settings), best["round"])
    for user in (0, 5):
        model = fedgen.load(tmp_path / "run").model(user=user, best=True)
        assert model.round == best["round"]
        own = jax.tree.map(lambda a, user=user: a[user], state.clients)
        assert same_bits(model.network.params.extractor, own.params.extractor)
    plain = small_run(None, "fedavg", **settings)
    assert plain.metrics == result.metrics, "keeping models changes no number"


def _stop(seed: int, at: int) -> Any:
    return lambda record: record["seed"] == seed and record["round"] == at


@pytest.mark.slow
def test_a_seed_that_stopped_does_not_depend_on_those_that_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All seeds in one program, as on a GPU."""
    monkeypatch.setattr(runner, "_batched", lambda: True)
    x = named_data().x_test
    settings: dict[str, Any] = {"seeds": 2, "rounds": 4, "lr": 0.1, "share": "predictor"}
    part = small_run(tmp_path / "part", "fedavg", callbacks=_stop(0, 2), **settings)
    whole = small_run(None, "fedavg", **settings)
    assert [(r["seed"], r["round"]) for r in part.metrics] == [(0, 1), (1, 1), (0, 2), (1, 2), (1, 3), (1, 4)]
    first, second = part["results"]
    assert (first["rounds"], second["rounds"]) == (2, 4)
    same = [r for r in whole.metrics if r["seed"] == 1 or r["round"] <= 2]
    assert [{k: v for k, v in r.items() if k != "stopped"} for r in part.metrics] == same
    np.testing.assert_array_equal(part.model(seed=1, user=2).logits(x), whole.model(seed=1, user=2).logits(x))
    until = small_run(None, "fedavg", callbacks=lambda record: record["round"] == 2, **settings)
    np.testing.assert_array_equal(part.model(seed=0, user=2).logits(x), until.model(seed=0, user=2).logits(x))
    assert [r["round"] for r in until.metrics] == [1, 1, 2, 2], "the program ends when all have stopped"


class _StopAt(Watch):
    def __init__(self, round: int) -> None:
        self.round = round
        self.reached = False

    def recorded(self, record: dict[str, Any]) -> None:
        self.reached |= record["round"] >= self.round

    def stop_requested(self) -> bool:
        return self.reached


@pytest.mark.slow
def test_an_interruption_changes_neither_the_stop_nor_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_batched", lambda: True)
    layer = {"algorithms": ["fedavg"], "seeds": 3, "rounds": 8, "lr": 0.6, "patience": 2, **HELD_OUT}
    config = resolve(SMALL, layer, own={"dataset"})
    whole = RunFolder.create(tmp_path / "whole", config)
    summary = run(prepare(config, small_data()), folder=whole)
    stops = [row.get("stopped_at") for row in summary["results"]]
    assert len(set(stops)) > 1, "the seeds do not end together, or the test shows nothing"
    folder = RunFolder.create(tmp_path / "cut", config)
    for round in (2, 4, 6):
        with pytest.raises(Interrupted):
            run(prepare(config, small_data()), folder=folder, watch=_StopAt(round))
        folder = RunFolder.open(tmp_path / "cut")
    run(prepare(config, small_data()), folder=folder)
    assert folder.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    names = sorted(file.name for file in whole.models.iterdir())
    assert len(names) == 6
    for name in names:
        assert (folder.models / name).read_bytes() == (whole.models / name).read_bytes(), name
    rows = [json.loads((place / "summary.json").read_text())["results"] for place in (whole.path, folder.path)]
    assert [[row["best"], row["accuracy"]] for row in rows[0]] == [[row["best"], row["accuracy"]] for row in rows[1]]
