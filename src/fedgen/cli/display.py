"""A progress display that handles Ctrl-C: once stops after a checkpoint, twice stops at once."""

import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any, Self

from rich.live import Live
from rich.progress import Progress

from fedgen.config import RunConfig
from fedgen.runs.watch import GridWatch


class Display:
    """Shows the progress while it is entered; `stop_requested` says whether the user asked to end."""

    def __init__(self, progress: Progress, live: Live | None = None) -> None:
        """The progress by itself, or as a part of what `live` shows."""
        self._progress = progress
        self._screen: Progress | Live = live or progress
        self._stop = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._interrupted)
        self._screen.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def stop(self) -> None:
        """Stop the display, so that others can print."""
        self._screen.stop()

    def stop_requested(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._stop

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._stop:  # asked twice: at once, without a checkpoint
            raise KeyboardInterrupt
        self._stop = True
        self._screen.console.print("stopping after this step; once more to stop at once")


class CellsDisplay(Display, GridWatch):
    """The progress over the cells of a grid, in a bar that each display makes itself."""

    _bar: Any = None
    _finished = 0.0

    def advanced(self, unit: Sequence[RunConfig], share: float) -> None:
        self._progress.update(self._bar, completed=self._finished + share * len(unit))

    def finished(self, config: RunConfig) -> None:
        self._finished += 1
        self._progress.update(self._bar, completed=self._finished)

    def failed(self, config: RunConfig, reason: str) -> None:
        self.finished(config)
