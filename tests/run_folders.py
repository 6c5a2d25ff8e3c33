"""Run folders with numbers that are easy to check, made without running anything."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedgen.config import RunConfig, resolve
from fedgen.runs.folder import RunFolder
from fedgen.runs.scores import Record, result, table
from fedgen.version import __version__

DEVICE = {"platform": "cpu", "kind": "cpu", "count": 2, "jax": "0.10.0"}
# How well each algorithm does after all rounds; seed s adds s.
LEVEL = {"fedavg": 80.0, "fedgen": 84.0, "fedprox": 79.5, "feddistill": 30.0}


def evaluations(config: RunConfig, algorithm: str, seed: int, rounds: int | None = None) -> list[Record]:
    """Accuracies that rise in proportion to the rounds, to the algorithm's level plus the seed."""
    records = []
    for round in range(config.eval_every, (rounds or config.rounds) + 1, config.eval_every):
        value = (LEVEL[algorithm] + seed) * round / config.rounds
        local = algorithm == "feddistill"
        records.append(
            {
                "algorithm": algorithm, "seed": seed, "round": round,
                "accuracy": None if local else value, "accuracy_seen_labels": value + 1,
                "accuracy_users": value if local else None, "accuracy_matching": value + 2, "train_loss": 1 / round,
            }
        )  # fmt: skip
    return records


def run_folder(path: Path, *, stop: int | None = None, diverges: str = "", **settings: Any) -> Path:
    """A finished run, or one that stopped in its last algorithm and seed after `stop` rounds."""
    layer = {"algorithms": ["fedavg", "fedgen"], "seeds": 2, "rounds": 20, "eval_every": 2, "users": 4, "active": 2}
    config = resolve({**layer, **{key.replace("__", "."): value for key, value in settings.items()}})
    with RunFolder.create(path, config) as folder:
        _write(folder, config, stop, diverges)
    return path


def _write(folder: RunFolder, config: RunConfig, stop: int | None, diverges: str) -> None:
    folder.write_labels({seed: np.array([[5, 0], [0, 7], [3, 3], [1, 120]]) for seed in config.run_seeds})
    results = []
    pairs = [(algorithm, seed) for algorithm in config.algorithms for seed in config.run_seeds]
    for algorithm, seed in pairs:
        last = stop if (algorithm, seed) == pairs[-1] else None
        good = evaluations(config, algorithm, seed, 10 if algorithm == diverges else last)
        ended = (
            [{"algorithm": algorithm, "seed": seed, "round": 12, "diverged_at": 11}] if algorithm == diverges else []
        )
        for record in good + ended:
            folder.append(record)
        about = {
            "algorithm": algorithm,
            "seed": seed,
            "rounds": 11 if ended else 20,
            "diverged_at": 11 if ended else None,
        }
        costs = {"seconds_compile": 1.0, "seconds_train": 3.5, "bytes_up": 1_000_000, "bytes_down": 2_000_000}
        results.append({**about, **result(good, config.rounds), **costs})
    if stop is None:
        folder.write_summary(
            {
                "version": __version__, "config": config.model_dump(mode="json"), "device": DEVICE,
                "results": results, "table": table(results, config.score),
            }
        )  # fmt: skip


def summary_of(path: Path) -> dict[str, Any]:
    return RunFolder(path).summary()


def records_of(path: Path) -> list[Record]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
