"""What a sweep can be asked for, whose settings are whose, and what is refused in a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgen.config import read_toml, resolve, to_toml
from fedgen.errors import FedgenError
from fedgen.runs.options import options_for
from fedgen.sweeps.best import best_config
from fedgen.sweeps.request import Request, check_not_fixed, read_request
from fedgen.sweeps.search import rungs

BOTH = {"algorithms": ["fedavg", "fedgen"]}


def settings_of(request: Request) -> dict[str, list[dict[str, Any]]]:
    return {name: [trial.settings for trial in trials] for name, trials in request.all_trials().items()}


def test_a_setting_is_for_all_or_for_one() -> None:
    found = settings_of(Request.of(BOTH, ["lr=0.01,0.1", "fedgen.w=0.1,1.0"]))
    assert found["fedavg"] == [{"lr": 0.01}, {"lr": 0.1}]
    assert found["fedgen"] == [{"lr": lr, "fedgen.w": w} for lr in (0.01, 0.1) for w in (0.1, 1.0)]
    own = settings_of(Request.of(BOTH, ["lr=0.01,0.1", "fedgen.lr=0.3"]))
    assert own == {"fedavg": [{"lr": 0.01}, {"lr": 0.1}], "fedgen": [{"lr": 0.3}]}
    assert own == settings_of(Request.of(BOTH, ["fedgen.lr=0.3", "lr=0.01,0.1"])), "in whichever order"


def test_configurations_are_of_one_algorithm_and_held_out_samples() -> None:
    request = Request.of({**BOTH, "preset": "tuned", "fedgen.beta": 3.0, "rounds": 7}, ["lr=0.02,0.5"])
    trial = request.all_trials()["fedgen"][1]
    configs = trial.configs(request.run_seeds)
    assert [config.run_seeds for config in configs] == [(100,), (101,), (102,)]
    for config in configs:
        assert (config.algorithms, config.evaluate_on, config.rounds) == (("fedgen",), "validation", 7)
        assert config.lr == 0.5
        assert "lr" not in config.of("fedgen"), "the preset's own rate gives way"
        assert config.of("fedgen")["beta"] == 3.0
    finals = request.finals(trial)
    assert [config.run_seeds for config in finals] == [(seed,) for seed in range(10)]
    assert finals[0].evaluate_on == "test"
    assert finals[3] == trial.config.model_copy(update={"seed": 3, "evaluate_on": "test"})


def test_no_round_is_chosen_on_the_test_set() -> None:
    request = Request.of({**BOTH, "patience": 3, "keep_best": True}, ["lr=0.02,0.5"])
    trial = request.all_trials()["fedgen"][1]
    assert (trial.config.patience, trial.config.keep_best) == (3, True)
    assert not any(config.keeps_best for config in request.finals(trial))
    assert not best_config(request, {"fedgen": trial.settings}).keeps_best


def test_a_runs_configuration_is_a_base_for_sweeps(tmp_path: Path) -> None:
    """All of its settings are written out, also the algorithms' own: what is swept wins over them."""
    before = resolve({**BOTH, "preset": "tuned", "rounds": 7, "fedgen.beta": 3.0, "seeds": 5})
    (tmp_path / "config.toml").write_text(to_toml(before))
    request = Request.of({**read_toml(tmp_path / "config.toml"), "seeds": 2, "seed": 100}, ["lr=0.02,0.5"])
    assert request.run_seeds == (100, 101)
    trial = request.all_trials()["fedgen"][0]
    assert options_for(trial.config, "fedgen")[0]["lr"] == 0.02
    assert (trial.config.rounds, trial.config.of("fedgen")["beta"]) == (7, 3.0)
    request.write(tmp_path / "sweep")
    assert read_request(tmp_path / "sweep") == request


def test_trials_give_each_algorithm_as_many() -> None:
    request = Request.of(BOTH, ["lr=0.001..0.3:log", "fedgen.w=0.1,1"], trials=5)
    found = settings_of(request)
    assert request.method == "random"
    assert {name: len(some) for name, some in found.items()} == {"fedavg": 5, "fedgen": 5}
    assert [one["lr"] for one in found["fedavg"]] == [one["lr"] for one in found["fedgen"]]
    capped = settings_of(Request.of(BOTH, ["lr=0.01,0.1", "fedgen.w=0.1,1"], trials=2))
    assert {name: len(some) for name, some in capped.items()} == {"fedavg": 2, "fedgen": 2}


def test_a_range_of_whole_numbers_is_drawn_whole() -> None:
    over = ["local_steps=1..50", "fedgen.generator_steps=1..50", "fedgen.w=1..50", "model.hidden=2..9"]
    request = Request.of({"algorithms": ["fedgen"], "model": "mlp"}, over, trials=6)
    (found,) = settings_of(request).values()
    kinds = [{key: type(value) for key, value in one.items()} for one in found]
    assert kinds == [{"local_steps": int, "fedgen.generator_steps": int, "fedgen.w": float, "model.hidden": int}] * 6


@pytest.mark.parametrize(
    ("trials", "rounds", "eval_every", "steps"),
    [
        (27, 200, 5, [10, 25, 70, None]),  # 200 / 3 = 66.7, and so on, up to the next evaluation
        (9, 90, 5, [10, 30, None]),
        (8, 90, 5, [30, None]),
        (2, 90, 5, [None]),
        (27, 10, 5, [5, None]),  # no rung is shorter than one evaluation
        (9, 10, 10, [None]),
    ],
)
def test_the_rungs_of_halving(trials: int, rounds: int, eval_every: int, steps: list[int | None]) -> None:
    settings = {"algorithms": ["fedavg"], "rounds": rounds, "eval_every": eval_every}
    request = Request.of(settings, ["lr=0.001..0.3:log"], trials=trials, method="halving")
    assert rungs(request, request.all_trials()) == steps


@pytest.mark.parametrize(
    ("settings", "over", "more", "message"),
    [
        ({}, [], {}, "nothing is swept"),
        ({}, ["lr=0.1..0.2"], {"method": "grid"}, "a grid takes lists of values"),
        ({}, ["lr=0.1..0.2"], {}, "say how many configurations"),
        ({}, ["lr=0.1"], {"method": "random"}, "say how many configurations"),
        ({}, ["lr=0.1"], {"method": "grit"}, "unknown method 'grit'; did you mean 'grid'"),
        ({}, ["lrr=0.1"], {}, "unknown setting 'lrr'"),
        ({}, ["alpha=0.1,1"], {}, "alpha cannot be swept"),
        ({}, ["seeds=1,2"], {}, "seeds cannot be swept"),
        ({}, ["partition.min_samples=1,2"], {}, "partition.min_samples cannot be swept"),
        ({}, ["fedprox.mu=1,2"], {}, "fedprox is not among the algorithms here"),
        ({}, ["fedgen.ww=1,2"], {}, "unknown option of fedgen 'ww'"),
        ({}, ["lr=-1,2"], {}, "lr must be greater than 0, not -1"),
        ({}, ["lr=0.1", "lr=0.2"], {}, "--over lr is given twice"),
        ({}, ["rounds=5,10"], {"method": "halving"}, "rounds cannot be swept by halving"),
        ({"seed": 5}, ["lr=0.1"], {}, "the final seeds 0 to 9 must be others"),
        ({"partition_file": "p.json"}, ["lr=0.1"], {}, "leave partition_file out"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(
    settings: dict[str, Any], over: list[str], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedgenError, match=message):
        Request.of({**BOTH, **settings}, over, **more).all_trials()


def test_what_is_given_is_not_swept_as_well() -> None:
    for fixed in ({"lr": 0.1}, {"fedavg.lr": 0.1}):
        with pytest.raises(FedgenError, match="is given, and --over sweeps lr"):
            check_not_fixed(["lr=0.1,0.2"], fixed)
    check_not_fixed(["fedgen.w=0.1,0.2"], {"lr": 0.1, "fedgen.beta": 1})


def test_a_folder_keeps_what_was_asked_for(tmp_path: Path) -> None:
    request = Request.of({**BOTH, "fedgen.beta": 1.0, "rounds": 9}, ["lr=0.1,0.2"], final_seeds=4)
    folder = tmp_path / "sweep"
    request.write(folder)
    assert read_request(folder) == request
    Request.of({**BOTH, "fedgen.beta": 1.0, "rounds": 9}, ["lr=0.1,0.2"], final_seeds=5).write(folder)
    with pytest.raises(FedgenError, match=r"asked for with other settings \(over, fedgen.beta\)"):
        Request.of({**BOTH, "rounds": 9}, ["lr=0.1,0.3"], final_seeds=4).write(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    with pytest.raises(FedgenError, match="is not the folder of a sweep"):
        request.write(tmp_path / "other")
    with pytest.raises(FedgenError, match="holds no sweep to go on with"):
        read_request(tmp_path / "other")


def test_objects_from_python_are_told_apart_and_cannot_be_read_back(tmp_path: Path) -> None:
    request = Request.of({**BOTH, "dataset": "mine", "model": "own"}, ["lr=0.1,0.2"], own={"dataset", "model"})
    request = replace(request, data="1", network="2")
    request.write(tmp_path / "sweep")
    request.write(tmp_path / "sweep")
    for changed, what in (({"data": "3"}, "other data"), ({"network": "3"}, "another network")):
        with pytest.raises(FedgenError, match=f"made with {what}"):
            replace(request, **changed).write(tmp_path / "sweep")
    with pytest.raises(FedgenError, match="has its dataset from Python; go on with it there"):
        read_request(tmp_path / "sweep")
