"""How a configuration did, and who watches a sweep while it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgen.runs.scores import mean_and_std
from fedgen.runs.watch import GridWatch
from fedgen.sweeps.request import Trial


@dataclass(frozen=True)
class Outcome:
    """How a configuration did, by the rounds that it had."""

    trial: Trial
    rounds: int
    rung: int  # how often it went on
    scores: Mapping[int, float | None] = field(default_factory=dict)  # by seed; None: diverged
    diverged: Mapping[int, int] = field(default_factory=dict)  # by seed: the round
    failed: str = ""
    history: tuple[tuple[int, float | None], ...] = ()  # of each rung: its rounds, and the mean then
    cells: tuple[str, ...] = ()  # the files of its cells

    @property
    def mean(self) -> float | None:
        """The mean over seeds, None where a seed diverged."""
        return mean_and_std(list(self.scores.values()))[0]

    @property
    def std(self) -> float | None:
        """The standard deviation over seeds."""
        return mean_and_std(list(self.scores.values()))[1]

    @property
    def order(self) -> tuple[float, ...]:
        """Smaller is better: first what has a score, by how far it came; then by fewest diverged seeds."""
        if self.mean is not None:
            return 0, -self.rung, -self.mean
        return 1 + bool(self.failed), len(self.diverged), -self.rung


class SweepWatch(GridWatch):
    """Callbacks of a sweep; these do nothing, subclasses override them."""

    def stage(self, title: str, cells: int, done: int) -> None:
        """A part of the sweep begins: so many cells, of which some are there already."""

    def scored(self, outcome: Outcome) -> None:
        """All seeds of a configuration have come to the end of this stage."""
