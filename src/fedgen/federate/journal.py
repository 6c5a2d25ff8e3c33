"""What a server or a site writes down while it works: one JSON object on each line."""

import json
import time
from pathlib import Path
from typing import Any

GATE_JOURNAL = "gate.jsonl"  # the gate's, in the server's folder; the server's and the sites' are log.jsonl


class Journal:
    """A file of events, appended to and never rewritten. It holds no keys and no samples.

    Where a number of bytes is its limit, it is begun anew beyond that, and the one before is kept under another name.
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
            self.path.replace(before(self.path))


def before(path: Path) -> Path:
    """Where a journal is kept that was begun anew, as logrotate calls it, too."""
    return path.with_name(path.name + ".1")


def read_journal(path: Path) -> list[dict[str, Any]]:
    """The events so far; a last line that is still being written is left out."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
