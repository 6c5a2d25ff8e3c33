"""What goes to TensorBoard and MLflow, read back with their own readers."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedgen.cli.main import main
from fedgen.config import RunConfig
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.runs.tracking import Together, tracker
from fedgen.runs.watch import Watch
from fedgen.simulator.run import Interrupted, run
from fedgen.simulator.setup import prepare
from helpers import small_config, small_data


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def _config() -> RunConfig:
    return small_config("fedavg", seeds=2)


class _StopAt(Watch):
    """Asks for the end at a round of the last seed."""

    def __init__(self, round: int) -> None:
        self.round, self.reached = round, False

    def advanced(self, algorithm: str, seeds: Any, round: int) -> None:
        self.reached = round >= self.round and 1 in seeds

    def stop_requested(self) -> bool:
        return self.reached


def _expected(folder: RunFolder, seed: int, key: str) -> list[tuple[int, float]]:
    records = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    return [(r["round"], r[key]) for r in records if r["seed"] == seed]


def _tensorboard(folder: Path, seed: int, key: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / f"tensorboard/fedavg-seed{seed}"))
    reader.Reload()
    return [(event.step, event.value) for event in reader.Scalars(key)]


def _mlflow(folder: Path) -> tuple[Any, list[Any]]:
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("fedgen")
    return client, client.search_runs([experiment.experiment_id], order_by=["tags.seed ASC"])


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_an_interrupted_and_resumed_run_is_tracked_whole(tmp_path: Path, name: str) -> None:
    config = _config()
    folder = RunFolder.create(tmp_path / "run's", config)
    with tracker(name, folder.path, config) as listener:
        assert not (folder.path / name).exists()
        with pytest.raises(Interrupted):
            run(prepare(config, small_data()), folder=folder, watch=Together([listener, _StopAt(2)]))
    assert listener.failure == ""
    with tracker(name, folder.path, config) as listener:
        run(prepare(config, small_data()), folder=RunFolder.open(folder.path), watch=listener)
    assert listener.failure == ""

    for key in ("accuracy", "accuracy_seen_labels", "train_loss"):
        for seed in (0, 1):
            expected = _expected(folder, seed, key)
            assert [round for round, _ in expected] == [1, 2, 3]
            if name == "tensorboard":
                assert _tensorboard(folder.path, seed, key) == [(r, pytest.approx(v, rel=1e-6)) for r, v in expected]
                continue
            client, runs = _mlflow(folder.path)
            assert [r.data.tags["seed"] for r in runs] == ["0", "1"], "a resumed run goes on in its own"
            history = client.get_metric_history(runs[seed].info.run_id, key)
            assert sorted({(m.step, m.value) for m in history}) == expected
            assert runs[seed].info.status == "FINISHED"
            assert runs[seed].data.params["alpha"] == "0.5"


def test_what_was_written_after_the_checkpoint_no_longer_counts(tmp_path: Path) -> None:
    """A process was killed after round 3 was told; the next one begins again at round 2."""
    record = {"algorithm": "fedavg", "seed": 0, "accuracy_users": None}
    with tracker("tensorboard", tmp_path, _config()) as first:
        for round in (1, 2, 3):
            first.recorded({**record, "round": round, "accuracy": 10.0 * round})
    with tracker("tensorboard", tmp_path, _config()) as second:
        second.recorded({**record, "round": 2, "accuracy": 25.0})
    assert _tensorboard(tmp_path, 0, "accuracy") == [(1, 10.0), (2, 25.0)]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_tracker_that_fails_does_not_cost_the_run(tmp_path: Path, name: str) -> None:
    config = _config()
    folder = RunFolder.create(tmp_path / "run", config)
    (folder.path / name).write_text("a file where a folder must go")
    with tracker(name, folder.path, config) as listener:
        summary = run(prepare(config, small_data()), folder=folder, watch=listener)
    assert len(summary["results"]) == 2
    assert listener.failure


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_one_sentence(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None if wanted == name else found(wanted))
    with pytest.raises(FedgenError, match=r"pip install '.\[tracking\]' in FedGen's folder"):
        tracker(name, tmp_path, _config())


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(FedgenError, match="cannot be used"):
        tracker("mlflow", tmp_path, _config())


@pytest.mark.slow
def test_the_command_tracks_and_force_begins_anew(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = "--algorithm fedavg --model mlp --users 4 --active 2 --rounds 2 --local-steps 1 --batch-size 4"
    tiny = [*sizes.split(), "--eval-every", "1", "--set", "model.hidden=4", "--set", "model.latent=3"]
    RunFolder.create(out, _config())
    for name in ("tensorboard/fedavg-seed0/events.out.tfevents.1", "mlflow/0/meta.yaml"):
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text("of the run that is replaced")
    command = [sys.executable, "-m", "fedgen", "run", *tiny, "--out", str(out), "--force"]
    command += ["--track", "tensorboard", "--track", "mlflow"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW")}
    done = subprocess.run(command, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tensorboard --logdir" in done.stdout
    assert "tracked" not in done.stderr
    assert len(list((out / "tensorboard/fedavg-seed0").iterdir())) == 1
    assert _tensorboard(out, 0, "accuracy") == [
        (round, pytest.approx(value, rel=1e-6)) for round, value in _expected(RunFolder(out), 0, "accuracy")
    ]
    assert len(_mlflow(out)[1]) == 1


def test_an_unknown_tracker_is_one_sentence_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgen", "run", "--out", str(tmp_path / "run"), "--track", "tensorbord"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
