"""The command line as a user meets it."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from command import call as _fedgen
from fedgen.algorithms import ALGORITHMS
from fedgen.simulator.run import Interrupted
from fedgen.version import __version__

TINY = [
    "--model", "mlp", "--users", "4", "--active", "2", "--rounds", "2", "--local-steps", "1", "--batch-size", "4",
    "--eval-every", "1", "--set", "model.hidden=4", "--set", "model.latent=3",
]  # fmt: skip


def test_run_leaves_a_complete_folder_and_shows_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert _fedgen(monkeypatch, "run", *TINY, "--algorithm", "fedavg", "--out", out) == 0
    written = ("config.toml", "metrics.jsonl", "summary.json", "labels.json", "report.html", "curves.png", "curves.svg")
    for name in (*written, "timing.json", "checkpoint.safetensors"):
        assert (out / name).stat().st_size > 0, name
    shown = capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert f"{summary['table'][0]['mean']:.2f}" in shown
    assert "fedavg" in shown

    before = (out / "metrics.jsonl").read_bytes()
    assert _fedgen(monkeypatch, "run", *TINY, "--algorithm", "fedavg", "--out", out) == 2
    assert "--resume" in capsys.readouterr().err
    assert (out / "metrics.jsonl").read_bytes() == before

    assert _fedgen(monkeypatch, "run", "--config", out / "config.toml", "--out", tmp_path / "again") == 0
    for name in ("metrics.jsonl", "summary.json", "labels.json", "config.toml"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes(), name

    assert _fedgen(monkeypatch, "run", "--resume", "--out", out, "--rounds", "5") == 2
    assert "other settings (rounds)" in capsys.readouterr().err
    assert _fedgen(monkeypatch, "run", "--resume", "--out", out) == 0  # nothing is left to do
    assert (out / "metrics.jsonl").read_bytes() == before

    checkpoint = out / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])
    assert _fedgen(monkeypatch, "run", "--resume", "--out", out) == 2
    assert "damaged" in capsys.readouterr().err

    assert _fedgen(monkeypatch, "run", *TINY, "--algorithm", "fedavg", "--out", out, "--force") == 0
    assert (out / "metrics.jsonl").read_bytes() == before


def test_tuned_values_for_other_numbers_of_steps_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise Interrupted

    monkeypatch.setattr("fedgen.simulator.run.run", interrupted)
    for preset, times in (("tuned", 1), ("paper", 0)):
        arguments = ("--algorithm", "feddyn", "--preset", preset, "--out", tmp_path / preset)
        assert _fedgen(monkeypatch, "run", *TINY, *arguments) == 130
        assert capsys.readouterr().err.count("feddyn: the values were chosen for 20 local steps, and with 1") == times


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--algorithm", "fedgn"], "did you mean 'fedgen'?"),
        (["--preset", "papers"], "did you mean 'paper'?"),
        (["--dataset", "mnits"], "mnits"),
        (["--set", "fedgen.bta=1"], "did you mean 'beta'?"),
        (["--set", "fedgen.beta"], "key=value"),
        (["--active", "30"], "at most users"),
        (["--users", "0"], "users must be"),
        (["--rounds", "-1"], "rounds must be"),
        (["--alpha", "0"], "alpha must be"),
        (["--lr", "nan"], "finite"),
        (["--users", "20000"], "cannot give each of 20000 users at least 10"),
        (["--share", "predictor", "--algorithm", "fedensemble"], "--share all"),
        (["--algorithm", "feddfusion", "--set", "train_fraction=1.0"], "no user holds"),
        (["--resume"], "--out"),
        (["--resume", "--force", "--out", "x"], "give one of them"),
        (["--set", "model.channels=[0]"], "model.channels"),
        (["--set", "rounds=true"], "rounds must be"),
        (["--dataset", ""], "dataset"),
        (["--config", "absent.toml"], "cannot be read"),
        (["--model", "mlp", "--set", "model.hidden=1000000000"], "a model of 817,000,000,362 parameters"),
        (["--set", "fedgen.hidden=10000000000"], "fedgen cannot fit into memory"),
        (["--batch-size", "1000000000"], "mini-batches of 1,000,000,000 samples need at least"),
        (["--hosts", "0/2@localhost:99999", "--out", "run"], "a port is a number from 1 to 65535, not 99999"),
    ],
)
def test_bad_input_is_one_sentence_code_2_and_leaves_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _fedgen(monkeypatch, "run", *arguments) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert message in error
    assert "\n" not in error
    assert not list(tmp_path.iterdir())


def test_unwritable_and_foreign_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert _fedgen(monkeypatch, "run", *TINY, "--out", tmp_path / "file" / "run") == 2
    assert "cannot be written" in capsys.readouterr().err
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").write_text("precious")
    assert _fedgen(monkeypatch, "run", *TINY, "--out", tmp_path / "mine", "--force") == 2
    assert "give --out a folder that is new or empty" in capsys.readouterr().err
    assert (tmp_path / "mine/thesis.tex").read_text() == "precious"


def test_a_run_of_which_nothing_is_left_says_so_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    diverging = ("run", *TINY, "--algorithm", "fedavg", "--lr", "1e30")
    assert _fedgen(monkeypatch, *diverging, "--out", tmp_path / "all") == 3
    said = capsys.readouterr()
    assert "every run diverged, so there is no score" in said.err
    assert "Run folder" in said.out


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fedgen(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"fedgen {__version__}\n"


def test_platforms_that_are_not_there_are_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedgen", "run", *TINY, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "JAX_PLATFORMS": "foo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "JAX cannot compute here as JAX_PLATFORMS=foo says; unset it, or give cpu or cuda" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """The system refuses files over 4 KiB, as a full disk would, and then no longer does."""
    out = tmp_path / "run[1] of mine"  # a path that is also markup, and needs quoting
    command = [sys.executable, "-m", "fedgen", "run", "--algorithm", "fedavg", "--out", str(out)]
    limited = ["bash", "-c", 'ulimit -f 4; exec "$@"', "bash", *command, *TINY]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    kept = (out / "metrics.jsonl").read_text()
    again = [*command[:4], "--resume", "--out", str(out)]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (out / "metrics.jsonl").read_text().startswith(kept.splitlines()[0])
    assert str(out) in done.stdout


ROOT = Path(__file__).parents[2]
FIRST_PAGES = "\n".join((ROOT / page).read_text() for page in ("README.md", "docs/index.md"))
COMMANDS = [shlex.split(line, comments=True)[1:] for line in FIRST_PAGES.splitlines() if line.startswith("fedgen ")]
TINY_FEDGEN = [f"--set=fedgen.{option}" for option in ("hidden=4", "noise_size=2", "generator_steps=2")]


@pytest.mark.slow
def test_the_commands_of_readme_and_start_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One after the other, for some need what others left; at small sizes, and the longest below."""
    monkeypatch.chdir(tmp_path)
    Image.new("L", (28, 28)).save(tmp_path / "picture.png")
    commands = [arguments for arguments in COMMANDS if arguments[0] not in ("reproduce", "sweep")]
    assert len(commands) >= 6
    for arguments in commands:
        small = [*TINY, *TINY_FEDGEN] if arguments[0] == "run" and "--resume" not in arguments else []
        assert _fedgen(monkeypatch, *arguments, *small) == 0, (arguments, capsys.readouterr().err)


@pytest.mark.slow
def test_their_reproduction_and_sweep_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two rounds instead of the ten of --quick, and with two algorithms; and the sweep, with few seeds."""
    monkeypatch.chdir(tmp_path)
    (command,) = [arguments for arguments in COMMANDS if arguments[0] == "reproduce"]
    small = ["--rounds", "2", "--column", "fedavg", "--column", "fedgen"]
    assert _fedgen(monkeypatch, *command, *small) == 0, capsys.readouterr().err
    (command,) = [arguments for arguments in COMMANDS if arguments[0] == "sweep"]
    small = ["--seeds", "1", "--final-seeds", "1", "--rounds", "2", "--model", "mlp"]
    assert _fedgen(monkeypatch, *command, *small) == 0, capsys.readouterr().err


def test_list_names_everything(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _fedgen(monkeypatch, "list") == 0
    shown = capsys.readouterr().out
    for name in (*ALGORITHMS, "paper", "reference", "tuned", "mnist", "cnn", "mlp", "dirichlet"):
        assert name in shown
    entries = re.split(r"\n  (?=\w)", shown.partition("Presets")[0])
    accumulate = {entry.split()[0] for entry in entries if "its server accumulates" in " ".join(entry.split())}
    assert accumulate == {"scaffold", "feddyn", "fedopt", "fedmoments"}
