"""A cell that is under way: its checkpoint and the evaluations before it, in a folder that goes when it is done."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.config import RunConfig, to_toml
from fedgen.core.contract import Tree
from fedgen.data.dataset import DataForm
from fedgen.files import write_whole
from fedgen.runs.folder import RunFolder
from fedgen.runs.scores import Record
from fedgen.runs.trained import Trained


class Unfinished(RunFolder):
    """The folder of a cell's run, made when its first checkpoint is due: many cells are done before that."""

    def __init__(self, path: Path, config: RunConfig) -> None:
        super().__init__(path)
        self._config = config
        self._new: list[Record] = []  # since the last checkpoint

    @property
    def round(self) -> int:
        """The round of its checkpoint."""
        about = self.about()
        return 0 if about is None else int(about["round"])

    def append(self, record: Record) -> None:
        """Keep the record until the next checkpoint: one after that would be computed again."""
        self._new.append(record)

    def save(self, state: Tree, about: Mapping[str, Any]) -> None:
        """Write the records so far and a checkpoint; none at the very end, where the cell itself is written."""
        if about["round"] == self._config.rounds and about["job"] == len(about["jobs"]) - 1:
            return
        if self._lock is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take()
        if not self.config_file.exists():
            write_whole(self.config_file, to_toml(self._config).encode())
        for record in self._new:
            super().append(record)
        self._new.clear()
        super().save(state, about)

    def save_model(self, algorithm: str, seed: int, trained: Trained, *, best: bool = False) -> None:
        """A cell has no models."""

    def write_labels(self, counts: Mapping[int, NDArray[np.int64]]) -> None:
        """A cell has no labels."""

    def write_data(self, form: DataForm) -> None:
        """A cell has nobody who predicts with it."""

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The cell is its summary."""

    def remove(self) -> None:
        """Delete the folder, and the one around it with the last."""
        self.close()
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.parent.is_dir() and not any(self.path.parent.iterdir()):
            self.path.parent.rmdir()
