"""`fedgen sweep` as a user meets it: on MNIST, tiny, interrupted and continued; its choice is run."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from command import call
from fedgen.cli import sweep as cli_sweep
from fedgen.config import read_toml, resolve
from fedgen.runs.scores import score_of

TINY = [
    "--model", "mlp", "--users", "4", "--active", "2", "--rounds", "4", "--local-steps", "2", "--batch-size", "4",
    "--eval-every", "2", "--validation", "100", "--set", "model.hidden=4", "--set", "model.latent=3",
]  # fmt: skip
ASKED = ["--algorithm", "fedavg", "--algorithm", "fedprox", "--over", "lr=0.001,0.1", "--seeds", "2", *TINY]


@pytest.mark.slow
def test_a_sweep_from_the_command_to_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call(monkeypatch, "sweep", *ASKED, "--final-seeds", "2", "--out", whole) == 0
    shown = capsys.readouterr().out
    found = json.loads((whole / "sweep.json").read_text())
    assert found["seeds"] == [100, 101]
    assert [one["tried"] for one in found["algorithms"]] == [2, 2]
    assert "Equal budgets: 2 configurations of each algorithm." in shown
    for one in found["algorithms"]:
        assert f"{one['configurations'][0]['mean']:.2f}" in shown
    for row in found["final"]["table"]:
        assert f"{row['mean']:.2f}" in shown
    assert f"fedgen run --config {whole / 'best.toml'}" in shown

    # interrupted after its third cell, and continued by the folder alone
    done: list[int] = []
    finished = cli_sweep._Display.finished
    monkeypatch.setattr(cli_sweep._Display, "finished", lambda *a: (done.append(1), finished(*a))[1])
    monkeypatch.setattr(cli_sweep._Display, "stop_requested", lambda self: len(done) >= 3)
    assert call(monkeypatch, "sweep", *ASKED, "--final-seeds", "2", "--out", cut) == 130
    assert f"go on with fedgen sweep --out {cut}" in capsys.readouterr().err
    assert len(list((cut / "cells").iterdir())) == 3
    monkeypatch.undo()
    assert call(monkeypatch, "sweep", "--out", cut) == 0
    assert (cut / "sweep.json").read_bytes() == (whole / "sweep.json").read_bytes()
    assert (cut / "best.toml").read_bytes() == (whole / "best.toml").read_bytes()

    # its choice is what is run, and gives what the sweep says
    assert call(monkeypatch, "run", "--config", whole / "best.toml", "--out", tmp_path / "run") == 0
    results = json.loads((tmp_path / "run/summary.json").read_text())["results"]
    table = {row["algorithm"]: row["mean"] for row in found["final"]["table"]}
    for name, mean in table.items():
        scores = [score_of(row, "accuracy") for row in results if row["algorithm"] == name]
        assert sum(s for s in scores if s is not None) / 2 == pytest.approx(mean, abs=1e-3)
    config = resolve(read_toml(whole / "best.toml"))
    for one in found["algorithms"]:
        assert config.of(one["algorithm"])["lr"] == one["configurations"][0]["settings"]["lr"]

    capsys.readouterr()
    assert call(monkeypatch, "report", whole, "--out", tmp_path / "page.html") == 0
    assert (tmp_path / "page.html").read_text().count("Response to lr") >= 1
    assert call(monkeypatch, "sweep", *ASKED, "--rounds", "6", "--final-seeds", "2", "--out", whole) == 2
    assert "asked for with other settings (rounds); give another --out" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "holds no sweep to go on with"),
        (["--rounds", "3"], "nothing is swept; say over which settings"),
        (["--over", "lr"], "--over takes values or a range"),
        (["--over", "lr=0.1,0.2", "--lr", "0.1"], "lr is given, and --over sweeps lr; leave one of them out"),
        (["--over", "lr=0.1,0.2", "--validation", "60000"], "a validation set of 60000 needs as many"),
        (["--over", "momentum=0.5,0.9", "--optimizer", "adam"], "momentum is sgd's"),
    ],
)
def test_mistakes_are_answered_in_a_sentence_and_leave_no_folder(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "sweep"
    assert call(monkeypatch, "sweep", *arguments, "--out", out) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


@pytest.mark.slow
def test_a_sweep_killed_at_any_moment_ends_with_the_same_bytes(tmp_path: Path) -> None:
    words = [*ASKED, "--rounds", "60", "--method", "halving", "--keep", "2", "--final-seeds", "1"]

    def start(out: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedgen", "sweep", *words, "--out", str(out)]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait() == 0
    cells = tmp_path / "cut/cells"
    for number in (1, 4, 9):
        process = start(tmp_path / "cut")
        while process.poll() is None and not (cells.is_dir() and len(list(cells.iterdir())) >= number):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(tmp_path / "cut").wait() == 0
    for name in ("sweep.json", "best.toml", "sweep.toml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "cut/unfinished").exists()
