"""Runs are reproducible to the bit, however they are cut up, and survive what happens to them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from fedgen.config import RunConfig, read_toml, resolve
from fedgen.errors import FedgenError
from fedgen.runs.checkpoint import FORMAT, _checksum, _read, load_tree, save_tree
from fedgen.runs.folder import RunFolder
from fedgen.runs.watch import Watch
from fedgen.simulator.run import Interrupted, run
from fedgen.simulator.setup import prepare
from helpers import KINDS, SMALL, play, same_bits, small_data, small_setup


def _config(*algorithms: str, **settings: Any) -> RunConfig:
    return resolve(SMALL, {"algorithms": algorithms, **settings}, own={"dataset"})


def _records(config: RunConfig, path: Path, **more: Any) -> list[dict]:
    folder = RunFolder.create(path, config)
    run(prepare(config, small_data()), folder=folder, **more)
    return [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]


def test_the_same_run_twice_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _records(_config("fedgen", "fedavg", seeds=2), tmp_path / name)
    assert (tmp_path / "a/metrics.jsonl").read_bytes() == (tmp_path / "b/metrics.jsonl").read_bytes()
    assert (tmp_path / "a/config.toml").read_bytes() == (tmp_path / "b/config.toml").read_bytes()


@pytest.mark.slow
def test_company_evaluation_and_seeds_change_no_result(tmp_path: Path) -> None:
    alone = _records(_config("fedgen", rounds=6, seed=1), tmp_path / "alone")
    together = _records(
        _config("fedavg", "feddistill+", "fedgen", rounds=6, seed=0, seeds=3, eval_every=3), tmp_path / "together"
    )
    same = [r for r in together if r["algorithm"] == "fedgen" and r["seed"] == 1]
    assert [r["round"] for r in same] == [3, 6]
    assert same == [r for r in alone if r["round"] in (3, 6)]


def test_seeds_differ_in_partition_and_in_result(tmp_path: Path) -> None:
    config = _config("fedavg", seeds=2)
    setup = prepare(config, small_data())
    assert not np.array_equal(setup.divisions[0].index, setup.divisions[1].index)
    first, second = (r for r in _records(config, tmp_path / "a") if r["round"] == 3)
    assert first["train_loss"] != second["train_loss"]


@pytest.mark.slow
def test_the_resolved_configuration_repeats_the_run(tmp_path: Path) -> None:
    config = _config("fedgen", preset="reference")
    first = _records(config, tmp_path / "a")
    again = resolve(read_toml(tmp_path / "a/config.toml"), own={"dataset"})
    assert again == config
    assert _records(again, tmp_path / "b") == first


class _StopAt(Watch):
    def __init__(self, calls: int) -> None:
        self.calls = calls

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        self.calls -= 1

    def stop_requested(self) -> bool:
        return self.calls <= 0


def _assert_goes_on(config: RunConfig, path: Path, calls: Sequence[int]) -> None:
    """Interrupted after each of these numbers of calls and continued, a run ends as one that was left alone."""
    whole = _records(config, path / "whole")
    folder = RunFolder.create(path / "cut", config)
    for number in calls:
        with pytest.raises(Interrupted):
            run(prepare(config, small_data()), folder=folder, watch=_StopAt(number))
        folder = RunFolder.open(path / "cut")
    summary = run(prepare(config, small_data()), folder=folder)
    assert folder.metrics_file.read_text() == (path / "whole/metrics.jsonl").read_text()
    for model in (path / "whole/models").iterdir():
        assert (path / "cut/models" / model.name).read_bytes() == model.read_bytes()
    assert [r["algorithm"] for r in summary["results"]] == [r["algorithm"] for r in whole[:: config.rounds]]


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithms": ["fedavg"], "seeds": 2},
        pytest.param({"algorithms": ["fedavg", "fedgen"]}, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(settings: dict[str, Any], tmp_path: Path) -> None:
    config = resolve(SMALL, settings, own={"dataset"})
    _assert_goes_on(config, tmp_path, (2, 1, 2))  # within the first job, at its end, within the second


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [name for name in KINDS if name not in ("fedavg", "fedgen")])
def test_what_an_algorithm_keeps_is_in_its_checkpoint(algorithm: str, tmp_path: Path) -> None:
    _assert_goes_on(_config(algorithm), tmp_path, (2,))


def test_records_after_the_checkpoint_are_written_again_and_not_twice(tmp_path: Path) -> None:
    config = _config("fedavg", rounds=4)
    whole = _records(config, tmp_path / "whole")
    folder = RunFolder.create(tmp_path / "cut", config)
    with pytest.raises(Interrupted):
        run(prepare(config, small_data()), folder=folder, watch=_StopAt(2))
    with folder.metrics_file.open("a") as file:  # written, but killed before the checkpoint; the last line is torn
        file.write(json.dumps(whole[2]) + "\n" + '{"algorithm": "fed')
    run(prepare(config, small_data()), folder=RunFolder.open(tmp_path / "cut"))
    assert folder.metrics_file.read_text() == (tmp_path / "whole/metrics.jsonl").read_text()


def test_a_diverging_algorithm_stops_alone(tmp_path: Path) -> None:
    config = _config("fedavg", "fedprox", "fedgen", **{"fedavg.lr": 1e30, "rounds": 4})
    folder = RunFolder.create(tmp_path / "run", config)
    summary = run(prepare(config, small_data()), folder=folder)
    rows = {r["algorithm"]: r for r in summary["results"]}
    assert rows["fedavg"]["diverged_at"] == 1
    assert rows["fedavg"]["accuracy"] is None
    assert rows["fedprox"]["diverged_at"] is None
    assert rows["fedgen"]["accuracy"] > 0
    assert [t["mean"] is None for t in summary["table"]] == [True, False, False]
    first = json.loads(folder.metrics_file.read_text().splitlines()[0])
    assert first == {"algorithm": "fedavg", "seed": 0, "round": 1, "diverged_at": 1}


def test_divergence_between_two_evaluations_is_said(tmp_path: Path) -> None:
    config = _config("fedavg", **{"fedavg.lr": 1e30, "rounds": 40, "eval_every": 30})
    folder = RunFolder.create(tmp_path / "run", config)
    summary = run(prepare(config, small_data()), folder=folder)
    assert summary["results"][0]["diverged_at"] == 1
    assert [json.loads(line)["diverged_at"] for line in folder.metrics_file.read_text().splitlines()] == [1]
    assert not (tmp_path / "run/models").exists()


def test_the_summary_has_what_it_promises(tmp_path: Path) -> None:
    config = _config("fedgen", "fedavg", "feddistill", seeds=2)
    summary = run(prepare(config, small_data()), folder=RunFolder.create(tmp_path / "run", config))
    assert RunFolder(tmp_path / "run").summary() == json.loads(json.dumps(summary))
    row = summary["results"][0]
    for key in (
        "algorithm", "seed", "accuracy", "accuracy_best5", "accuracy_seen_labels", "accuracy_users", "rounds",
        "seconds_compile", "seconds_train", "bytes_up", "bytes_down", "curve",
    ):  # fmt: skip
        assert key in row, key
    distill = next(r for r in summary["results"] if r["algorithm"] == "feddistill")
    assert distill["accuracy"] is None
    assert distill["accuracy_users"] > 0
    assert distill["bytes_up"] == 3 * (4 * 4 * 4 + 4)  # three users: a 4x4 matrix of floats and four booleans
    assert (tmp_path / "run/models/fedgen-seed1.safetensors").exists()


def test_learning_happens(tmp_path: Path) -> None:
    config = _config("fedavg", "fedgen", rounds=40, eval_every=40, local_steps=10, **{"lr": 0.1})
    summary = run(prepare(config, small_data()))
    assert all(row["accuracy"] > 90 for row in summary["results"])  # chance is 25


def test_evaluation_on_validation_never_touches_the_test_set() -> None:
    config = _config("fedavg", evaluate_on="validation", validation=50)
    data = small_data()
    setup = prepare(config, data)
    division = setup.divisions[0]
    assert len(setup.score_rows[0]) == 50
    assert setup.data.x_score is setup.data.x
    users, proxy, held_out = set(division.index), set(division.proxy), set(division.validation)
    assert not users & held_out
    assert not proxy & held_out
    # and the users' data are those of a run on the test set
    assert np.array_equal(division.index, prepare(_config("fedavg"), data).divisions[0].index)


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    for name, settings in (("a", {}), ("b", {"model.latent": 5})):
        config = _config("fedavg", **settings)
        folder = RunFolder.create(tmp_path / name, config)
        with pytest.raises(Interrupted):
            run(prepare(config, small_data()), folder=folder, watch=_StopAt(1))
    foreign = (tmp_path / "b/checkpoint.safetensors").read_bytes()
    (tmp_path / "a/checkpoint.safetensors").write_bytes(foreign)
    with pytest.raises(FedgenError, match="another run"):
        run(prepare(_config("fedavg"), small_data()), folder=RunFolder.open(tmp_path / "a"))
    save_tree(tmp_path / "a/checkpoint.safetensors", {"a": np.zeros(1)}, {})  # no checkpoint of a run at all
    with pytest.raises(FedgenError, match="another run"):
        run(prepare(_config("fedavg"), small_data()), folder=RunFolder.open(tmp_path / "a"))


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    """The text of the configuration in its checkpoint lacks settings that were added since; there was no max_update."""
    config = _config("fedavg", max_update=0.0)
    folder, whole = RunFolder.create(tmp_path / "run", config), RunFolder.create(tmp_path / "whole", config)
    run(prepare(config, small_data()), folder=whole)
    with pytest.raises(Interrupted):
        run(prepare(config, small_data()), folder=folder, watch=_StopAt(1))
    arrays, about = _read(folder.checkpoint_file)
    lines = about["config"].splitlines()
    older = [line for line in lines if line.split(" = ")[0] not in ("optimizer", "clip", "dp_noise", "max_update")]
    assert len(older) == len(lines) - 4
    header = {"format": FORMAT, "about": {**about, "config": "\n".join(older)}, "checksum": _checksum(arrays)}
    folder.checkpoint_file.write_bytes(save(arrays, {"fedgen": json.dumps(header)}))
    run(prepare(config, small_data()), folder=RunFolder.open(tmp_path / "run"))
    assert folder.metrics_file.read_bytes() == whole.metrics_file.read_bytes()


def test_metrics_that_are_damaged_or_too_short_are_noticed(tmp_path: Path) -> None:
    config = _config("fedavg")
    folder = RunFolder.create(tmp_path / "run", config)
    with pytest.raises(Interrupted):
        run(prepare(config, small_data()), folder=folder, watch=_StopAt(2))
    good = folder.metrics_file.read_bytes()
    for damaged, message in ((b"\xff" * len(good), "cannot be read"), (good[:10], "shorter")):
        folder.metrics_file.write_bytes(damaged)
        with pytest.raises(FedgenError, match=message):
            run(prepare(config, small_data()), folder=RunFolder.open(tmp_path / "run"))


def test_a_folder_that_was_only_begun_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.toml.123.tmp").write_text("half")  # killed before the configuration was there
    folder = RunFolder.create(path, _config("fedavg"))
    folder.close()
    assert [file.name for file in path.iterdir()] == ["config.toml"]
    (path / "checkpoint.safetensors.9.tmp").write_text("half")
    RunFolder.open(path).close()
    assert [file.name for file in path.iterdir()] == ["config.toml"]
    assert folder.config_file.exists()


def test_trained_models_can_be_read_back(tmp_path: Path) -> None:
    config = _config("fedavg")
    run(prepare(config, small_data()), folder=RunFolder.create(tmp_path / "run", config))
    state = play(small_setup("fedavg"), 3)
    assert same_bits(load_tree(tmp_path / "run/models/fedavg-seed0.safetensors", state.server), state.server)
