"""The simulator as one function call, for use from Python."""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Unpack

from rich.console import Console

from fedgen.config import RunConfig, doubts_of, resolve
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.files import read_text
from fedgen.full_report import write_report
from fedgen.given import given
from fedgen.report.figures import learning_curves
from fedgen.report.progress import RunBars
from fedgen.report.runs import results_so_far
from fedgen.runs.folder import RunFolder
from fedgen.runs.resume import same_config
from fedgen.runs.scores import Record
from fedgen.runs.summary import summary_of
from fedgen.runs.tracking import Together
from fedgen.runs.trained import Trained
from fedgen.runs.watch import StopRun, Watch
from fedgen.settings import Settings
from fedgen.simulator.run import Interrupted, run
from fedgen.simulator.setup import prepare
from fedgen.use.loaded import load
from fedgen.use.models import Models, in_memory
from fedgen.use.result import Result

Callback = Callable[[Record], Any]  # gets an evaluation; a true answer ends that algorithm with that seed


def simulate(
    algorithms: str | Sequence[str] = "fedgen",
    *,
    data: Dataset | str | Path | None = None,
    model: Any = None,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    callbacks: Callback | Iterable[Callback] = (),
    **settings: Unpack[Settings],
) -> Result:
    """Run algorithms on one dataset, as `fedgen run` does.

    Args:
        algorithms: A name of `fedgen list`, a function of yours as `"module:function"`, or several of them. All see the
            same users, cohorts and mini-batches.
        data: Your own samples (`fedgen.from_arrays`), the path of a file or folder, or a dataset's name. Default:
            `"mnist"`.
        model: Your own network (a `fedgen.Model`, or a module of PyTorch, Flax or Equinox), a function that makes it,
            or a model's name. Default: `"cnn"`.
        options: Those of one algorithm, the model, the dataset or the partition: `{"fedgen.beta": 1.0}`.
        out: A folder. The same run folder is written there as by `fedgen run`.
        resume: Whether to continue the run in `out` after an interruption.
        progress: Whether to show bars. Default: in terminals and notebooks only.
        callbacks: One function, or several, that get each evaluation as a dictionary when it is recorded. A true answer
            ends that algorithm with that seed there; raising `fedgen.StopRun` ends the whole run, which `resume=True`
            continues.
        **settings: Those of the command: `rounds=50`, `preset="reference"`, `lr=0.1` (docs/settings.md).

    Returns:
        The content of summary.json as a dictionary, with the trained models, all evaluations, a table and plots.

    Raises:
        FedgenError: For a mistake in what was given; its text says what would be right.

    Warns:
        UserWarning: Where the preset `tuned` has values of another dataset or number of local steps, or none.

    Examples:
        >>> import fedgen
        >>> result = fedgen.simulate(["fedavg", "fedprox"], model="mlp", rounds=2, users=4, active=2)
        >>> sorted(row["algorithm"] for row in result["table"])
        ['fedavg', 'fedprox']
    """
    layer: dict[str, Any] = {"algorithms": [algorithms] if isinstance(algorithms, str) else list(algorithms)}
    layer.update(settings)
    mine = given(data, model)
    if resume and out is None:
        raise FedgenError("resume=True needs out=, the folder of the run to continue")
    config = resolve({**layer, **mine.layer}, options or {}, own=mine.own)
    for sentence in doubts_of(config):
        warnings.warn(sentence, stacklevel=2)
    setup = prepare(config, mine.data, mine.model)
    folder = None if out is None else _folder(Path(out), config, resume)
    listener = _Listener([callbacks] if callable(callbacks) else callbacks)
    kept: dict[tuple[str, int, bool], Trained] = {}

    def keep(algorithm: str, seed: int, trained: Trained, best: bool) -> None:
        kept[algorithm, seed, best] = trained

    finished = True
    with ExitStack() as stack:
        watches: list[Watch] = [listener]
        if _shows(progress):
            bars = RunBars(config.rounds, config.seeds, Console(stderr=True))
            stack.enter_context(bars.progress)
            watches.append(bars)
        if folder is not None:
            stack.enter_context(folder)
        try:
            summary = run(setup, folder=folder, watch=Together(watches), keep=None if folder else keep)
        except Interrupted:
            finished = False
    if folder is None:
        models, metrics = Models(config, setup.task, setup.form, in_memory(kept)), listener.records
    else:
        loaded = load(folder.path, model=mine.model, data=mine.data)
        models, metrics = loaded.models, list(loaded.metrics)
    if not finished:
        summary = summary_of(config, results_so_far(config, metrics), setup.form.class_names)
    elif folder is not None:
        learning_curves(summary, folder.path)
        write_report([folder.path], folder.path / "report.html")
    return Result(summary, metrics, models, folder.path if folder else None, finished=finished)


def _folder(path: Path, config: RunConfig, resume: bool) -> RunFolder:
    """The run folder, new or to be continued."""
    there = (path / "config.toml").exists()
    if there and not resume:
        raise FedgenError(f"{path} holds a run already; continue it with resume=True, or give another out=")
    if not there:
        return RunFolder.create(path, config)
    folder = RunFolder.open(path)
    if not same_config(read_text(folder.config_file), config):
        raise FedgenError(f"the run in {path} was started with other settings; give the same, or another out=")
    return folder


def _shows(progress: bool | None) -> bool:
    """Whether bars are shown: as asked, or where somebody looks."""
    return progress if progress is not None else sys.stderr.isatty() or Console().is_jupyter


class _Listener(Watch):
    """Collects the evaluations and asks the callbacks."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self._callbacks = tuple(callbacks) if isinstance(callbacks, Iterable) else (callbacks,)
        if not all(map(callable, self._callbacks)):
            raise FedgenError("callbacks is a function of an evaluation's record, or a list of such functions")
        self.records: list[Record] = []
        self._stop = False

    def evaluated(self, record: Record) -> bool:
        try:
            answers = [bool(callback(record)) for callback in self._callbacks]
        except StopRun:
            self._stop = True
            return False
        return any(answers)

    def recorded(self, record: Record) -> None:
        self.records.append(record)

    def stop_requested(self) -> bool:
        return self._stop
