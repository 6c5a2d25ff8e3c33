"""One process writes into a run's folder; another gets an error that names it, and may when that one has died."""

import json
import os
import socket
from pathlib import Path

import pytest

from command import call
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.runs.lock import NAME, lock
from helpers import small_config
from locked import held_by_another
from run_folders import run_folder


def test_a_second_process_is_told_who_writes_and_comes_after_its_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder(tmp_path / "run", stop=4)
    metrics = (folder / "metrics.jsonl").read_bytes()
    (folder / "checkpoint.1.tmp").write_text("which the other one writes")
    with held_by_another(folder) as process:
        for more in ((), ("--resume",), ("--force",)):
            assert call(monkeypatch, "run", "--out", folder, *more) == 2
            said = capsys.readouterr().err
            assert f"{folder} is in use: process {process.pid} on {socket.gethostname()}, since " in said
        assert (folder / "metrics.jsonl").read_bytes() == metrics
        assert (folder / "checkpoint.1.tmp").exists()
        process.kill()
        process.wait()
        with RunFolder.open(folder):
            assert json.loads((folder / NAME).read_text())["pid"] == os.getpid()
            assert not (folder / "checkpoint.1.tmp").exists()
        assert not (folder / NAME).exists()


def test_a_process_may_take_its_own_lock_again(tmp_path: Path) -> None:
    first, second = lock(tmp_path), lock(tmp_path / "." / "")
    assert first is second
    assert (tmp_path / NAME).exists()
    first.release()
    assert not (tmp_path / NAME).exists()
    with held_by_another(tmp_path), pytest.raises(FedgenError, match="in use"):
        lock(tmp_path)


def test_other_files_are_not_touched_and_the_advice_works(tmp_path: Path) -> None:
    config = small_config("fedavg")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    for force in (False, True):
        with pytest.raises(FedgenError, match="holds other files, and no run; give --out a folder that is new"):
            RunFolder.create(tmp_path / "mine", config, force=force)
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.toml.7.tmp").write_text("of one that was killed as it began")
    RunFolder.create(tmp_path / "empty", config).close()
    assert [file.name for file in (tmp_path / "empty").iterdir()] == ["config.toml"]


def test_seconds_and_the_device_are_apart_from_the_summary_and_read_with_it(tmp_path: Path) -> None:
    folder = RunFolder(run_folder(tmp_path / "run"))
    summary, timing = (json.loads(file.read_text()) for file in (folder.summary_file, folder.timing_file))
    assert "device" not in summary
    assert not [key for row in summary["results"] for key in row if "seconds" in key]
    assert timing["results"][3] == {"algorithm": "fedgen", "seed": 1, "seconds_compile": 1.0, "seconds_train": 3.5}
    whole = folder.summary()
    assert whole["device"] == timing["device"]
    assert whole["results"][3] == {**summary["results"][3], **timing["results"][3]}
    # Earlier versions had all of it in one file.
    folder.timing_file.unlink()
    folder.summary_file.write_text(json.dumps(whole))
    assert folder.summary() == whole
