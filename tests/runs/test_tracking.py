"""What goes to TensorBoard, MLflow and W&B, read back with their own readers, or by the form of their files."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
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
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", os.devnull)  # nobody is logged in to W&B


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


def _wandb(folder: Path) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Settings and history of each run in W&B's offline files, in the order in which they were begun."""
    from wandb.proto.wandb_internal_pb2 import Record

    runs = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns):
        settings, history = {}, []
        for content in _log_records(file.read_bytes()):
            record = Record()
            record.ParseFromString(content)
            if record.HasField("run"):
                settings = {item.key: json.loads(item.value_json) for item in record.run.config.update}
                settings |= {"id": record.run.run_id, "name": record.run.display_name}
            if record.HasField("history"):
                named = ((item.key or ".".join(item.nested_key), item.value_json) for item in record.history.item)
                history.append({key: json.loads(value) for key, value in named})
        runs.append((settings, history))
    return runs


def _log_records(content: bytes) -> Iterator[bytes]:
    """The records of a log in LevelDB's form: blocks of 32 KiB with parts of records, each after seven bytes."""
    position, whole = 7, b""  # after the file's own head
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = struct.unpack_from("<HB", content, position + 4)  # after a checksum
        if position + 7 + length > len(content):
            return  # it is still being written
        whole += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


def test_an_interrupted_run_is_kept_offline_by_wandb_and_goes_on_under_the_same_name(tmp_path: Path) -> None:
    """Without a network, nor an account: one file for each run and part; the ids say what belongs together."""
    record = {"algorithm": "fedavg", "accuracy_users": None}
    for rounds in ((1, 2), (2, 3)):  # a process was killed after round 2, and begins again there
        with tracker("wandb", tmp_path, _config()) as listener:
            for round in rounds:
                for seed in (0, 1):  # computed at once
                    listener.recorded({**record, "seed": seed, "round": round, "accuracy": 10.0 * round + seed})
        assert listener.failure == ""
    assert listener.place == f"wandb sync {tmp_path}/wandb/offline-run-*"
    found = _wandb(tmp_path)
    until = time.monotonic() + 600
    while not all(history for _, history in found) and time.monotonic() < until:  # W&B's own process writes them
        time.sleep(0.1)
        found = _wandb(tmp_path)
    assert len(found) == 4
    for seed in (0, 1):
        parts = [(settings, history) for settings, history in found if settings["seed"] == seed]
        assert len({settings["id"] for settings, _ in parts}) == 1
        assert parts[0][0]["name"] == f"fedavg, seed {seed}"
        assert parts[0][0]["alpha"] == 0.5
        points = [[(row["round"], row["accuracy"]) for row in history] for _, history in parts]
        assert sorted(points) == [[(1, 10.0 + seed), (2, 20.0 + seed)], [(2, 20.0 + seed), (3, 30.0 + seed)]]


def test_wandb_sends_only_where_somebody_is_logged_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline() -> bool:
        return "offline-run" in tracker("wandb", tmp_path, _config()).place

    assert offline()
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert not offline()
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # a server of one's own, with a key of its own
    assert offline()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert not offline()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert offline()


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
    """A process was killed after round 3 was reported; the next one begins again at round 2."""
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


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
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
    for name in ("tensorboard/fedavg-seed0/events.out.tfevents.1", "mlflow/0/meta.yaml", "wandb/run-1/1.wandb"):
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
    assert not (out / "wandb").exists()


def test_an_unknown_tracker_is_one_sentence_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgen", "run", "--out", str(tmp_path / "run"), "--track", "tensorbord"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "did you mean 'tensorboard'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
