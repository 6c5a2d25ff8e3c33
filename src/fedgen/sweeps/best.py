"""The best configurations as a file for `fedgen run --config`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedgen.config import PER_ALGORITHM, RunConfig, resolve, to_toml
from fedgen.files import write_whole
from fedgen.registry import file_name
from fedgen.sweeps.request import FINAL, Request
from fedgen.sweeps.results import Results, best_of, seeds_text


def write_best(folder: Path, request: Request, results: Results) -> list[Path]:
    """Write `best.toml`; the paths that were written.

    A setting that a run has for all its algorithms (batch_size) may be best at different values for them: then each
    algorithm gets its own file, `best-NAME.toml`.
    """
    for path in folder.glob("best*.toml"):
        path.unlink()
    best = {name: entry["settings"] for name, entry in best_of(results).items() if entry is not None}
    files = {"best.toml": best}
    if len({repr(_common(name, settings)) for name, settings in best.items()}) > 1:
        files = {f"best-{file_name(name)}.toml": {name: settings} for name, settings in best.items()}
    paths = []
    for name, chosen in files.items():
        if chosen:
            paths.append(folder / name)
            write_whole(paths[-1], (_about(results, chosen) + to_toml(best_config(request, chosen))).encode())
    return paths


def best_config(request: Request, chosen: Mapping[str, Mapping[str, Any]]) -> RunConfig:
    """A run of these algorithms, each with its own settings, on the test set with the final seeds."""
    seeds = max(request.final_seeds, 1)
    layer = {"algorithms": list(chosen), "seed": 0, "seeds": seeds, **FINAL}
    for name, settings in chosen.items():
        common = _common(name, settings)
        layer |= common
        layer |= {k if "." in k else f"{name}.{k}": v for k, v in settings.items() if k not in common}
    return resolve(request.settings, layer, own=request.own)


def _common(algorithm: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a run has for all its algorithms."""
    return {
        key: value
        for key, value in settings.items()
        if key not in PER_ALGORITHM and not key.startswith(f"{algorithm}.")
    }


def _about(results: Results, chosen: Mapping[str, Any]) -> str:
    counts = {one["algorithm"]: one["tried"] for one in results["algorithms"]}
    tried = ", ".join(f"{counts[name]} of {name}" for name in chosen)
    seeds = seeds_text(results["seeds"])
    return (
        f"# The best of the configurations that were tried ({tried}), by their mean over {seeds}\n"
        "# on held-out training samples. `fedgen run --config` with this file trains and tests them.\n"
    )
