"""A sweep from its request to its folder: the search, the final runs, and the files that tell of them."""

from collections.abc import Mapping
from pathlib import Path

from fedgen.grid.runner import Material, compute
from fedgen.grid.store import Store, cell_name, identity
from fedgen.report.chart_files import save_charts
from fedgen.report.page import write_page
from fedgen.simulator.setup import prepare_together
from fedgen.sweeps.best import write_best
from fedgen.sweeps.identity import identified
from fedgen.sweeps.outcome import Outcome, SweepWatch
from fedgen.sweeps.page import page_of
from fedgen.sweeps.request import Request
from fedgen.sweeps.results import Finals, Results, assemble, is_sweep, write_results
from fedgen.sweeps.search import Trials, search


def run_sweep(
    request: Request,
    folder: Path,
    *,
    jobs: int = 1,
    watch: SweepWatch | None = None,
    material: Material | None = None,
) -> Results:
    """Do what a sweep was asked for, or what is left of it, and write its folder; gives what sweep.json holds."""
    watch, material = watch or SweepWatch(), material or Material()
    trials = request.all_trials()
    _check(request, trials, material)  # before the folder is made, so that a mistake leaves none
    request = identified(request, next(iter(trials.values()))[0].config, material)
    request.write(folder)
    store = Store(folder)
    found = search(request, trials, store, jobs=jobs, watch=watch, material=material)
    best = {name: outcomes[0] for name, outcomes in found.items() if outcomes[0].mean is not None}
    if request.final_seeds and best:
        if not is_sweep(folder):  # so that the choice can be used meanwhile
            results = assemble(request, found, None)
            write_results(folder, results)
            write_best(folder, request, results)
        finals = _finals(request, best, store, jobs, watch, material)
    else:
        finals = None
    results = assemble(request, found, finals)
    write_results(folder, results)
    write_best(folder, request, results)
    page = page_of(folder)
    write_page(page, folder / "report.html")
    save_charts(page, folder / "figures")
    return results


def _check(request: Request, trials: Trials, material: Material) -> None:
    """Raise now what is wrong with the data or with an algorithm's settings, in the search or on the test set."""
    for some in trials.values():
        config = some[0].config
        prepare_together([config, *request.finals(some[0])[:1]], material.dataset(config), material.model)


def _finals(
    request: Request, best: Mapping[str, Outcome], store: Store, jobs: int, watch: SweepWatch, material: Material
) -> Finals:
    """The best of each algorithm on the test set, with seeds that nothing was chosen by."""
    configs = {name: request.finals(outcome.trial) for name, outcome in best.items()}
    every = [config for some in configs.values() for config in some]
    watch.stage("the best on test", len(every), sum(store.cell(config) is not None for config in every))
    failures = compute(every, store, jobs=jobs, watch=watch, material=material)
    rows = [row for config in every if (cell := store.cell(config)) for row in cell["results"]]
    reasons = [
        f"{c.algorithms[0]}, final seed {c.seed}: {failures[i]}" for c in every if (i := identity(c)) in failures
    ]
    cells = {name: [cell_name(config, None) for config in some] for name, some in configs.items()}
    return Finals(tuple(range(request.final_seeds)), rows, cells, reasons)
