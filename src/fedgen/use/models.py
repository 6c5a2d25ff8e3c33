"""The models of a run, wherever they are kept: in its folder, or in memory after `fedgen.simulate`."""

from collections.abc import Callable
from typing import Any

from fedgen.config import RunConfig
from fedgen.core.contract import Task
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError, unknown
from fedgen.runs.trained import Trained
from fedgen.use.classifier import Classifier, Whose
from fedgen.use.generator import LatentGenerator

# algorithm, seed, whether of the best evaluation, whether users' states are wanted -> the states
Source = Callable[[str, int, bool, bool], Trained]


class Models:
    """Finds the model that is asked for, and makes it ready to predict."""

    def __init__(self, config: RunConfig, task: Task, form: DataForm, source: Source) -> None:
        self.config, self.task, self.form, self._source = config, task, form, source

    def model(
        self, algorithm: str | None = None, *, seed: int | None = None, user: int | None = None, best: bool = False
    ) -> Classifier:
        """The global model, or a user's own; by default of the run's first algorithm and seed."""
        whose = Whose(*self._checked(algorithm, seed), user, best)
        trained = self._source(whose.algorithm, whose.seed, best, user is not None)
        return Classifier(whose, self.config, self.task, self.form, trained)

    def generator(
        self, algorithm: str | None = None, *, seed: int | None = None, best: bool = False
    ) -> LatentGenerator:
        """The server's generator of features; by default of `fedgen`, and of the run's first seed."""
        wanted = "fedgen" if algorithm is None and "fedgen" in self.config.algorithms else algorithm
        name, number = self._checked(wanted, seed)
        return LatentGenerator(name, self.config, self.form, self._source(name, number, best, False).server)

    def _checked(self, algorithm: str | None, seed: int | None) -> tuple[str, int]:
        name = self.config.algorithms[0] if algorithm is None else algorithm
        if name not in self.config.algorithms:
            raise unknown("algorithm of this run", name, self.config.algorithms)
        number = self.config.seed if seed is None else seed
        if number not in self.config.run_seeds:
            raise FedgenError(f"the run has seeds {', '.join(map(str, self.config.run_seeds))}, not {number}")
        return name, number


def in_memory(kept: dict[tuple[str, int, bool], Trained]) -> Source:
    """The source of models that are held in memory."""

    def source(algorithm: str, seed: int, best: bool, users: bool) -> Trained:
        if (algorithm, seed, best) not in kept:
            raise FedgenError(absent(algorithm, seed, best))
        return kept[algorithm, seed, best]

    return source


def absent(algorithm: str, seed: int, best: bool, place: Any = "the run") -> str:
    """The sentence where there is no such model."""
    if best:
        return f"{place} has no best models; --keep-best or --patience keeps them, with --evaluate-on validation"
    return f"{place} has no model of {algorithm} with seed {seed}: it diverged, or the run has not come so far"
