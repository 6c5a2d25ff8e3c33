"""The evaluations of a run in TensorBoard, MLflow or W&B, written while it goes (extra `tracking`)."""

import hashlib
import importlib.util
import netrc
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlparse

from fedgen.config import RunConfig
from fedgen.errors import FedgenError, unknown
from fedgen.registry import file_name
from fedgen.runs.watch import Watch

_NOT_METRICS = ("algorithm", "seed", "round", "headline", "stopped")


class Tracker(Watch):
    """Writes each evaluation somewhere. If that fails, the run goes on and `failure` says why."""

    place = ""  # where the numbers are, for the user

    def __init__(self) -> None:
        self.failure = ""

    def __enter__(self) -> Self:
        """Nothing to prepare."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Finish what is written, however the run ended."""
        self._guarded(lambda: self.close(ended=error is None))

    def recorded(self, record: dict[str, Any]) -> None:
        """Write one evaluation."""
        metrics = {k: float(v) for k, v in record.items() if k not in _NOT_METRICS and v is not None}
        self._guarded(lambda: self.write(record["algorithm"], record["seed"], record["round"], metrics))

    def _guarded(self, act: Callable[[], None]) -> None:
        if self.failure:
            return
        try:
            act()
        except Exception as error:  # a full disk or a server that is gone must not cost the run
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0]

    def write(self, algorithm: str, seed: int, round: int, metrics: dict[str, float]) -> None:
        """Write the metrics of one algorithm and seed at a round."""
        raise NotImplementedError

    def close(self, ended: bool) -> None:
        """Finish the files; `ended` is whether the run came to its end."""
        raise NotImplementedError


class TensorBoard(Tracker):
    """Event files, a folder for each algorithm and seed."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        super().__init__()
        _need("tensorboard")
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._open = lambda name: EventFileWriter(str(folder / "tensorboard" / name))  # makes the folder
        self._writers: dict[str, Any] = {}
        self.place = f"tensorboard --logdir {folder / 'tensorboard'}"

    def write(self, algorithm: str, seed: int, round: int, metrics: dict[str, float]) -> None:
        """Write the metrics as scalars."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        name = f"{file_name(algorithm)}-seed{seed}"
        now = time.time()
        if name not in self._writers:
            self._writers[name] = self._open(name)
            # After a resume: what an earlier process wrote of this round and later ones no longer counts.
            begin = SessionLog(status=SessionLog.START)
            self._writers[name].add_event(Event(wall_time=now, step=round, session_log=begin))
        values = [Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()]
        self._writers[name].add_event(Event(wall_time=now, step=round, summary=Summary(value=values)))
        self._writers[name].flush()

    def close(self, ended: bool) -> None:
        """Close the event files."""
        for writer in self._writers.values():
            writer.close()


class MLflow(Tracker):
    """A run of MLflow's for each algorithm and seed, on the server that MLFLOW_TRACKING_URI names or in the folder."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        super().__init__()
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no usage data is sent unless the user wants it
        _need("mlflow")
        self._address = os.environ.get("MLFLOW_TRACKING_URI", "")
        self._local = not self._address
        if self._local:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it prefers databases, and would refuse
            self._address = (folder.resolve() / "mlflow").as_uri()
        self.place = f"MLflow at {self._address}"
        self._config, self._folder = config, str(folder.resolve())
        self._client: Any = None
        self._experiment = ""
        self._runs: dict[tuple[str, int], str] = {}
        if not self._local:  # a missing server is an error now; a local folder is made when the run begins
            try:
                self._connect()
            except Exception as error:
                raise FedgenError(f"{self.place} cannot be used: {str(error).splitlines()[0]}") from error

    def _connect(self) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self._address)
        found = self._client.get_experiment_by_name("fedgen")
        self._experiment = found.experiment_id if found else self._client.create_experiment("fedgen")

    def write(self, algorithm: str, seed: int, round: int, metrics: dict[str, float]) -> None:
        """Log the metrics in the run of this algorithm and seed; a resumed run goes on in its own."""
        from mlflow.entities import Metric

        if self._client is None:
            self._connect()
        if (algorithm, seed) not in self._runs:
            self._runs[algorithm, seed] = self._run(algorithm, seed)
        now = int(time.time() * 1000)
        logged = [Metric(key, value, now, round) for key, value in metrics.items()]
        self._client.log_batch(self._runs[algorithm, seed], metrics=logged)

    def _run(self, algorithm: str, seed: int) -> str:
        from mlflow.entities import Param

        # MLflow's search has no escape for quotes within quotes.
        tags = {"folder": self._folder.replace("'", ""), "algorithm": algorithm, "seed": str(seed)}
        wanted = " and ".join(f"tags.{key} = '{value}'" for key, value in tags.items())
        found = self._client.search_runs([self._experiment], wanted, max_results=1)
        if found:
            return str(found[0].info.run_id)
        run = self._client.create_run(self._experiment, run_name=f"{algorithm}, seed {seed}", tags=tags)
        params = [
            Param(key.replace("+", "plus").replace(":", "/"), str(value))
            for key, value in _settings(self._config, algorithm).items()
        ]
        self._client.log_batch(run.info.run_id, params=params)
        return str(run.info.run_id)

    def close(self, ended: bool) -> None:
        """Say of each run whether it came to its end."""
        for run in self._runs.values():
            self._client.set_terminated(run, "FINISHED" if ended else "KILLED")


class WandB(Tracker):
    """A run of W&B's for each algorithm and seed: sent to the server, or kept in the folder where nobody is logged in.

    WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY and WANDB_BASE_URL mean what they always do.
    """

    def __init__(self, folder: Path, config: RunConfig) -> None:
        super().__init__()
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no reports of errors unless the user wants them
        _need("wandb")
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if _logged_in() else "offline")
        self._mode, self._config, self._folder = mode, config, folder
        self._runs: dict[tuple[str, int], Any] = {}
        kept = folder / "wandb"
        self.place = f"wandb sync {kept}/offline-run-*" if mode == "offline" else f"W&B, and in {kept}"

    def write(self, algorithm: str, seed: int, round: int, metrics: dict[str, float]) -> None:
        """Log the metrics in the run of this algorithm and seed; a resumed run goes on in its own."""
        if (algorithm, seed) not in self._runs:
            self._runs[algorithm, seed] = self._run(algorithm, seed)
        self._runs[algorithm, seed].log({"round": round, **metrics})

    def _run(self, algorithm: str, seed: int) -> Any:
        import wandb

        place = f"{self._folder.resolve()} {algorithm} {seed}"
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedgen"),
            dir=str(self._folder),
            id=hashlib.sha256(place.encode()).hexdigest()[:16],  # the same after a resume
            resume="allow" if self._mode == "online" else None,
            name=f"{algorithm}, seed {seed}",
            group=self._folder.resolve().name,
            config={"algorithm": algorithm, "seed": seed, **_settings(self._config, algorithm)},
            mode=self._mode,
            reinit="create_new",  # seeds that are computed at once have theirs at once
            settings=wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True),
        )
        # Not W&B's own steps, which only grow: what is logged again after a resume would be lost.
        run.define_metric("*", step_metric="round")
        return run

    def close(self, ended: bool) -> None:
        """Say of each run whether it came to its end, and send what is left."""
        for run in self._runs.values():
            run.finish(exit_code=0 if ended else 1)


def _logged_in() -> bool:
    """Whether W&B finds a key without asking for one, which would stop the run."""
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


TRACKERS: dict[str, Callable[[Path, RunConfig], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def tracker(name: str, folder: Path, config: RunConfig) -> Tracker:
    """The tracker of that name; it writes nothing into the run's folder before the first evaluation."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    return TRACKERS[name](folder, config)


def _settings(config: RunConfig, algorithm: str) -> dict[str, Any]:
    """What a tracker keeps of the configuration: the run's settings, and the options of one algorithm."""
    settings = config.model_dump(mode="json", exclude={"options", "algorithms", "seed", "seeds"})
    return {**settings, **{f"{algorithm}.{key}": value for key, value in config.of(algorithm).items()}}


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise FedgenError(f"--track {package} needs {package}: pip install '.[tracking]' in FedGen's folder")


class Together(Watch):
    """Several watches as one."""

    def __init__(self, listeners: Iterable[Watch]) -> None:
        self._listeners = tuple(listeners)

    def compiling(self, algorithm: str) -> None:
        """Tell all."""
        for listener in self._listeners:
            listener.compiling(algorithm)

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        """Tell all."""
        for listener in self._listeners:
            listener.advanced(algorithm, seeds, round)

    def evaluated(self, record: dict[str, Any]) -> bool:
        """Tell all; whether any of them wants it to end."""
        answers = [listener.evaluated(record) for listener in self._listeners]
        return any(answers)

    def recorded(self, record: dict[str, Any]) -> None:
        """Tell all."""
        for listener in self._listeners:
            listener.recorded(record)

    def stop_requested(self) -> bool:
        """Whether any of them wants the run to end."""
        return any(listener.stop_requested() for listener in self._listeners)
