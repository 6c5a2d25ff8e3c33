"""The server app tells the gate which sites it has sent a message: it touches a file for each in the server's folder.

Sites ask for messages every few seconds. Where nothing was sent to a site since it last asked, the gate answers it
without asking SuperLink.
"""

import contextlib
import time
from pathlib import Path

BELLS = "sent"  # the folder in the server's folder
_SLACK = 0.1  # seconds by which a file's time may be behind the clock
_AT_LEAST = 15.0  # seconds after which SuperLink is asked anyway


class Bells:
    """The files; `folder` is the server's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / BELLS

    def ring(self, site: str) -> None:
        """A message was sent to this site. Where that cannot be written down, it gets the message seconds later."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / site).touch()

    def has_rung_since(self, site: str, when: float) -> bool:
        """Whether there may be a message for the site that was not there at this time (of `time.time`)."""
        try:
            rung = (self._folder / site).stat().st_mtime
        except OSError:  # nobody has rung it, or the server app is of a version that does not
            return True
        return rung > when - _SLACK or not 0 <= time.time() - when < _AT_LEAST
