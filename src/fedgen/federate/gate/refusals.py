"""The gate tells the server which replies it refused: a small SQLite file in the server's folder.

The gate writes and the server app reads, each whenever it runs: what one of them wrote or read survives a restart of
the other. The newest refusals are kept, so the file is bounded.
"""

import contextlib
import sqlite3
from pathlib import Path
from typing import NamedTuple

REFUSALS = "refusals.sqlite"
_KEPT = 10_000  # rows
_WAIT = 5.0  # seconds that a reader waits for the writer, or the writer for a reader


class Refusal(NamedTuple):
    """A reply that the gate refused."""

    site: str
    reason: str
    question: str  # the id of the message that it replied to; empty: the gate does not know it


class RefusalWriter:
    """The gate's end: adds refusals."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, refusal: Refusal) -> None:
        """Add a refusal; raises OSError where the disk is full or the file cannot be written."""
        try:
            self._add(refusal)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise OSError(str(error)) from error
            self._path.unlink(missing_ok=True)  # a damaged file: what was in it is lost, and no more
            with contextlib.suppress(sqlite3.Error):
                self._add(refusal)

    def _add(self, refusal: Refusal) -> None:
        with contextlib.closing(sqlite3.connect(self._path, timeout=_WAIT)) as base, base:
            base.execute("PRAGMA synchronous = OFF")  # after a power failure the run begins its round anew
            base.execute(
                "CREATE TABLE IF NOT EXISTS refusal"
                " (number INTEGER PRIMARY KEY AUTOINCREMENT, site TEXT, reason TEXT, question TEXT)"
            )
            added = base.execute("INSERT INTO refusal (site, reason, question) VALUES (?, ?, ?)", refusal)
            base.execute("DELETE FROM refusal WHERE number <= ?", ((added.lastrowid or 0) - _KEPT,))


class RefusalReader:
    """The server's end: what was added since the last look. Without a gate there is no file, and nothing to read."""

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, 0
        self.refused()

    def refused(self) -> list[Refusal]:
        """The refusals since the last call; the first call was made when the reader was."""
        if not self._path.exists():
            self._seen = 0  # the file, where there was one, was deleted
            return []
        try:
            with contextlib.closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=_WAIT)) as base:
                newest = base.execute("SELECT max(number) FROM refusal").fetchone()[0] or 0
                since = self._seen if newest >= self._seen else 0  # a new file
                rows = base.execute(
                    "SELECT number, site, reason, question FROM refusal WHERE number > ? ORDER BY number", (since,)
                ).fetchall()
        except sqlite3.Error:  # just being made, or not readable: they are read the next time
            return []
        self._seen = rows[-1][0] if rows else newest
        return [Refusal(*row[1:]) for row in rows]
