"""A journal as it grows: what was written to it since the last look, also after its rotation."""

import json
import os
from pathlib import Path
from typing import Any

from fedgen.federate.journal import rotated


class Tail:
    """Reads the events of a journal, the older file's first; what is not an event is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # How many of a file's bytes were read, by its inode, which may be another's later, and its first line.
        self._read: dict[tuple[int, bytes], int] = {}

    def events(self) -> list[dict[str, Any]]:
        """The events since the last call."""
        found, there = [], {}
        for path in (rotated(self._path), self._path):
            try:
                with path.open("rb") as file:
                    this = os.fstat(file.fileno()).st_ino, file.readline()
                    start = file.seek(self._read.get(this, 0))
                    some = file.read()
            except FileNotFoundError:
                continue
            whole = some[: some.rfind(b"\n") + 1]
            there[this] = start + len(whole)
            found += [event for line in whole.splitlines() if (event := _parsed(line))]
        self._read = there
        return found


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:  # the disk was full, say, and only a part was written
        return {}
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else {}
