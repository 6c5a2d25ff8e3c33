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


@pytest.mark.slow
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

    def too_large(setups: Any, **more: Any) -> Any:
        if len(setups) > 1:
            raise MemoryError("out of memory")
        return simulation.run_together(setups, **more)

    monkeypatch.setattr(runner, "run_together", too_large)
    watch = Counting()
    assert compute(configs, Store(tmp_path), watch=watch) == {}
    assert len(watch.done) == 2


def test_one_wrong_cell_of_a_program_fails_alone(file: Path, tmp_path: Path) -> None:
    good = [config_of(file, lr=rate) for rate in (0.01, 0.02, 0.03)]
    bad = config_of(file, alpha=1e-9)
    failures = compute([good[0], bad, *good[1:]], Store(tmp_path))
    assert list(failures) == [identity(bad)]
    assert "alpha must be a positive number" in failures[identity(bad)]
    assert all(Store(tmp_path).cell(config) is not None for config in good)


def test_cells_that_share_a_program_are_as_each_alone(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [config_of(file, lr=rate, seed=seed) for rate in (0.01, 0.1) for seed in (0, 7)]
    compiled: list[int] = []
    program_of = simulation.program_of
    monkeypatch.setattr(runner, "program_of", lambda *a: (compiled.append(1), program_of(*a))[1])
    together, apart = Store(tmp_path / "together"), Store(tmp_path / "apart")
    compute(configs, together)
    assert len(compiled) == 1
    for config in configs:
        compute([config], apart)
        assert numbers(together, config) == numbers(apart, config)


def test_a_cell_pauses_and_goes_on(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(file, rounds=6, eval_every=2, lr_schedule="cosine")  # which depends on all rounds
    whole, parts = Store(tmp_path / "whole"), Store(tmp_path / "parts")
    compute([config], whole)
    rounds: list[tuple[int, int]] = []
    advance = simulation.Program.advance
    monkeypatch.setattr(
        simulation.Program, "advance", lambda *a: (rounds.append((int(a[3]), int(a[4]))), advance(*a))[1]
    )
    compute([config], parts, until=2)
    paused = parts.cell(config, until=2)
    assert paused is not None
    assert paused["rounds"] == [2]
    assert paused["results"][0]["rounds"] == 2
    assert parts.cell(config) is None
    compute([config], parts, until=2)  # is there already
    compute([config], parts)
    assert rounds == [(0, 2), (2, 4), (4, 6)]
    assert numbers(parts, config) == numbers(whole, config)
    assert not (tmp_path / "parts/unfinished").exists()


@pytest.mark.slow
def test_cells_computed_at_once_pause_and_go_on(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: three cells in one call; then one of them, and then the other two, from where they were."""
    configs = [config_of(file, rounds=4, eval_every=2, lr=rate) for rate in (0.01, 0.05, 0.1)]
    alone, together = Store(tmp_path / "alone"), Store(tmp_path / "together")
    compute(configs, alone)
    monkeypatch.setattr(runner, "_at_once", lambda: True)
    monkeypatch.setattr(simulation, "_batched", lambda: True)
    calls: list[tuple[int, int, int]] = []
    advance = simulation.Program.advance
    monkeypatch.setattr(
        simulation.Program, "advance",
        lambda *a: (calls.append((a[1].size.shape[0], int(a[3]), int(a[4]))), advance(*a))[1],
    )  # fmt: skip
    compute(configs, together, until=2)
    compute(configs[1:2], together)
    compute(configs, together)
    assert calls == [(3, 0, 2), (1, 2, 4), (2, 2, 4)]
    for config in configs:
        for one, other in zip(numbers(alone, config), numbers(together, config), strict=True):
            assert one["curve"] == pytest.approx(other["curve"], abs=1.01)  # 200 test samples: two may flip


def test_a_smaller_unit_is_filled_rather_than_compiled_for(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [config_of(file, lr=rate) for rate in (0.01, 0.02, 0.03, 0.04, 0.05)]
    alone, together = Store(tmp_path / "alone"), Store(tmp_path / "together")
    compute(configs, alone)
    monkeypatch.setattr(runner, "_at_once", lambda: True)
    monkeypatch.setattr(simulation, "_batched", lambda: True)
    monkeypatch.setattr(runner, "MOST_RUNS", 3)
    compiled: list[int] = []
    program_of = simulation.program_of
    monkeypatch.setattr(runner, "program_of", lambda *a: (compiled.append(len(a[0])), program_of(*a))[1])
    assert compute(configs, together) == {}
    assert compiled == [3]
    for config in configs:
        for one, other in zip(numbers(alone, config), numbers(together, config), strict=True):
            assert one["curve"] == pytest.approx(other["curve"], abs=1.01)


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
