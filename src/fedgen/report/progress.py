"""The progress bars of a run, in a terminal or a notebook."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedgen.runs.scores import headline
from fedgen.runs.watch import Watch


class RunBars(Watch):
    """A bar for each algorithm, with the last evaluation beside it."""

    def __init__(self, rounds: int, seeds: int, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(),
            TextColumn("{task.completed:>6.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._rounds, self._seeds = rounds, seeds
        self._bars: dict[str, Any] = {}
        self._done: dict[tuple[str | int, ...], int] = {}

    def compiling(self, algorithm: str) -> None:
        """Begin its bar."""
        self._bars[algorithm] = self.progress.add_task(algorithm, total=self._rounds * self._seeds, note="compiling")

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        """Advance its bar."""
        bar = self._bars[algorithm]
        self._done[algorithm, *seeds] = round * len(seeds)
        total = sum(value for (name, *_), value in self._done.items() if name == algorithm)
        self.progress.update(bar, completed=total)

    def recorded(self, record: dict[str, Any]) -> None:
        """Show the evaluation."""
        note = "diverged" if "diverged_at" in record else f"{headline(record):5.2f} %"
        self.progress.update(self._bars[record["algorithm"]], note=note)
