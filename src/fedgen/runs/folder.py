"""The folder a run leaves behind: configuration, metrics, checkpoint, trained models, summary and figures."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fedgen.config import BEFORE, Layer, RunConfig, read_toml, resolve, to_toml
from fedgen.core.contract import Tree
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.files import read_json, write_whole
from fedgen.registry import file_name
from fedgen.runs import lock
from fedgen.runs.checkpoint import load_tree, read_about, save_tree
from fedgen.runs.scores import Record
from fedgen.runs.trained import Trained

_SECONDS = "seconds"  # how the names of a row's times begin
_OF_A_RUN = ("algorithm", "seed")  # what a row is found by
_OF_THE_MACHINE = ("device",)
_READ = "run it again"  # where a file is damaged
MOST_USERS = 1000  # whose label counts are written: more could not be shown, and would fill the disk


class RunFolder:
    """A run's files. Records are never changed, and after a kill the last checkpoint is found again.

    Who writes them has it from `create` or `open`, which lock the folder until `close`, or the process's end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.toml"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoint_file = path / "checkpoint.safetensors"
        self.summary_file = path / "summary.json"
        self.timing_file = path / "timing.json"
        self.labels_file = path / "labels.json"
        self.data_file = path / "data.json"
        self.evaluation_file = path / "evaluation.json"
        self.models = path / "models"
        self._lock: lock.Lock | None = None

    def __enter__(self) -> Self:
        """The folder, closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Let other processes write into it."""
        if self._lock is not None:
            self._lock.release()

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, force: bool = False) -> "RunFolder":
        """A new folder; a run that is there is refused, or replaced with `force`, and other files are not touched."""
        folder = cls(path)
        try:
            if path.exists() and not folder.config_file.exists() and any(map(_is_foreign, path.iterdir())):
                raise FedgenError(f"{path} holds other files, and no run; give --out a folder that is new or empty")
            path.mkdir(parents=True, exist_ok=True)
            folder._take()
            if folder.config_file.exists():
                if not force:
                    folder.close()
                    raise FedgenError(f"{path} exists already; add --resume to continue it or --force to replace it")
                folder._clear()
        except OSError as error:
            raise FedgenError(f"folder {path} cannot be written: {error.strerror}") from error
        write_whole(folder.config_file, to_toml(config).encode())
        return folder

    @classmethod
    def open(cls, path: Path, patience: float = 0) -> "RunFolder":
        """An existing run, to continue it or to add to it, when nobody else does (or within `patience` seconds)."""
        folder = cls.existing(path)
        try:
            folder._take(patience)
        except OSError as error:
            raise FedgenError(f"folder {path} cannot be written: {error.strerror}") from error
        return folder

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """An existing run, to look at."""
        folder = cls(path)
        if not folder.config_file.exists():
            raise FedgenError(f"{path} holds no run to resume (no config.toml); leave out --resume to start one")
        return folder

    def config(self, *over: Layer) -> RunConfig:
        """The configuration the run was started with; or what it would be with these settings over it."""
        return resolve(BEFORE, read_toml(self.config_file), *over)

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

    def save_without_last(self, state: Tree, about: Mapping[str, Any]) -> list[Record]:
        """Write a checkpoint that does not cover the last line of the metrics, and remove that; returns the others."""
        lines = self.metrics_file.read_bytes().splitlines(keepends=True)
        size = sum(map(len, lines[:-1]))
        save_tree(self.checkpoint_file, state, {**about, "metrics_bytes": size})  # first: it may not cover too much
        return self.rewind(size)

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
        known = {key: value for key, value in form._asdict().items() if key != "features" or value}
        write_whole(self.data_file, (json.dumps(known) + "\n").encode())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, and apart from it what another machine, or the same at another time, has differently.

        So that the same run writes the same `summary.json`.
        """
        rows, where = summary["results"], {key: summary[key] for key in _OF_THE_MACHINE if key in summary}
        times = [{k: v for k, v in row.items() if k in _OF_A_RUN or k.startswith(_SECONDS)} for row in rows]
        same = [{k: v for k, v in row.items() if not k.startswith(_SECONDS)} for row in rows]
        rest = {key: value for key, value in summary.items() if key not in where}
        _write_json(self.timing_file, {**where, "results": times})
        _write_json(self.summary_file, {**rest, "results": same})  # the last: with it the run has ended

    def summary(self) -> dict[str, Any]:
        """What `write_summary` was given; earlier versions kept all of it in one file."""
        summary = read_json(self.summary_file, _READ)
        if not self.timing_file.exists():
            return summary
        timing = read_json(self.timing_file, _READ)
        times = {(row["algorithm"], row["seed"]): row for row in timing["results"]}
        rows = [{**row, **times.get((row["algorithm"], row["seed"]), {})} for row in summary["results"]]
        return {**timing, **summary, "results": rows}

    def _take(self, patience: float = 0) -> None:
        self._lock = lock.lock(self.path, patience)
        _remove_left_overs(self.path)  # now that nobody else writes one

    def _clear(self) -> None:
        own = [
            self.metrics_file, self.checkpoint_file, self.summary_file, self.timing_file, self.labels_file,
            self.data_file, self.evaluation_file,
        ]  # fmt: skip
        shown = [self.path / "report.html", *self.path.glob("curves.*")]
        for file in (*own, *shown, *self.models.glob("*.safetensors"), self.config_file):
            file.unlink(missing_ok=True)
        for made in ("tensorboard", "mlflow", "wandb", "evaluation", "export"):
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


def _is_foreign(file: Path) -> bool:
    """Whether a file in a folder without a run is something else than what a killed process left of its beginning."""
    return file.name != lock.NAME and file.suffix != ".tmp"


def _remove_left_overs(path: Path) -> None:
    """Temporary files of a process that was killed; none of them is ever read."""
    for file in (*path.glob("*.tmp"), *path.glob("models/*.tmp")):
        file.unlink()


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
