"""`fedgen report` as a user meets it."""

import sys
from pathlib import Path

import pytest

from fedgen.cli.main import main
from run_folders import run_folder


def _report(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["fedgen", "report", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_page_goes_into_the_folder_or_where_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    one, two = run_folder(tmp_path / "one"), run_folder(tmp_path / "two", preset="reference")
    assert _report(monkeypatch, one) == 0
    assert "one/report.html" in capsys.readouterr().out.replace("\n", "")
    assert _report(monkeypatch, one, two) == 0
    both = (tmp_path / "report.html").read_text()
    assert both.count("<section ") == 2
    assert _report(monkeypatch, one, two, "--out", tmp_path / "new/page.html", "--figures", tmp_path / "figures") == 0
    assert (tmp_path / "new/page.html").read_text() == both
    drawn = {path.name for path in (tmp_path / "figures").glob("*.svg")}
    assert {f"runs-{number}-{what}.svg" for number in (1, 2) for what in ("curves", "partition")} < drawn


def test_mistakes_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = run_folder(tmp_path / "one")
    for arguments, message in (
        ([tmp_path / "none"], "not a folder"),
        ([one, "--out", tmp_path / "one/summary.json"], ".html"),
        ([one, one], "twice"),
    ):
        assert _report(monkeypatch, *arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
