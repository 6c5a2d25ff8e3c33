"""Results of a reproduction whose cells are made up, put together by the project's own code."""

import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedgen.config import RunConfig
from fedgen.grid.store import Store, identity
from fedgen.paper.assemble import assemble
from fedgen.paper.reproduce import Request
from fedgen.paper.results import FORMAT, Results, write_results
from fedgen.paper.search import best_of_each
from fedgen.paper.spec import experiment
from fedgen.runs.scores import Record, result
from fedgen.version import __version__

DEVICE = {"platform": "gpu", "kind": "NVIDIA H200", "count": 1, "jax": "0.10.0"}
DATA: Any = SimpleNamespace(y_train=np.zeros(60_000), y_test=np.zeros(10_000), classes=10)


def made_up(config: RunConfig) -> dict[str, Any]:
    """A summary with plausible curves that depend on nothing but the configuration."""
    algorithm = config.algorithms[0]
    draw = np.random.default_rng(zlib.crc32(identity(config).encode()))
    level = 92 + 3 * draw.random() if algorithm != "feddistill" else 40.0
    results: list[Record] = []
    for seed in config.run_seeds:
        top = level + draw.normal(0, 0.5)
        records = []
        for round in range(config.eval_every, config.rounds + 1, config.eval_every):
            value = float(top * (1 - 0.8 * np.exp(-round / 15)) + draw.normal(0, 0.4))
            own = algorithm == "feddistill"
            scores = {"accuracy": None if own else value, "accuracy_users": value if own else None}
            records.append({"round": round, **scores, "accuracy_seen_labels": value + 2, "accuracy_matching": value})
        costs = {"seconds_compile": 1.0, "seconds_train": 5.0, "bytes_up": 1_200_000, "bytes_down": 1_100_000}
        about = {"algorithm": algorithm, "seed": seed, "rounds": config.rounds, "diverged_at": None}
        results.append({**about, **result(records, config.rounds), **costs})
    return {
        "version": __version__, "device": DEVICE, "config": config.model_dump(mode="json"), "results": results,
    }  # fmt: skip


def reproduce(
    folder: Path, name: str, *, missing: int = 0, failed: int = 0, cells: bool = True, **options: Any
) -> Results:
    """An experiment's results from made-up cells; the last ones may be missing or failed."""
    request = Request.of(experiment(name), **options)
    configs = request.configs()
    store = Store(folder)
    present: dict[str, Any] = {}
    unique = {identity(config): config for config in configs.values()}
    for number, (cell, config) in enumerate(unique.items()):
        if number < len(unique) - missing - failed:
            present[cell] = store.keep(config, made_up(config), DATA)
    failures = dict.fromkeys(list(unique)[len(unique) - failed :], "out of memory") if failed else {}
    times = {c.name: [1 + i / 10, 1.02 + i / 10] for i, c in enumerate(request.experiment.columns)}
    results = assemble(
        request.grid, configs, present, failures, preset=request.preset, quick=request.quick,
        times=times if request.experiment.metric == "time" else None,
    )  # fmt: skip
    if request.experiment.trials:
        results, _ = best_of_each(request.experiment, results, configs)
    write_results(folder, results)
    if not cells:
        for path in store.cells.iterdir():
            path.unlink()
    return results


def prototype_result() -> dict[str, Any]:
    """What the prototype leaves, made up: one user, two labels, regions of two by two."""
    accuracy = {name: {"mean": [80.0], "std": [1.0]} for name in ("before", "after", "control")}
    accuracy |= {name: {"mean": 90.0, "std": 1.0} for name in ("average", "ensemble", "oracle")}
    user = {"x": [[-1.0, 1.0], [1.0, -1.0], [0.5, -0.5]], "y": [0, 1, 1]}
    regions = {name: [["01", "00"]] for name in ("before", "after", "average", "oracle")}
    stages = [{"steps": steps, "recognised": 50.0, **user} for steps in (0, 250, 500)]
    shown = {"before": [80.0], "after": [85.0], "average": 90.0, "oracle": 98.0}
    pictures = {
        "seed": 0, "accuracy": shown, "extent": [-2.0, 2.0, -2.0, 2.0], "wide_extent": [-8.0, 8.0, -8.0, 8.0],
        "users": [user], "regions": regions, "wide_regions": {"oracle": [["11", "11"]]}, "samples": stages,
    }  # fmt: skip
    return {
        "quick": False, "seeds": [0], "settings": {"labels_of_users": [[0, 1]]}, "published": {"before": [97.1]},
        "notes": ["The `control` is ours."], "accuracy": accuracy, "pictures": pictures,
        "ways": [{"generator_lr": 1e-4, "eta": 1.0, "after": {"mean": [82.84], "std": None}}],
    }  # fmt: skip


def prototype_table(folder: Path) -> None:
    """The file of a prototype with made-up results."""
    head = {"format": FORMAT, "experiment": "prototype", "title": "The prototype", "about": "In the plane."}
    result = prototype_result()
    rest = {
        "preset": "paper",
        "quick": False,
        "overrides": {},
        "versions": [__version__],
        "notes": ["A caveat.", *result["notes"]],
    }
    write_results(folder, {**head, **rest, "prototype": result})
