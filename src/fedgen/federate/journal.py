"""The log of a server, a site or the gate: one JSON object on each line."""

import json
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

GATE_JOURNAL = "gate.jsonl"  # in the server's folder; the journals of server and sites are called log.jsonl
_SERVER_LIMIT = 64 << 20  # bytes: some 5,000 rounds of 100 sites


class Journal:
    """A file of events that is only appended to. It holds no keys and no samples.

    With a limit in bytes, the file is rotated when it exceeds it; one old file is kept. The new one begins with the
    latest event of the kinds `begins`, said again as `continued`.
    """

    def __init__(self, path: Path, *, limit: int = 0, begins: Collection[str] = (), **always: Any) -> None:
        self.path, self._limit, self._begins, self._always = path, limit, begins, always
        self._begun: dict[str, Any] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, **about: Any) -> None:
        """Add an event."""
        if event in self._begins:
            self._begun = about
        if self._append(event, about) > self._limit > 0:
            self.path.replace(rotated(self.path))
            if self._begun is not None:
                self._append("continued", self._begun)

    def _append(self, event: str, about: dict[str, Any]) -> int:
        """Add a line; the size of the file with it."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **self._always, **about})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            return file.tell()


def server_journal(folder: Path, run: str) -> Journal:
    """The journal of a run, which may last for months, in the server's folder."""
    return Journal(folder / "log.jsonl", limit=_SERVER_LIMIT, begins=("started", "resumed"), run=run)


def rotated(path: Path) -> Path:
    """The name of the old file after rotation, the same as logrotate's."""
    return path.with_name(path.name + ".1")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The events so far; a last line that is still being written is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
