"""The log of a server, a site or the gate: one JSON object on each line."""

import json
import time
from pathlib import Path
from typing import Any

GATE_JOURNAL = "gate.jsonl"  # in the server's folder; the journals of server and sites are called log.jsonl


class Journal:
    """A file of events that is only appended to. It holds no keys and no samples.

    With a limit in bytes, the file is rotated when it exceeds it; one old file is kept.
    """

    def __init__(self, path: Path, *, limit: int = 0, **always: Any) -> None:
        self.path, self._limit, self._always = path, limit, always
        path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, **about: Any) -> None:
        """Add an event."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, **self._always, **about})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            full = self._limit and file.tell() > self._limit
        if full:
            self.path.replace(rotated(self.path))


def rotated(path: Path) -> Path:
    """The name of the old file after rotation, the same as logrotate's."""
    return path.with_name(path.name + ".1")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The events so far; a last line that is still being written is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
