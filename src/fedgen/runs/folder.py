"""The folder a run leaves behind: configuration, metrics, checkpoint, trained models, summary and figures."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.config import RunConfig, read_toml, resolve, to_toml
from fedgen.core.contract import Tree
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.registry import file_name
from fedgen.runs.checkpoint import load_tree, read_about, save_tree
from fedgen.runs.scores import Record
from fedgen.runs.trained import Trained

MOST_USERS = 1000  # whose label counts are written: more could not be shown, and would fill the disk


class RunFolder:
    """A run's files. Records are never changed, and after a kill the last checkpoint is found again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoint_file = path / "checkpoint.safetensors"
        self.summary_file = path / "summary.json"
        self.labels_file = path / "labels.json"
        self.data_file = path / "data.json"
        self.evaluation_file = path / "evaluation.json"
        self.models = path / "models"

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, force: bool = False) -> "RunFolder":
        """A new folder; one that holds anything is refused, or cleared of a run's own files with `force`."""
        folder = cls(path)
        try:
            _remove_left_overs(path)
            if path.exists() and any(path.iterdir()):
                if not force:
                    raise FedgenError(f"{path} exists already; add --resume to continue it or --force to replace it")
                folder._clear()
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedgenError(f"folder {path} cannot be written: {error.strerror}") from error
        write_whole(folder.config_file, to_toml(config).encode())
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        folder = cls(path)
        if not folder.config_file.exists():
            raise FedgenError(f"{path} holds no run to resume (no config.toml); leave out --resume to start one")
        _remove_left_overs(path)
        return folder

    def config(self) -> RunConfig:
        """The configuration the run was started with."""
        return resolve(read_toml(self.config_file))

    def append(self, record: Record) -> None:
        """Add one line to the metrics."""
        try:
            with self.metrics_file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, allow_nan=False) + "\n")
        except OSError as error:
            raise FedgenError(
                f"{self.metrics_file} cannot be written: {error.strerror};"
                " the run up to its last checkpoint is kept: make room and use --resume"
            ) from error

    def save(self, state: Tree, about: Mapping[str, Any]) -> None:
        """Write a checkpoint that covers the metrics written so far."""
        size = 0
        if self.metrics_file.exists():
            with self.metrics_file.open("rb") as file:
                os.fsync(file.fileno())  # the metrics that the checkpoint covers must be on disk before it
                size = file.seek(0, os.SEEK_END)
        save_tree(self.checkpoint_file, state, {**about, "metrics_bytes": size})

    def about(self) -> dict[str, Any] | None:
        """The checkpoint's description, or None if there is no checkpoint yet."""
        return read_about(self.checkpoint_file) if self.checkpoint_file.exists() else None

    def restore(self, like: Tree) -> Tree:
        """The checkpoint's state."""
        return load_tree(self.checkpoint_file, like)

    def rewind(self, size: int) -> list[Record]:
        """Cut the metrics back to what the checkpoint covers, and read them; the rest is computed again."""
        if size == 0 and not self.metrics_file.exists():
            return []
        try:
            with self.metrics_file.open("r+b") as file:
                if file.seek(0, 2) < size:
                    raise FedgenError(
                        f"{self.metrics_file} is shorter than its checkpoint says; delete {self.path} to start anew"
                    )
                file.truncate(size)
            return [json.loads(line) for line in self.metrics_file.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise FedgenError(f"{self.metrics_file} cannot be read: {error}") from error

    def save_model(self, algorithm: str, seed: int, trained: Trained, *, best: bool = False) -> None:
        """Write what the algorithm predicts with: the server's state (FedGen's generator in it) and the users'."""
        about = {"algorithm": algorithm, "seed": seed, "round": trained.round}
        if trained.users is not None:
            save_tree(self.model_file(algorithm, seed, best=best, users=True), trained.users, about)
        save_tree(self.model_file(algorithm, seed, best=best), trained.server, about)

    def model_file(self, algorithm: str, seed: int, *, best: bool = False, users: bool = False) -> Path:
        """Where the server's state is, or the users' states: the last ones, or those of the best evaluation."""
        ending = f"{'.best' if best else ''}{'.users' if users else ''}.safetensors"
        return self.models / f"{file_name(algorithm)}-seed{seed}{ending}"

    def write_labels(self, counts: Mapping[int, NDArray[np.int64]]) -> None:
        """Write who holds how many samples of each label: by seed, counts [user, label]."""
        first = {str(seed): labels[:MOST_USERS].tolist() for seed, labels in counts.items()}
        users = max(len(labels) for labels in counts.values())
        write_whole(self.labels_file, (json.dumps({"users": users, "counts": first}) + "\n").encode())

    def write_data(self, form: DataForm) -> None:
        """Write how samples are stored and scaled, and what their classes are called."""
        write_whole(self.data_file, (json.dumps(form._asdict()) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary."""
        write_whole(self.summary_file, (json.dumps(summary, indent=1) + "\n").encode())

    def _clear(self) -> None:
        if not self.config_file.exists():
            raise FedgenError(f"{self.path} is not the folder of a run (no config.toml), so --force does not touch it")
        own = [self.metrics_file, self.checkpoint_file, self.summary_file, self.labels_file, self.data_file]
        shown = [self.path / "report.html", *self.path.glob("curves.*"), self.evaluation_file]
        for file in (*own, *shown, *self.models.glob("*.safetensors"), self.config_file):
            file.unlink(missing_ok=True)
        for made in ("tensorboard", "mlflow", "evaluation", "export"):
            shutil.rmtree(self.path / made, ignore_errors=True)


class FollowedFolder(RunFolder):
    """The folder of a run that another host writes: this host only reads it, to resume."""

    def append(self, record: Record) -> None:
        """The other host does it."""

    def save(self, state: Tree, about: Mapping[str, Any]) -> None:
        """The other host does it."""

    def save_model(self, algorithm: str, seed: int, trained: Trained, *, best: bool = False) -> None:
        """The other host does it."""

    def write_labels(self, counts: Mapping[int, NDArray[np.int64]]) -> None:
        """The other host does it."""

    def write_data(self, form: DataForm) -> None:
        """The other host does it."""

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The other host does it."""

    def rewind(self, size: int) -> list[Record]:
        """The metrics that the checkpoint covers; the other host truncates the file."""
        covered = self.metrics_file.read_bytes()[:size] if size else b""
        return [json.loads(line) for line in covered.decode().splitlines()]


def _remove_left_overs(path: Path) -> None:
    """Temporary files of a process that was killed; none of them is ever read."""
    for file in (*path.glob("*.tmp"), *path.glob("models/*.tmp")):
        file.unlink()
