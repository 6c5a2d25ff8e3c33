"""From the request of an experiment to its cells, and from these to its results."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from fedgen.config import RunConfig
from fedgen.errors import FedgenError
from fedgen.grid.store import Store, identity
from fedgen.paper.assemble import assemble
from fedgen.paper.prototype import prototype
from fedgen.paper.results import FORMAT, Results, results_like, write_results
from fedgen.paper.search import best_of_each, write_choices
from fedgen.paper.spec import Experiment, chosen, expanded
from fedgen.paper.theory import theory
from fedgen.paper.timing import local_training_times
from fedgen.runs.division import divide_all, load_dataset
from fedgen.version import __version__

QUICK = {"rounds": 10, "seeds": 1}
PROTOTYPE_SEEDS = 10


@dataclass(frozen=True)
class Request:
    """An experiment with the rows, columns, preset and settings it is to be run with."""

    experiment: Experiment  # with the chosen rows and columns only
    whole: Experiment
    preset: str
    quick: bool
    overrides: Mapping[str, Any]
    data_dir: str

    @classmethod
    def of(
        cls,
        experiment: Experiment,
        *,
        preset: str = "",
        quick: bool = False,
        rows: tuple[str, ...] = (),
        columns: tuple[str, ...] = (),
        overrides: Mapping[str, Any] | None = None,
        data_dir: str = "",
    ) -> "Request":
        """Check the request against what the experiment offers."""
        if preset and preset not in experiment.presets:
            raise FedgenError(
                f"experiment {experiment.name} has no preset '{preset}'; valid: {', '.join(experiment.presets)}"
            )
        some = chosen(experiment, rows, columns, quick=quick)
        return cls(some, experiment, preset or experiment.presets[0], quick, dict(overrides or {}), data_dir)

    @property
    def grid(self) -> Experiment:
        """The experiment as a grid of cells."""
        return expanded(self.experiment)

    @property
    def layers(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings that go below and above what the experiment says."""
        weak = {"preset": self.preset, **({"data_dir": self.data_dir} if self.data_dir else {})}
        return weak, {**(QUICK if self.quick else {}), **self.overrides}

    def configs(self) -> dict[tuple[str, str], RunConfig]:
        """The configuration of each cell, by row and column."""
        grid = self.grid
        return {
            (row.name, column.name): grid.config(row, column, *self.layers)
            for row in grid.rows
            for column in grid.columns
        }


def finish(request: Request, store: Store, failures: Mapping[str, str]) -> Results:
    """Make the experiment's results from its cells, and write them."""
    kind = request.experiment.kind
    before = results_like(store.folder, _head(request))
    request = _with_finished(request, store)
    if kind == "prototype":
        seeds = range(QUICK["seeds"] if request.quick else PROTOTYPE_SEEDS)
        results = before or _prototype(request, prototype(seeds=seeds, quick=request.quick))
    elif kind == "theory":
        (row,) = request.whole.rows
        results = before or _head(request) | {"theory": theory(request.whole.config(row, None, *request.layers))}
    elif kind == "labels":
        results = _head(request) | {"labels": _label_counts(request)}
    else:
        configs = request.configs()
        cells = {identity(config): store.cell(config) for config in configs.values()}
        present = {name: cell for name, cell in cells.items() if cell is not None}
        times = _times(request, configs, before) if request.experiment.metric == "time" and present else None
        try:
            results = assemble(
                request.grid,
                configs,
                present,
                failures,
                preset=request.preset,
                quick=request.quick,
                overrides=request.overrides,
                times=times and times["ratios"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FedgenError(
                f"a cell of {request.experiment.name} in {store.cells} is damaged ({type(error).__name__}: {error});"
                " delete it to compute it again"
            ) from error
        if times is not None:
            results["times"] = times
            results["notes"].append(f"The times are medians over repeats on one device: {times['device']}.")
        if request.experiment.trials:
            results, found = best_of_each(request.experiment, results, configs)
            if not request.quick:
                write_choices(store.folder, found)
    write_results(store.folder, results)
    return results


def _with_finished(request: Request, store: Store) -> Request:
    """The request with the rows and columns computed before, so that choosing some takes none from the table."""
    every = replace(request, experiment=request.whole)
    there = {place for place, config in every.configs().items() if store.cell(config) is not None}
    rows = {row.name for row in request.experiment.rows} | {row for row, _ in there}
    columns = {column.name for column in request.experiment.columns} | {
        name.rpartition("-")[0] if request.whole.trials else name for _, name in there
    }
    return replace(request, experiment=chosen(request.whole, tuple(rows), tuple(columns)))


def _head(request: Request) -> Results:
    experiment = request.experiment
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        "title": experiment.title,
        "about": experiment.about,
        "preset": request.preset,
        "quick": request.quick,
        "overrides": dict(request.overrides),
        "versions": [__version__],
        "notes": list(experiment.notes),
    }


def _prototype(request: Request, result: Mapping[str, Any]) -> Results:
    head = _head(request)
    return head | {"notes": [*head["notes"], *result["notes"]], "prototype": dict(result)}


def _times(request: Request, configs: Mapping[tuple[str, str], RunConfig], before: Results | None) -> dict[str, Any]:
    """Measured once: a measurement on a busy machine should not replace one on a quiet machine unasked."""
    by_column = {column: config for (_, column), config in configs.items()}
    if before is not None and set(before.get("times", {}).get("ratios", ())) == set(by_column):
        return dict(before["times"])
    dataset = load_dataset(by_column[request.experiment.baseline])
    ratios = local_training_times(by_column, dataset, request.experiment.baseline)
    rounded = {column: [round(ratio, 4) for ratio in values] for column, values in ratios.items()}
    return {"device": jax.devices()[0].device_kind, "ratios": rounded}


def _label_counts(request: Request) -> list[dict[str, Any]]:
    """For each row the counts [user][label] of the first seed."""
    panels = []
    dataset = None
    for row in request.experiment.rows:
        config = request.experiment.config(row, None, {"preset": request.preset}, {})
        dataset = dataset or load_dataset(config)
        labels = divide_all(config, dataset)[config.seed].labels
        panels.append({"name": row.name, "label": row.label, "counts": labels.tolist()})
    return panels
