"""The command `fedgen reproduce`: the paper's tables and figures, ours beside the published."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Grid

from fedgen.cli.display import CellsDisplay
from fedgen.cli.interrupts import raise_again
from fedgen.config import RunConfig
from fedgen.errors import FedgenError, unknown

if TYPE_CHECKING:
    from fedgen.grid.estimate import Amount

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def reproduce(
    names: Annotated[list[str], typer.Argument(help="Experiments, or: all, list (what there is), page (a Markdown page of what --out holds).")],
    preset: Annotated[str, typer.Option(help="paper, reference or tuned; an experiment's own columns may say more.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A small version for a first look: few rows and columns, 10 rounds, one seed, marked as such everywhere.")] = False,
    row: Annotated[list[str] | None, typer.Option(help="Only this row (repeat for several, or 'mnist-*').")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only this column, and the one that differences are taken to (repeat for several).")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions instead of the experiment's own.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds instead of the experiment's own.")] = None,
    data_dir: Annotated[str, typer.Option(help="The folder with EMNIST's and CelebA's files, each in a folder of its name.")] = "",
    jobs: Annotated[int, typer.Option(min=0, help="Programs compiled at a time. Default: 1 on a CPU, half the cores with a GPU.")] = 0,
    part: Annotated[str, typer.Option(help="K/N: only the K-th of N shares of the cells, so that several processes or machines can fill one --out; then run it without to make the tables.")] = "1/1",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much there is to compute.")] = False,
    compute_missing: Annotated[bool, typer.Option("--compute/--no-compute", help="Compute what --out lacks, or only make the tables of what is there.")] = True,
    out: Annotated[Path, typer.Option(help="The folder of the results; what is finished there is not computed again.")] = Path("runs/reproduction"),
    page: Annotated[Path | None, typer.Option(help="Also write the Markdown page of all that --out holds.")] = None,
) -> None:  # fmt: skip
    """Reproduce a table or figure of the paper, with our numbers beside the published ones.

    NAMES are experiments (`fedgen reproduce list` shows them), or one of: all; list; page, a Markdown page of what
    --out holds. Stop it at any time: finished cells are kept in --out, and the same command goes on from there.
    """
    from fedgen.grid.estimate import estimate
    from fedgen.grid.runner import compute, default_jobs
    from fedgen.grid.store import Store, identity
    from fedgen.paper.figures import draw
    from fedgen.paper.markdown_page import write_page
    from fedgen.paper.reproduce import Request, finish
    from fedgen.paper.spec import experiment, experiments
    from fedgen.paper.tables import terminal_tables
    from fedgen.simulator.devices import check_devices, use_machine_well
    from fedgen.simulator.run import Interrupted

    raise_again()
    if names == ["list"]:
        _list()
        return
    store = Store(out)
    if names == ["page"]:
        write_page(out, page or Path("results.md"))
        console.print(f"written: {escape(str(page or 'results.md'))}")
        return
    for word in ("all", "list", "page"):
        if word in names and len(names) > 1:
            raise FedgenError(f"'{word}' stands alone: fedgen reproduce {word}")
    chosen = list(experiments().values()) if names == ["all"] else [experiment(name) for name in dict.fromkeys(names)]
    overrides = {key: value for key, value in (("seeds", seeds), ("rounds", rounds)) if value is not None}
    requests = [
        Request.of(
            one, preset=preset, quick=quick, rows=tuple(row or ()), columns=tuple(column or ()), overrides=overrides,
            data_dir=data_dir,
        )
        for one in chosen
        if names != ["all"] or not preset or preset in one.presets
    ]  # fmt: skip
    if not requests:
        raise unknown("preset", preset, {known for one in chosen for known in one.presets})
    use_machine_well()
    check_devices()
    if quick:
        errors.print("[yellow]quick:[/yellow] few rows and columns, 10 rounds, one seed: a look, not a result")
    share = _share(part)
    configs = {identity(config): config for request in requests for config in request.configs().values()}
    missing = [config for config in configs.values() if store.cell(config) is None]
    if dry_run:
        whole = [request.experiment.name for request in requests if request.experiment.kind != "grid"]
        _tell(estimate(configs.values(), missing), whole)
        return
    failures: dict[str, str] = {}
    if missing and compute_missing:
        with _Display(len(configs), len(configs) - len(missing)) as display:
            try:
                failures = compute(configs.values(), store, jobs=jobs or default_jobs(), part=share, watch=display)
            except Interrupted:
                display.stop()
                errors.print("interrupted; what is finished is kept: the same command goes on from there")
                raise typer.Exit(130) from None
    for request in requests if share[1] == 1 else ():
        results = finish(request, store, failures)
        draw(results, out)
        for shown in terminal_tables(results, console.width):
            console.print(shown)
        console.print()
    for reason in dict.fromkeys(failures.values()):
        count = sum(value == reason for value in failures.values())
        errors.print(f"[red]{count} cell{'s' if count > 1 else ''} failed[/red]: {escape(reason)}")
    if page is not None:
        write_page(out, page)
    console.print(f"Results: {escape(str(out))}  (a page of them: fedgen report {escape(str(out))})")
    if failures:
        raise typer.Exit(1)


def _tell(amounts: Sequence["Amount"], whole: Sequence[str]) -> None:
    """How much there is to compute, by dataset; and which experiments are computed as a whole."""
    if whole:
        console.print(f"Computed as a whole, in minutes, without cells: {', '.join(whole)}", highlight=False)
    if not amounts:
        return
    grid = Grid(title="To compute", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    for title in ("dataset", "cells", "done", "runs", "programs", "million mini-batches"):
        grid.add_column(title, justify="left" if title == "dataset" else "right")
    for one in amounts:
        numbers = (one.cells, one.done, one.runs, one.programs)
        grid.add_row(one.dataset, *(f"{number:,}" for number in numbers), f"{one.batches / 1e6:,.1f}")
    console.print(grid)
    console.print(
        "A cell is one configuration with all its seeds. On MNIST and EMNIST two CPU cores train some 5,000 mini-batches"
        " a second;\na GPU, with many cells at once, a hundred thousand and more. CelebA takes about ten times as long.",
        style="dim", highlight=False,
    )  # fmt: skip


def _share(part: str) -> tuple[int, int]:
    number, _, parts = part.partition("/")
    if not (number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts)):
        raise FedgenError(f"--part is K/N with K from 1 to N, for example 2/4, not '{part}'")
    return int(number), int(parts)


def _list() -> None:
    from fedgen.paper.spec import experiments

    grid = Grid(title="Experiments", title_justify="left", title_style="bold", box=None, padding=(0, 2))
    for title in ("name", "cells", "presets", "what"):
        grid.add_column(title, justify="right" if title == "cells" else "left")
    for one in experiments().values():
        cells = len(one.rows) * len(one.columns) * max(one.trials, 1) if one.kind == "grid" else 0
        grid.add_row(one.name, f"{cells:,}" if cells else "–", ", ".join(one.presets), one.title)
    console.print(grid)
    console.print("\nRun one: fedgen reproduce overview --quick    All, in full: fedgen reproduce all --data-dir DIR")


class _Display(CellsDisplay):
    """The progress over cells; Ctrl-C requests a stop."""

    def __init__(self, cells: int, done: int) -> None:
        progress = Progress(
            TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=errors,
        )  # fmt: skip
        super().__init__(progress)
        self._bar = self._progress.add_task("cells", total=cells, completed=done, note="preparing")
        self._finished = float(done)

    def working_on(self, unit: Sequence[RunConfig]) -> None:
        first = unit[0]
        also = f" and {len(unit) - 1} more" if len(unit) > 1 else ""
        self._progress.update(self._bar, note=f"{first.dataset} {first.algorithms[0]}{also}")
