"""What a caller may hear of a run while it goes, and say to it."""

from collections.abc import Sequence
from typing import Any


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
