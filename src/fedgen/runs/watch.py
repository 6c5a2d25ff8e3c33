"""What a caller may hear of a run while it goes, and say to it."""

from collections.abc import Sequence
from typing import Any

from fedgen.config import RunConfig


class Watch:
    """Listens to a run; does nothing by itself."""

    def compiling(self, algorithm: str) -> None:
        """An algorithm's program is being compiled."""

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        """Some runs have reached a round."""

    def recorded(self, record: dict[str, Any]) -> None:
        """An evaluation was made."""

    def stop_requested(self) -> bool:
        """Whether the run is to write a checkpoint and end."""
        return False


class GridWatch:
    """Listens to a reproduction; does nothing by itself."""

    def working_on(self, unit: Sequence[RunConfig]) -> None:
        """These cells begin."""

    def advanced(self, unit: Sequence[RunConfig], share: float) -> None:
        """So much of their rounds is done."""

    def finished(self, config: RunConfig) -> None:
        """A cell is written."""

    def failed(self, config: RunConfig, reason: str) -> None:
        """A cell cannot be computed."""

    def stop_requested(self) -> bool:
        """Whether to end; what is finished is kept."""
        return False
