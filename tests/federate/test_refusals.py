"""The gate tells the server what it refused, and either may be restarted meanwhile."""

import sqlite3
import threading
from pathlib import Path

import pytest

from fedgen.federate.gate import refusals
from fedgen.federate.gate.refusals import Refusal, RefusalReader, RefusalWriter


def test_the_server_reads_each_refusal_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "refusals.sqlite"
    reader = RefusalReader(path)
    assert reader.refused() == [], "without a gate there is no file"
    assert not path.exists()
    RefusalWriter(path).add(Refusal("a", "large", "q"))
    RefusalWriter(path).add(Refusal("b", "it's \x1b[31m", ""))  # a gate that was started anew
    assert reader.refused() == [("a", "large", "q"), ("b", "it's \x1b[31m", "")]
    assert reader.refused() == []
    RefusalWriter(path).add(Refusal("c", "bad", ""))
    assert RefusalReader(path).refused() == [], "a server that was started anew skips what concerned the old one"
    assert [refusal.site for refusal in reader.refused()] == ["c"]


def test_the_file_is_bounded_and_loses_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_KEPT", 20)
    path = tmp_path / "refusals.sqlite"
    writer, reader = RefusalWriter(path), RefusalReader(path)
    for number in range(100):
        writer.add(Refusal(f"site-{number}", "x" * 1000, ""))
    assert [refusal.site for refusal in reader.refused()] == [f"site-{number}" for number in range(80, 100)]
    assert path.stat().st_size < 100_000


@pytest.mark.parametrize("way", ["deleted", "damaged"])
def test_a_file_that_is_lost_costs_what_was_in_it_and_no_more(way: str, tmp_path: Path) -> None:
    path = tmp_path / "refusals.sqlite"
    writer, reader = RefusalWriter(path), RefusalReader(path)
    for site in "abc":
        writer.add(Refusal(site, "bad", ""))
    assert len(reader.refused()) == 3
    if way == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"not a database, but as long as one would be" * 100)
    assert reader.refused() == []
    writer.add(Refusal("d", "bad", ""))
    assert [refusal.site for refusal in reader.refused()] == ["d"]


def test_both_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "refusals.sqlite"
    writer, reader, found = RefusalWriter(path), RefusalReader(path), []
    thread = threading.Thread(target=lambda: [writer.add(Refusal(str(n), "bad", "")) for n in range(200)])
    thread.start()
    while thread.is_alive():
        found += [refusal.site for refusal in reader.refused()]
    thread.join()
    found += [refusal.site for refusal in reader.refused()]
    assert found == [str(number) for number in range(200)]


def test_a_writer_that_cannot_write_says_so(tmp_path: Path) -> None:
    path = tmp_path / "none" / "refusals.sqlite"
    with pytest.raises(OSError, match="unable to open"):
        RefusalWriter(path).add(Refusal("a", "bad", ""))
    with sqlite3.connect(tmp_path / "other.sqlite") as base:
        base.execute("CREATE TABLE other (number INTEGER)")
    assert RefusalReader(tmp_path / "other.sqlite").refused() == []
