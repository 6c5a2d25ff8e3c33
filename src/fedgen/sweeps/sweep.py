"""A sweep as one function call, for use from Python."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fedgen.data.dataset import Dataset
from fedgen.given import given
from fedgen.grid.runner import Material, default_jobs
from fedgen.report.markdown import markdown
from fedgen.sweeps.outcome import SweepWatch
from fedgen.sweeps.request import FINAL_SEEDS, FIRST_SEED, KEEP, SEEDS, Request
from fedgen.sweeps.results import Results, best_of
from fedgen.sweeps.run import run_sweep
from fedgen.sweeps.tables import best_table


@dataclass(frozen=True)
class Sweep:
    """What a sweep found."""

    results: Results  # what sweep.json holds, a dictionary

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each configuration, the best of each algorithm first: `pandas.DataFrame(sweep.table)`."""
        return [
            {
                "algorithm": one["algorithm"],
                **entry["settings"],
                **{key: entry[key] for key in ("rank", "mean", "std", "rounds", "stopped_early")},
                "diverged": bool(entry["diverged_at"]),
            }
            for one in self.results["algorithms"]
            for entry in one["configurations"]
        ]

    @property
    def best(self) -> dict[str, dict[str, Any]]:
        """The best settings of each algorithm; without those of which none is left."""
        return {name: dict(entry["settings"]) for name, entry in best_of(self.results).items() if entry}

    @property
    def final(self) -> list[dict[str, Any]]:
        """The best of each algorithm on the test set: mean, std, and the difference to FedAvg."""
        return list((self.results["final"] or {"table": []})["table"])

    def __repr__(self) -> str:
        """The best of each algorithm, as a table."""
        return "\n".join([*markdown(best_table(self.results)), *self.results["notes"]])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def sweep(
    algorithms: str | Sequence[str] = ("fedgen", "fedavg"),
    *,
    over: Mapping[str, Sequence[Any] | str],
    method: str | None = None,
    trials: int = 0,
    keep: int = KEEP,
    seeds: int = SEEDS,
    seed: int = FIRST_SEED,
    final_seeds: int = FINAL_SEEDS,
    data: Dataset | str | Path | None = None,
    model: Any = None,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    watch: SweepWatch | None = None,
    **settings: Any,
) -> Sweep:
    """Choose settings on held-out samples, and test the chosen ones with other seeds, as `fedgen sweep` does.

    Args:
        algorithms: As in `fedgen.simulate`.
        over: The values to try, `{"lr": [0.01, 0.1], "fedgen.w": [0.1, 1]}`, or ranges to draw from,
            `{"lr": "0.001..0.3:log"}`.
        method: `"grid"` (every combination), `"random"` (`trials` of them) or `"halving"`. Default: grid, or random
            where there are `trials`.
        trials: How many configurations of each algorithm are drawn.
        keep: With halving, one in so many goes on.
        seeds: How many repetitions configurations are compared by.
        seed: The first of these seeds.
        final_seeds: How many repetitions, with other seeds, the best are tested with; 0 leaves the test out.
        data: As in `fedgen.simulate`.
        model: As in `fedgen.simulate`.
        options: As in `fedgen.simulate`.
        out: A folder. What is computed is kept there, and the same call goes on with it.
        watch: Gets each configuration's outcome as it comes.
        **settings: Those of all runs: `rounds=50`, `alpha=0.1`.

    Returns:
        The best settings of each algorithm, a row for each configuration, and the final test.
    """
    layer: dict[str, Any] = {"algorithms": [algorithms] if isinstance(algorithms, str) else list(algorithms)}
    layer |= {"seeds": seeds, "seed": seed, **settings, **(options or {})}
    mine = given(data, model)
    request = Request.of(
        {**layer, **mine.layer},
        [f"{key}={_text(values)}" for key, values in over.items()],
        method=method,
        trials=trials,
        keep=keep,
        final_seeds=final_seeds,
        own=mine.own,
    )
    material = Material(mine.data, mine.model)
    if out is not None:
        return Sweep(run_sweep(request, Path(out), jobs=default_jobs(), watch=watch, material=material))
    with tempfile.TemporaryDirectory(prefix="fedgen-sweep-") as folder:
        place = Path(folder) / "sweep"
        return Sweep(run_sweep(request, place, jobs=default_jobs(), watch=watch, material=material))


def _text(values: Sequence[Any] | str) -> str:
    """Values as they are written for the command."""
    if isinstance(values, str):
        return values
    return ",".join(_word(value) for value in values)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return f"[{','.join(map(_word, value))}]" if isinstance(value, list | tuple) else repr(value)
