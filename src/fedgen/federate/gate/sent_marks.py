"""The server app tells the gate which sites it has sent a message: it touches a file for each in the server's folder.

Sites ask for messages every few seconds. Where nothing was sent to a site since it last asked, the gate answers it
without asking SuperLink.
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

    def mark(self, site: str) -> None:
        """A message was sent to this site. Where that cannot be written down, it gets the message seconds later."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / site).touch()

    def marked_since(self, site: str, when: float) -> bool:
        """Whether there may be a message for the site that was not there at this time (of `time.time`)."""
        try:
            marked = (self._folder / site).stat().st_mtime
        except OSError:  # nothing was sent to it yet, or the server app is of a version that writes no marks
            return True
        return marked > when - _SLACK or not 0 <= time.time() - when < _AT_LEAST
