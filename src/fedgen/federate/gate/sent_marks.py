"""The server app tells the gate which sites it has sent a message: it writes a file for each in the server's folder.

Sites ask for messages every few seconds. Where nothing was sent to a site since it last asked, the gate answers it
without asking SuperLink. The file also says how many objects the answer may have, which only the server knows.
"""

import contextlib
import time
from pathlib import Path

FOLDER = "sent"  # in the server's folder
_SLACK = 0.1  # seconds by which a file's time may be behind the clock
_AT_LEAST = 15.0  # seconds after which SuperLink is asked anyway


class SentMarks:
    """The files; `folder` is the server's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / FOLDER

    def mark(self, site: str, question: str, objects: int) -> None:
        """A message was sent to this site, and its answer has at most so many objects.

        Where that cannot be written down, the site gets the message seconds later.
        """
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / site).write_text(f"{question} {objects}\n", encoding="ascii")

    def objects(self, site: str, question: str) -> int | None:
        """How many objects the answer to this message may have; None: the server has not said it of this message."""
        try:
            about, _, objects = (self._folder / site).read_text(encoding="ascii").rpartition(" ")
            return int(objects) if about == question else None
        except (OSError, ValueError):
            return None

    def marked_since(self, site: str, when: float) -> bool:
        """Whether there may be a message for the site that was not there at this time (of `time.time`)."""
        try:
            marked = (self._folder / site).stat().st_mtime
        except OSError:  # nothing was sent to it yet, or the server app is of a version that writes no marks
            return True
        return marked > when - _SLACK or not 0 <= time.time() - when < _AT_LEAST
