"""What a site writes reaches log and terminal as plain text."""

import io
from pathlib import Path

import pytest
from flwr.app import Error, Message, RecordDict
from local_federation import local_federation
from rich.console import Console

from fedgen.federate.journal import read_journal
from fedgen.federate.text import harmless, printable
from helpers import small_setup

NASTY = "\x1b[2J\x1b]0;title\x07 [red]all is well[/red] \r\n\x9b31m \u202etfel\u2028 \ud800 [link=http://x]y[/link]"


def shown(text: str) -> str:
    """What a terminal gets of a text that is printed with markup."""
    output = io.StringIO()
    Console(file=output, force_terminal=True, width=1000, highlight=False, emoji=False).print(text, end="")
    return output.getvalue()


def test_escape_sequences_are_spelled_out_and_markup_stays_text() -> None:
    clean = harmless(NASTY)
    assert clean.isprintable()
    assert clean.encode()  # no lone surrogate
    assert "\\x1b[2J" in clean
    assert "\\r\\n" in clean
    assert "\\u202e" in clean
    assert shown(clean) == printable(NASTY, 300), "as it was sent, with no colour and no link"
    assert "\x1b" in shown(NASTY.replace("\ud800", "")), "which would have been obeyed"


def test_ordinary_text_stays_as_it_is_and_long_text_is_cut() -> None:
    plain = "params['dense'][0] is float32 of shape (3, 4), not é"
    assert harmless(plain) == plain
    assert harmless("x" * 1000, 10) == "xxxxxxx..."


def test_the_error_of_a_site_is_harmless_in_the_servers_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, grid = local_federation(tmp_path, small_setup("fedavg", users=3, active=3, rounds=1), min_sites=2)
    answered = grid._answer

    def fails(site: int, message: Message) -> Message | None:
        return Message(Error(2, NASTY), reply_to=message) if site == 1 else answered(site, message)

    monkeypatch.setattr(grid, "_answer", fails)
    server.run()
    (failed,) = [e for e in read_journal(server.journal.path) if e["event"] == "failed"]
    assert failed["reason"] == harmless(NASTY)


def test_a_name_in_a_message_is_harmless_too(tmp_path: Path) -> None:
    def rename(site: int, message: Message, content: RecordDict) -> RecordDict | None:
        if site == 1:
            content["\x1b[31m[red]"] = content.pop("metrics")
        return content

    setup = small_setup("fedavg", users=3, active=3, rounds=1)
    server, _ = local_federation(tmp_path, setup, rename, min_sites=2)
    server.run()
    (refused,) = [e for e in read_journal(server.journal.path) if e["event"] == "refused"]
    assert "\\x1b[31m\\[red]" in refused["reason"]
