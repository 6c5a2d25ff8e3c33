"""Callbacks for the progress of a run, and the request to stop it."""

from collections.abc import Sequence
from typing import Any

from fedgen.config import RunConfig


class StopRun(Exception):  # noqa: N818 (not an error)
    """Raised by a callback of `fedgen.simulate` to end the whole run; its checkpoint is written first."""


class Watch:
    """Callbacks of a run; these do nothing, subclasses override them."""

    def compiling(self, algorithm: str) -> None:
        """An algorithm's program is being compiled."""

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        """Some runs have reached a round."""

    def evaluated(self, record: dict[str, Any]) -> bool:
        """An evaluation was made; whether this algorithm is to end here with this seed (the same on all hosts)."""
        return False

    def recorded(self, record: dict[str, Any]) -> None:
        """An evaluation was recorded."""

    def stop_requested(self) -> bool:
        """Whether the run is to write a checkpoint and end."""
        return False


class GridWatch:
    """Callbacks of a grid of runs; these do nothing, subclasses override them."""

    def working_on(self, unit: Sequence[RunConfig]) -> None:
        """The computation of these cells begins."""

    def advanced(self, unit: Sequence[RunConfig], share: float) -> None:
        """This share of their rounds is done."""

    def finished(self, config: RunConfig) -> None:
        """A cell is written."""

    def failed(self, config: RunConfig, reason: str) -> None:
        """A cell cannot be computed."""

    def stop_requested(self) -> bool:
        """Whether to end; what is finished is kept."""
        return False
