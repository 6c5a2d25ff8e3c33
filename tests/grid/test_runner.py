"""Cells of small grids, computed for real: once each, resumable, failures apart, together or alone."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgen.config import RunConfig, resolve
from fedgen.grid import runner
from fedgen.grid.runner import GridWatch, compute
from fedgen.grid.store import Store, identity
from fedgen.simulator import run as simulation
from fedgen.simulator.run import Interrupted
from helpers import SMALL, small_data


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = small_data()
    path = tmp_path_factory.mktemp("data") / "blobs.npz"
    np.savez(path, x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test)
    return path


def config_of(file: Path, algorithm: str = "fedavg", **settings: Any) -> RunConfig:
    return resolve(SMALL, {"dataset": str(file), "algorithms": [algorithm], **settings})


def numbers(store: Store, config: RunConfig) -> Any:
    cell = store.cell(config)
    assert cell is not None
    return [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in cell["results"]]


class Counting(GridWatch):
    def __init__(self, stop_at: float = 2.0) -> None:
        self.done: list[str] = []
        self.reasons: list[str] = []
        self.share, self.stop_at = 0.0, stop_at

    def advanced(self, unit: Any, share: float) -> None:
        self.share = share

    def finished(self, config: RunConfig) -> None:
        self.done.append(identity(config))

    def failed(self, config: RunConfig, reason: str) -> None:
        self.reasons.append(reason)

    def stop_requested(self) -> bool:
        return self.share >= self.stop_at


def test_each_cell_is_computed_once_and_a_failed_one_stops_no_other(file: Path, tmp_path: Path) -> None:
    good = [config_of(file), config_of(file, alpha=2.0)]
    bad = good[0].model_copy(update={"dataset": str(tmp_path / "absent.npz")})
    store, watch = Store(tmp_path), Counting()
    failures = compute([bad, *good, good[0]], store, watch=watch)
    assert list(failures) == [identity(bad)]
    assert "absent.npz" in failures[identity(bad)] == watch.reasons[0]
    assert sorted(watch.done) == sorted(map(identity, good))
    assert not (tmp_path / "unfinished").exists()
    again = Counting()
    assert compute(good, store, watch=again) == {}
    assert again.done == []


def test_an_interrupted_cell_goes_on_where_it_was(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(file, "fedgen", rounds=6, seeds=2)
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    compute([config], whole)
    with pytest.raises(Interrupted):
        compute([config], parts, watch=Counting(stop_at=0.4))
    unfinished = parts.folder / "unfinished" / identity(config)
    lines = (unfinished / "metrics.jsonl").read_text().splitlines()
    assert 0 < len(lines) < 12
    rounds: list[tuple[int, int]] = []
    advance = simulation.Program.advance
    monkeypatch.setattr(
        simulation.Program, "advance", lambda *a: (rounds.append((int(a[3]), int(a[4]))), advance(*a))[1]
    )
    assert compute([config], parts) == {}
    assert sum(stop - start for start, stop in rounds) == 12 - len(lines)
    assert numbers(parts, config) == numbers(whole, config)
    assert not unfinished.exists()


def test_cells_of_one_program_are_one_unit_on_a_gpu(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner.jax, "default_backend", lambda: "gpu")
    same = [
        config_of(file, "fedgen", seeds=2, **change) for change in ({}, {"alpha": 5.0}, {"lr": 0.1}, {"fedgen.w": 3.0})
    ]
    other = [config_of(file, "fedgen", seeds=2, **c) for c in ({"fedgen.beta": 1.0}, {"local_steps": 4}, {"active": 2})]
    assert [len(unit) for unit in runner._units([*same, *other])] == [4, 1, 1, 1]
    monkeypatch.setattr(runner, "MOST_RUNS", 4)
    assert [len(unit) for unit in runner._units(same)] == [2, 2]


@pytest.mark.slow
def test_together_gives_what_each_gives_alone(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Different partitions, rates and weights in one batched program, against each by itself."""
    changes: list[dict[str, Any]] = [{}, {"alpha": 5.0}, {"lr": 0.1, "fedgen.w": 3.0}]
    configs = [config_of(file, "fedgen", seeds=2, **change) for change in changes]
    alone, together = Store(tmp_path / "alone"), Store(tmp_path / "together")
    compute(configs, alone)
    monkeypatch.setattr(runner, "_units", lambda configs: [tuple(configs)])
    monkeypatch.setattr(simulation, "_batched", lambda: True)
    assert compute(configs, together) == {}
    for config in configs:
        for one, other in zip(numbers(alone, config), numbers(together, config), strict=True):
            assert one["curve"] == pytest.approx(other["curve"], abs=1.01)  # 200 test samples: two may flip
            assert one["bytes_up"] == other["bytes_up"]
    cells = [numbers(together, config) for config in configs]
    assert cells[0] != cells[1] != cells[2]


def test_cells_too_large_together_are_tried_apart(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [config_of(file), config_of(file, alpha=2.0)]
    monkeypatch.setattr(runner, "_units", lambda configs: [tuple(configs)])

    def too_large(*_: Any, **__: Any) -> None:
        raise MemoryError("out of memory")

    monkeypatch.setattr(runner, "run_together", too_large)
    watch = Counting()
    assert compute(configs, Store(tmp_path), watch=watch) == {}
    assert len(watch.done) == 2


def test_shares_divide_the_cells(file: Path, tmp_path: Path) -> None:
    configs = [config_of(file, lr=rate) for rate in (0.01, 0.02, 0.03)]
    store, first, second = Store(tmp_path), Counting(), Counting()
    compute(configs, store, part=(1, 2), watch=first)
    compute(configs, store, part=(2, 2), watch=second)
    assert first.done == [identity(configs[0]), identity(configs[2])]
    assert second.done == [identity(configs[1])]


def test_a_cell_is_plain_json(file: Path, tmp_path: Path) -> None:
    config = config_of(file, rounds=2)
    compute([config], Store(tmp_path))
    cell = json.loads((tmp_path / "cells" / f"{identity(config)}.json").read_text())
    assert cell["data"] == {"train": 600, "test": 200, "classes": 4}
    assert cell["rounds"] == [1, 2]
    assert len(cell["results"][0]["curve"]) == 2
