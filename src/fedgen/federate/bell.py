"""The server app tells the gate that it has sent a message: it touches a file in the server's folder.

Sites ask for messages every few seconds. Where nothing was sent since a site last asked, the gate answers it without
asking SuperLink.
"""

import contextlib
import time
from pathlib import Path

BELL = "sent"  # the file in the server's folder
_SLACK = 0.1  # seconds by which a file's time may be behind the clock
_AT_LEAST = 15.0  # seconds after which SuperLink is asked anyway


class Bell:
    """The file; `folder` is the server's."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / BELL

    def ring(self) -> None:
        """A message was sent. Where that cannot be written down, a site gets the message some seconds later."""
        with contextlib.suppress(OSError):
            self._path.touch()

    def has_rung_since(self, when: float) -> bool:
        """Whether there may be a message that was not there at this time (of `time.time`)."""
        now = time.time()
        try:
            rung = self._path.stat().st_mtime
        except OSError:  # nobody has rung it, or it is a server app that does not
            return True
        return rung > when - _SLACK or not 0 <= now - when < _AT_LEAST
