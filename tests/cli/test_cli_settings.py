"""Every setting is an option with its help, and every mistake one sentence."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from command import call
from fedgen.bench.suite import PARTS
from fedgen.cli import bench
from fedgen.cli.main import app as fedgen_app
from fedgen.cli.settings import SETTINGS, flag_of, panel_of, takes_settings
from fedgen.cli.settings_page import settings_page
from fedgen.config import TABLES, RunConfig
from fedgen.core.settings import PANELS


def given(*words: str, **choice: Any) -> dict[str, Any]:
    """What a command with these settings takes from these words."""
    heard: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @takes_settings(**choice)
    def command(layer: dict[str, Any], other: str = "") -> None:
        heard.update(layer, other=other)

    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return heard


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert call(monkeypatch, *command, "--help") == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_every_setting_is_declared_with_a_panel_and_a_description() -> None:
    assert set(SETTINGS) == set(RunConfig.model_fields) - set(TABLES)
    for name, field in SETTINGS.items():
        assert panel_of(name) in PANELS
        assert field.description
        assert not field.description.endswith(".")


def test_run_has_every_setting_with_its_help_and_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(monkeypatch, capsys, "run")
    for name in SETTINGS:
        assert f"{flag_of(name)} " in text, name
    for panel in PANELS:
        assert f"─ {panel} ─" in text
    assert (
        "Passes over a user's data in a round, in place of --local-steps (0: --local-steps counts). Default: 0." in text
    )
    assert "Default: 1; with --preset reference: 0.99." in text
    assert "all|predictor" in text
    assert "Default: fedgen and fedavg." in text


def test_commands_say_their_own_defaults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    demo = shown(monkeypatch, capsys, "federate", "demo")
    assert "Communication rounds. Default: 5." in demo
    assert "How many users train in a round. Default: all sites." in demo
    assert "more different the users. Default: 0.5." in demo
    assert "--users" not in demo
    init = shown(monkeypatch, capsys, "federate", "init")
    assert "Communication rounds. Default: 100." in init
    assert "--alpha" not in init
    assert "--dp-noise" in init


def test_what_is_given_becomes_a_layer_with_numbers() -> None:
    assert given() == {"other": ""}
    words = [
        "--algorithm",
        "fedavg",
        "--algorithm",
        "fedgen",
        "--lr",
        ".5",
        "--rounds",
        "7",
        "--nesterov",
        "--other",
        "x",
    ]
    assert given(
        *words, "--other", "x", "--lr-milestones", "3", "--lr-milestones", "5", "--dataset", "007", "--no-class-limit"
    ) == {
        "algorithms": ["fedavg", "fedgen"],
        "lr": 0.5,
        "rounds": 7,
        "nesterov": True,
        "lr_milestones": [3, 5],
        "dataset": "007",
        "class_limit": False,
        "other": "x",
    }
    assert given("--lr", "fast") == {"lr": "fast", "other": ""}, "which is refused with all other settings"
    assert given("--algorithm", "fedavg", lists=()) == {"algorithms": ["fedavg"], "other": ""}
    assert given("--alpha", "1", "--alpha", "2", only=("alpha",), lists=("alpha",)) == {"alpha": [1, 2], "other": ""}
    assert given("--rounds", "3", defaults={"rounds": 5, "alpha": 1.0}) == {"rounds": 3, "alpha": 1.0, "other": ""}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--share", "some"], "share must be 'all', 'predictor' or 'extractor', not 'some'"),
        (["--optimizer", "lion"], "optimizer must be 'sgd', 'adam' or 'adamw', not 'lion'"),
        (["--rounds", "many"], "rounds must be a valid integer, not 'many'"),
        (["--rounds", "2.5"], "rounds must be a valid integer, not '2.5'"),
        (["--lr", "fast"], "lr must be a valid number, not 'fast'"),
        (["--lr-milestones", "x"], "lr_milestones must be a valid integer, not 'x'"),
        (["--momentum", "1"], "momentum must be less than 1"),
    ],
)
def test_a_wrong_value_is_one_sentence_and_code_2(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "run", *words) == 2
    assert capsys.readouterr().err.strip().startswith(f"error: {message}")
    assert not list(tmp_path.iterdir())


def test_the_benchmarks_parts_are_those_that_the_help_names() -> None:
    assert list(PARTS) == list(bench.PARTS)


def test_the_page_of_settings_is_that_of_the_code() -> None:
    page = Path(__file__).parents[2] / "docs/settings.md"
    again = "python -m fedgen.cli.settings_page > docs/settings.md"
    assert page.read_text() == settings_page(), f"settings have changed: write the page anew with {again}"


@pytest.mark.parametrize("command", ["run", "sweep", "data show", "federate init", "federate demo", "predict"])
def test_no_word_of_a_help_is_cut_off_at_eighty_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    shown = CliRunner().invoke(fedgen_app, [*command.split(), "--help"]).output
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) == 80


@pytest.mark.parametrize(("columns", "width"), [(None, 120), ("80", 80), ("wide", 120)])
def test_what_is_piped_is_as_wide_as_columns_says(columns: str | None, width: int) -> None:
    """By itself 120, which is what all columns of a table need."""
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    environment |= {"COLUMNS": columns} if columns else {}
    code = "from fedgen.cli.console import console_for_output; print(console_for_output().width)"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, check=True, **pipes)
    assert int(done.stdout) == width
