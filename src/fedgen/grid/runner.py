"""Compute the cells of a grid: those of equal shape as one program, each once, resumable, failures apart."""

import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax

from fedgen.config import RunConfig
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.grid.store import Store, identity
from fedgen.runs.division import load_dataset
from fedgen.runs.watch import GridWatch, Watch
from fedgen.simulator.engine import Program
from fedgen.simulator.run import CHECKPOINT_SECONDS, Interrupted, program_of, run_together
from fedgen.simulator.setup import Setup, prepare_together, same_program

MOST_RUNS = 48  # at once; beyond it a GPU gains nothing more
# Between checkpoints of cells that are computed at once: each is written by itself, which takes longer.
CHECKPOINT_SECONDS_TOGETHER = 60.0

Unit = tuple[RunConfig, ...]  # cells that are computed at once


@dataclass(frozen=True)
class _Ready:
    """Units that one program computes, prepared, and it compiled for the largest of them."""

    units: tuple[Unit, ...]
    dataset: Dataset
    setups: dict[str, Setup]  # by identity
    programs: dict[tuple[str, int], Program]  # by algorithm and number of runs


class Material:
    """What all cells of a grid are made of: each dataset, read once, or the caller's own; and its own model."""

    def __init__(self, dataset: Dataset | None = None, model: Any = None) -> None:
        self.model = model
        self._own = dataset
        self._lock = threading.Lock()
        self._read: dict[str, Dataset] = {}

    def dataset(self, config: RunConfig) -> Dataset:
        """The dataset of a configuration."""
        if self._own is not None:
            return self._own
        key = repr((config.dataset, config.data_dir, config.user_file, config.of("dataset")))
        with self._lock:
            if key not in self._read:
                self._read[key] = load_dataset(config)
            return self._read[key]


def compute(
    configs: Iterable[RunConfig],
    store: Store,
    *,
    jobs: int = 1,
    part: tuple[int, int] = (1, 1),
    until: int | None = None,
    watch: GridWatch | None = None,
    material: Material | None = None,
) -> dict[str, str]:
    """Compute the cells that the store lacks; the failures, by identity.

    `jobs` programs are prepared and compiled at a time, in threads, while the devices work on another.
    `part` (2, 4) is the second of four shares, so that processes or machines can divide the work.
    With `until`, cells stop after that round and keep their state in the store, so that a later call goes on from it.
    """
    watch, material = watch or GridWatch(), material or Material()
    todo = {identity(config): config for config in configs}
    number, parts = part
    mine = _units(list(todo.values()))[number - 1 :: parts]  # before looking at what is there, which others change
    lacking = [config for unit in mine for config in unit if store.cell(config, until) is None]
    waiting = _groups(lacking, store)
    failures: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=jobs) as threads:
        under_way: dict[Future[_Ready], tuple[Unit, ...]] = {}
        try:
            while waiting or under_way:
                while waiting and len(under_way) < jobs:
                    units = waiting.pop(0)
                    under_way[threads.submit(_prepare, units, material)] = units
                for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                    units = under_way.pop(future)
                    watch.working_on(units[0])
                    try:
                        ready = future.result()
                        for unit in units:
                            watch.working_on(unit)
                            _run(ready, unit, store, until, watch)
                            if watch.stop_requested():
                                raise Interrupted
                    except Interrupted:
                        raise
                    except Exception as error:  # whatever happened to these cells, the others go on
                        left = [config for unit in units for config in unit if store.cell(config, until) is None]
                        if len(left) > 1:  # too large for the device? Or one of them is wrong?
                            half = len(left) // 2
                            waiting[:0] = [*_groups(left[:half], store), *_groups(left[half:], store)]
                            continue
                        reason = str(error) if isinstance(error, FedgenError) else f"{type(error).__name__}: {error}"
                        for config in left:
                            failures[identity(config)] = reason.splitlines()[0][:500]
                            watch.failed(config, failures[identity(config)])
        finally:
            threads.shutdown(cancel_futures=True)
    return failures


def default_jobs() -> int:
    """How many programs to compile at a time: a CPU has enough to do with running them."""
    return max((os.cpu_count() or 2) // 2, 1) if _at_once() else 1


def _groups(configs: Sequence[RunConfig], store: Store) -> list[tuple[Unit, ...]]:
    """Units that share a program, which is then compiled once; those of a unit are at the same round."""
    by_round: dict[int, list[RunConfig]] = {}
    for config in configs:
        by_round.setdefault(store.unfinished(config).round if _at_once() else 0, []).append(config)
    groups: dict[str, list[Unit]] = {}
    for cells in by_round.values():
        for unit in _units(cells):
            groups.setdefault(same_program(unit[0]), []).append(unit)
    return [tuple(units) for units in groups.values()]


def _units(configs: Sequence[RunConfig]) -> list[Unit]:
    """Cells that are computed at once: on a GPU those of one program, on a CPU each by itself."""
    if not _at_once():
        return [(config,) for config in configs]
    groups: dict[str, list[RunConfig]] = {}
    for config in configs:
        groups.setdefault(same_program(config), []).append(config)
    units = []
    for group in groups.values():
        number = -(-len(group) // max(MOST_RUNS // group[0].seeds, 1))
        size = -(-len(group) // number)  # about equal, so that one program fits all
        units += [tuple(group[i : i + size]) for i in range(0, len(group), size)]
    return units


def _at_once() -> bool:
    return jax.default_backend() != "cpu"


def _prepare(units: tuple[Unit, ...], material: Material) -> _Ready:
    configs = [config for unit in units for config in unit]
    dataset = material.dataset(configs[0])
    setups = dict(zip(map(identity, configs), prepare_together(configs, dataset, material.model), strict=True))
    ready = _Ready(units, dataset, setups, {})
    largest = max(units, key=_runs)
    for algorithm in largest[0].algorithms:
        _program(ready, [setups[identity(config)] for config in largest], algorithm)
    return ready


def _program(ready: _Ready, setups: Sequence[Setup], algorithm: str) -> Program:
    """The program for so many runs; where they are not computed at once, the number does not matter."""
    key = algorithm, sum(setup.config.seeds for setup in setups) if _at_once() else 1
    if key not in ready.programs:
        ready.programs[key] = program_of(setups, algorithm)
    return ready.programs[key]


def _runs(unit: Unit) -> int:
    return sum(config.seeds for config in unit)


def _run(ready: _Ready, unit: Unit, store: Store, until: int | None, watch: GridWatch) -> None:
    setups = [ready.setups[identity(config)] for config in unit]
    folders = [store.unfinished(config) for config in unit]
    lacking = max(map(_runs, ready.units)) - _runs(unit) if _at_once() else 0
    if lacking and lacking % unit[0].seeds == 0:  # a few runs twice take less time than another program
        setups += [setups[0]] * (lacking // unit[0].seeds)
    summaries = run_together(
        setups,
        folders=folders,
        watch=_Listener(unit, until, watch),
        programs={name: _program(ready, setups, name) for name in unit[0].algorithms},
        until=until,
        checkpoint_seconds=CHECKPOINT_SECONDS_TOGETHER if len(unit) > 1 else CHECKPOINT_SECONDS,
    )
    for config, folder, summary in zip(unit, folders, summaries, strict=False):
        store.keep(config, summary, ready.dataset, until)
        watch.finished(config)
        if until is None or until >= config.rounds:
            folder.remove()


class _Listener(Watch):
    """Reports the run of one unit to the grid's watch."""

    def __init__(self, unit: Unit, until: int | None, watch: GridWatch) -> None:
        self._unit, self._watch = unit, watch
        self._done: dict[Any, int] = {}
        self._total = sum(config.seeds * (until or config.rounds) for config in unit)

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        self._done[tuple(seeds)] = round * len(seeds)
        self._watch.advanced(self._unit, min(sum(self._done.values()) / self._total, 1.0))

    def stop_requested(self) -> bool:
        return self._watch.stop_requested()
