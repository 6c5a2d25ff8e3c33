"""What a site writes reaches log and terminal as plain text."""

import io
import sys
from pathlib import Path

import pytest
from flwr.app import Error, Message, RecordDict
from local_federation import local_federation
from rich.console import Console

from fedgen.cli import federate, federate_life
from fedgen.cli.main import main
from fedgen.federate.journal import Journal, read_journal
from fedgen.federate.server.status import Status
from fedgen.federate.text import printable
from helpers import small_setup

NASTY = "\x1b[2J\x1b]0;title\x07 [red]all is well[/red] \r\n\x9b31m \u202etfel\u2028 \ud800 [link=http://x]y[/link]"


def test_escape_sequences_are_spelled_out_and_markup_stays_text() -> None:
    clean = printable(NASTY)
    assert clean.isprintable()
    assert clean.encode()  # no lone surrogate
    assert "\\x1b[2J" in clean
    assert "\\r\\n" in clean
    assert "\\u202e" in clean
    assert "[red]all is well[/red]" in clean
    assert printable(clean) == clean, "however often"


def test_ordinary_text_stays_as_it_is_and_long_text_is_cut() -> None:
    plain = "params['dense'][0] is float32 of shape (3, 4), not é"
    assert printable(plain) == plain
    assert printable("x" * 1000, 10) == "xxxxxxx..."


def test_the_error_of_a_site_is_harmless_in_the_servers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, grid = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=1), min_sites=2)
    answered = grid._answer

    def fails(site: int, message: Message) -> Message | None:
        return Message(Error(2, NASTY), reply_to=message) if site == 1 else answered(site, message)

    monkeypatch.setattr(grid, "_answer", fails)
    server.run()
    (failed,) = [e for e in read_journal(server.journal.path) if e["event"] == "failed"]
    assert failed["reason"] == printable(NASTY)


@pytest.mark.parametrize("terminal", [True, False])
def test_the_demonstration_and_status_show_a_sites_text_as_it_is(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither obeys markup, nor shows backslashes before it."""
    text = "bad value [red] in column [age] [/nothing]"
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=200, highlight=False, markup=False)
    monkeypatch.setattr(federate, "console", console)
    display = federate._Display(("north",), 1)
    display.on_event({"event": "failed", "site": "north", "reason": text, "round": 0})
    console.print(display._picture())
    (tmp_path / "server.toml").write_text('sites = ["north"]')
    status = Status(tmp_path)
    Journal(tmp_path / "log.jsonl", run="run").write("started", pid=0)
    Journal(tmp_path / "log.jsonl", run="run").write("failed", site="north", reason=text)
    status.update()
    console.print(federate_life._picture(status))
    assert output.getvalue().count(text) == 3


def test_a_path_in_an_error_is_harmless_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedgen", "federate", "status", "/nowhere\x1b[2J [red]" + "/x" * 200])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert (ended.value.code, "\x1b" in said) == (2, False)
    assert f"/nowhere\\x1b[2J [red]{'/x' * 200} holds no federation" in said


def test_a_name_in_a_message_is_harmless_too(tmp_path: Path) -> None:
    def rename(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if site == 1:
            content["\x1b[31m[red]"] = content.pop("metrics")
        return content

    setup = small_setup("fedavg", users=3, active=3, rounds=1)
    server, _ = local_federation(tmp_path, setup, rename, min_sites=2)
    server.run()
    (refused,) = [e for e in read_journal(server.journal.path) if e["event"] == "refused"]
    assert "\\x1b[31m[red]" in refused["reason"]
