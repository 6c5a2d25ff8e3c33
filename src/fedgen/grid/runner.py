"""Compute the cells of a grid: those of equal shape as one program, each once, resumable, failures apart."""

import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax

from fedgen.config import RunConfig
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.grid.store import Store, identity
from fedgen.runs.division import load_dataset
from fedgen.runs.folder import RunFolder
from fedgen.runs.watch import GridWatch, Watch
from fedgen.simulator.engine import Program
from fedgen.simulator.run import Interrupted, program_of, run, run_together
from fedgen.simulator.setup import Setup, prepare_together, same_program

MOST_RUNS = 48  # at once; beyond it a GPU gains nothing more


@dataclass(frozen=True)
class _Ready:
    """Cells that one program computes, prepared and compiled."""

    unit: tuple[RunConfig, ...]
    dataset: Dataset
    setups: tuple[Setup, ...]
    programs: Mapping[str, Program]


def compute(
    configs: Iterable[RunConfig],
    store: Store,
    *,
    jobs: int = 1,
    part: tuple[int, int] = (1, 1),
    watch: GridWatch | None = None,
) -> dict[str, str]:
    """Compute the cells that the store lacks; the failures, by identity.

    `jobs` programs are prepared and compiled at a time, in threads, while the devices work on another.
    `part` (2, 4) is the second of four shares, so that processes or machines can divide the work.
    """
    watch = watch or GridWatch()
    todo = {identity(config): config for config in configs}
    number, parts = part
    mine = _units(list(todo.values()))[number - 1 :: parts]  # before looking at what is there, which others change
    lacking = [tuple(config for config in unit if store.cell(config) is None) for unit in mine]
    waiting = [unit for unit in lacking if unit]
    datasets = _Datasets()
    failures: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=jobs) as threads:
        under_way: dict[Future[_Ready], tuple[RunConfig, ...]] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    unit = waiting.pop(0)
                    under_way[threads.submit(_prepare, unit, datasets)] = unit
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    unit = under_way.pop(future)
                    watch.working_on(unit)
                    try:
                        _run(future.result(), store, watch)
                    except Interrupted:
                        raise
                    except Exception as error:  # whatever happened to these cells, the others go on
                        if len(unit) > 1 and not isinstance(error, FedgenError):  # too large for the device?
                            half = len(unit) // 2
                            waiting[:0] = [unit[:half], unit[half:]]
                            continue
                        reason = str(error) if isinstance(error, FedgenError) else f"{type(error).__name__}: {error}"
                        for config in unit:
                            failures[identity(config)] = reason.splitlines()[0][:500]
                            watch.failed(config, failures[identity(config)])
        finally:
            threads.shutdown(cancel_futures=True)
    return failures


def _units(configs: Sequence[RunConfig]) -> list[tuple[RunConfig, ...]]:
    """Cells that are computed at once: on a GPU those of one program, on a CPU each by itself."""
    if jax.default_backend() == "cpu":
        return [(config,) for config in configs]
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(same_program(config), []).append(config)
    units = []
    for group in groups.values():
        size = max(MOST_RUNS // group[0].seeds, 1)
        units += [tuple(group[i : i + size]) for i in range(0, len(group), size)]
    return units


class _Datasets:
    """Each dataset, read once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, Dataset] = {}

    def of(self, config: RunConfig) -> Dataset:
        key = repr((config.dataset, config.data_dir, config.user_file, config.of("dataset")))
        with self._lock:
            if key not in self._read:
                self._read[key] = load_dataset(config)
            return self._read[key]


def _prepare(unit: tuple[RunConfig, ...], datasets: _Datasets) -> _Ready:
    dataset = datasets.of(unit[0])
    setups = prepare_together(unit, dataset)
    return _Ready(unit, dataset, setups, {name: program_of(setups, name) for name in unit[0].algorithms})


def _run(ready: _Ready, store: Store, watch: GridWatch) -> None:
    listener = _Listener(ready.unit, watch)
    if len(ready.unit) == 1:  # may take long on a CPU, so it has checkpoints
        (config,) = ready.unit
        place = store.folder / "unfinished" / identity(config)
        if (place / "config.toml").exists():
            folder = RunFolder.open(place)
        else:
            folder = RunFolder.create(place, config, force=False)
        with folder:
            summaries = [run(ready.setups[0], folder=folder, watch=listener, programs=ready.programs)]
    else:
        summaries = run_together(ready.setups, watch=listener, programs=ready.programs)
    for config, summary in zip(ready.unit, summaries, strict=True):
        store.keep(config, summary, ready.dataset)
        watch.finished(config)
    if len(ready.unit) == 1:
        shutil.rmtree(place)
        if not any(place.parent.iterdir()):
            place.parent.rmdir()


class _Listener(Watch):
    """Reports the run of one unit to the grid's watch."""

    def __init__(self, unit: tuple[RunConfig, ...], watch: GridWatch) -> None:
        self._unit, self._watch = unit, watch
        self._done: dict[Any, int] = {}
        self._total = sum(config.seeds * config.rounds for config in unit)

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        self._done[tuple(seeds)] = round * len(seeds)
        self._watch.advanced(self._unit, sum(self._done.values()) / self._total)

    def stop_requested(self) -> bool:
        return self._watch.stop_requested()
