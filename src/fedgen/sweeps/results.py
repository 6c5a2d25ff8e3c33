"""What a sweep found, as `sweep.json` has it: every configuration with its scores and rank, and the final runs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.files import read_json, write_whole
from fedgen.grid.store import rounded
from fedgen.runs.scores import Record, mean_interval, table
from fedgen.sweeps.outcome import Outcome
from fedgen.sweeps.request import Request, label_of
from fedgen.sweeps.search import rungs
from fedgen.sweeps.space import Axis, Values
from fedgen.version import __version__

FORMAT = 1
FILE = "sweep.json"
Results = dict[str, Any]


@dataclass(frozen=True)
class Finals:
    """The runs of the best on the test set."""

    seeds: tuple[int, ...]
    results: Sequence[Record]
    cells: Mapping[str, Sequence[str]]  # by algorithm
    failures: Sequence[str] = ()


def assemble(request: Request, found: Mapping[str, Sequence[Outcome]], finals: Finals | None) -> Results:
    """All that is known after the search, and after the final runs; the same cells give the same bytes."""
    trials = {name: [outcome.trial for outcome in outcomes] for name, outcomes in found.items()}
    config = next(iter(trials.values()))[0].config
    steps = rungs(request, trials)
    rounds = max(trial.config.rounds for some in trials.values() for trial in some)
    algorithms = [_algorithm(request, name, outcomes) for name, outcomes in found.items()]
    return {
        "format": FORMAT,
        "version": __version__,
        "method": request.method,
        "over": list(request.over),
        "trials": request.trials,
        "keep": request.keep,
        "seeds": list(request.run_seeds),
        "rounds": rounds,
        "rungs": [until or rounds for until in steps],
        "score": config.score,
        "heading": {key: config.model_dump(mode="json")[key] for key in ("dataset", "partition", "alpha", "preset")},
        "settings": dict(request.settings),
        "algorithms": algorithms,
        "notes": [*_budgets(request, algorithms), *_findings(request, algorithms)],
        "final": None if finals is None else _final(finals, config.score),
    }


def write_results(folder: Path, results: Results) -> None:
    """Write `sweep.json`."""
    write_whole(folder / FILE, (json.dumps(results, indent=1, allow_nan=False) + "\n").encode())


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds the results of a sweep."""
    return (folder / FILE).exists()


def read_results(folder: Path) -> Results:
    """The results in the folder of a sweep."""
    results = read_json(folder / FILE, "run the sweep again with this --out: what is computed is kept")
    if results.get("format") != FORMAT:
        raise FedgenError(
            f"{folder / FILE} has format {results.get('format')} and this is version {__version__}, which reads"
            f" {FORMAT}; run the sweep again with this --out"
        )
    return results


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds in words."""
    return f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"


def best_of(results: Results) -> dict[str, Mapping[str, Any] | None]:
    """The best configuration of each algorithm; None where all diverged or failed."""
    return {
        one["algorithm"]: next((entry for entry in one["configurations"] if entry["mean"] is not None), None)
        for one in results["algorithms"]
    }


def _algorithm(request: Request, name: str, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    best = outcomes[0]
    return {
        "algorithm": name,
        "tried": len(outcomes),
        "rounds": sum(outcome.rounds for outcome in outcomes) * request.seeds,
        "configurations": [_entry(outcome, 1 + _ahead(outcome, outcomes), best) for outcome in outcomes],
    }


def _ahead(outcome: Outcome, outcomes: Sequence[Outcome]) -> int:
    """How many did better: equal ones share a rank."""
    return sum(other.order < outcome.order for other in outcomes)


def _entry(outcome: Outcome, rank: int, best: Outcome) -> dict[str, Any]:
    return {
        "number": outcome.trial.number,
        "rank": rank,
        "settings": outcome.trial.settings,
        "label": outcome.trial.label,
        "mean": rounded(outcome.mean),
        "std": rounded(outcome.std),
        "scores": {str(seed): rounded(score) for seed, score in outcome.scores.items()},
        "to_best": _to_best(outcome, best),
        "rounds": outcome.rounds,
        "stopped_early": outcome.rounds < outcome.trial.config.rounds,
        "diverged_at": {str(seed): round for seed, round in outcome.diverged.items()},
        "failed": outcome.failed,
        "rungs": [[rounds, rounded(mean)] for rounds, mean in outcome.history],
        "cells": list(outcome.cells),
    }


def _to_best(outcome: Outcome, best: Outcome) -> dict[str, Any] | None:
    """The difference to the best, paired by seed, where both had the same rounds."""
    if outcome is best or outcome.mean is None or best.mean is None or outcome.rounds != best.rounds:
        return None
    pairs = [(value, best.scores[seed]) for seed, value in outcome.scores.items()]
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    return {"mean": rounded(sum(differences) / len(differences)), "interval": rounded(mean_interval(differences))}


def _final(finals: Finals, score: str) -> dict[str, Any]:
    return {
        "seeds": list(finals.seeds),
        "table": rounded(table(finals.results, score)),
        "cells": {name: list(cells) for name, cells in finals.cells.items()},
        "failed": list(finals.failures),
    }


def _budgets(request: Request, algorithms: Sequence[Mapping[str, Any]]) -> list[str]:
    """Whether all algorithms had the same number of configurations, and if not, how they could."""
    tried = {one["algorithm"]: one["tried"] for one in algorithms}
    if len(tried) < 2:
        return []
    if len(set(tried.values())) == 1:
        return [f"Equal budgets: {next(iter(tried.values()))} configurations of each algorithm."]
    counted = ", ".join(f"{number} of {name}" for name, number in tried.items())
    return [
        f"Unequal budgets: {counted}. Who tries more finds more; `--trials {min(tried.values())}` gives each as many."
    ]


def _findings(request: Request, algorithms: Sequence[Mapping[str, Any]]) -> list[str]:
    """What to know before the best configuration is trusted."""
    notes = []
    for one in algorithms:
        name, entries = one["algorithm"], one["configurations"]
        good = [entry for entry in entries if entry["mean"] is not None]
        diverged = sum(bool(entry["diverged_at"]) for entry in entries)
        if diverged:
            notes.append(f"{name}: a seed diverged in {diverged} of {len(entries)} configurations; these rank last.")
        for reason in dict.fromkeys(entry["failed"] for entry in entries if entry["failed"]):
            notes.append(f"{name}: {sum(entry['failed'] == reason for entry in entries)} failed ({reason}).")
        if not good:
            notes.append(f"{name}: no configuration is left.")
            continue
        tied = [entry["label"] for entry in good if entry["rank"] == 1]
        if len(tied) > 1:
            notes.append(f"{name}: equally good are {'; '.join(tied)}. The first is taken.")
        if good[0]["stopped_early"]:
            notes.append(f"{name}: all that went further than {label_of(name, good[0]['settings'])} diverged.")
        for axis in request.axes(name):
            value = good[0]["settings"][axis.key]
            if end := _end(axis, value):
                key, further = axis.key.removeprefix(f"{name}."), end.replace("est", "er")
                notes.append(
                    f"{name}: the best {key}, {value:g}, is the {end} that was tried: a {further} one may be better."
                )
    return notes


def _end(axis: Axis, value: Any) -> str:
    """Whether a value is at an end of those that were tried."""
    if not isinstance(axis, Values) or len(axis.values) < 2:
        return ""
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in axis.values):
        return ""
    return "largest" if value == max(axis.values) else "smallest" if value == min(axis.values) else ""
