"""The command `fedgen sweep`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from fedgen.cli.console import console_for_output
from fedgen.cli.display import CellsDisplay
from fedgen.cli.settings import takes_settings
from fedgen.config import RunConfig, parse_setting, read_toml
from fedgen.errors import FedgenError
from fedgen.sweeps.outcome import Outcome, SweepWatch

if TYPE_CHECKING:
    from fedgen.sweeps.results import Results

console = console_for_output()
errors = Console(stderr=True, highlight=False, soft_wrap=True)
MOST_ROWS = 5  # of each algorithm in the terminal


@takes_settings(without=("evaluate_on", "partition_file"), defaults={"seeds": 3, "seed": 100})
def sweep(
    given: dict[str, Any],
    over: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUES", help="A setting with the values to try (lr=0.01,0.03,0.1) or a range to draw from (lr=0.001..0.3:log, with --trials). fedgen.w=0.1,1 is for that algorithm alone. Give it several times for several.")] = None,
    method: Annotated[str | None, typer.Option(metavar="grid|random|halving", help="grid: every combination; random: --trials of them; halving: poor ones stop early. Default: grid, or random with --trials.")] = None,
    trials: Annotated[int, typer.Option(min=0, show_default=False, help="How many configurations of each algorithm are tried at most, drawn at random. Default: every combination.")] = 0,
    keep: Annotated[int, typer.Option(min=2, help="With halving: of so many configurations one goes on, for so many times the rounds.")] = 3,
    final_seeds: Annotated[int, typer.Option(min=0, help="With how many seeds (from 0) the best of each algorithm is then tested; 0: not at all.")] = 10,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings, as for `fedgen run`; its seeds do not count.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option that stays the same, as for `fedgen run`: fedgen.beta=1. Give it several times for several.")] = None,
    jobs: Annotated[int, typer.Option(min=0, show_default=False, help="Programs compiled at a time. Default: 1 on a CPU, half the cores with a GPU.")] = 0,
    out: Annotated[Path, typer.Option(help="The folder of the sweep; what is finished there is not computed again.")] = Path("runs/sweep"),
) -> None:  # fmt: skip
    """Try settings on held-out images, then test the best of each algorithm with other seeds.

    fedgen sweep --algorithm fedavg --algorithm fedgen --over lr=0.01,0.03,0.1 --over fedgen.w=0.1,1

    The folder then holds best.toml (for fedgen run --config), report.html, sweep.json and figures. Stop it at any time:
    the same command, or fedgen sweep --out FOLDER alone, goes on from there.
    """
    from fedgen.grid.runner import default_jobs
    from fedgen.simulator.devices import use_machine_well
    from fedgen.simulator.run import Interrupted
    from fedgen.sweeps.request import Request, check_not_fixed, read_request
    from fedgen.sweeps.run import run_sweep

    settings = dict(parse_setting(text) for text in set_ or ())
    if over:
        check_not_fixed(over, {**given, **settings})
        layer = {**(read_toml(config) if config else {}), **given, **settings}
        request = Request.of(layer, over, method=method, trials=trials, keep=keep, final_seeds=final_seeds)
    else:
        if method or trials or config or settings or given != {"seeds": 3, "seed": 100}:
            raise FedgenError("nothing is swept; say over which settings, for example --over lr=0.01,0.03,0.1")
        request = read_request(out)
    use_machine_well()
    with _Display(request.algorithms) as display:
        try:
            results = run_sweep(request, out, jobs=jobs or default_jobs(), watch=display)
        except Interrupted:
            display.stop()
            errors.print(f"interrupted; nothing is lost: go on with fedgen sweep --out {escape(shlex.quote(str(out)))}")
            raise typer.Exit(130) from None
    _tell(results, out)
    if any(entry["failed"] for one in results["algorithms"] for entry in one["configurations"]):
        raise typer.Exit(1)
    if any(one["configurations"][0]["mean"] is None for one in results["algorithms"]):
        raise typer.Exit(1)
    if results["final"] and results["final"]["failed"]:
        raise typer.Exit(1)


def _tell(results: "Results", out: Path) -> None:
    """The tables, what to know of them, and where everything is."""
    from fedgen.report.figures import heading
    from fedgen.report.terminal import terminal
    from fedgen.sweeps.results import seeds_text
    from fedgen.sweeps.tables import best_table, ranking, scored_on

    title = f"{heading(results['heading'])}\n{scored_on(results)}"
    for number, one in enumerate(results["algorithms"]):
        tried = one["tried"]
        some = f", the best {MOST_ROWS} of {tried}" if tried > MOST_ROWS else ""
        shown = ranking(results, one, MOST_ROWS)
        name = f"{one['algorithm']}{some}"
        console.print(*terminal(shown, console.width, f"{title}\n{name}" if number == 0 else name))
    seeds = (results["final"] or {}).get("seeds")
    tested = f", tested with {seeds_text(seeds)}" if seeds else ""
    console.print(*terminal(best_table(results, ",\n"), console.width, f"The best of each{tested}"))
    for note in (*results["notes"], *(results["final"] or {}).get("failed", ())):
        console.print(f"• {escape(note.replace('`', ''))}")
    files = ", ".join(sorted(path.name for path in out.glob("best*.toml")))
    place = escape(str(out))
    console.print(
        f"Sweep folder: {place} (report.html, {files or 'no best.toml'}, sweep.json, figures)", soft_wrap=True
    )
    if files:
        first = min(out.glob("best*.toml"))
        console.print(f"Use it: fedgen run --config {escape(shlex.quote(str(first)))}", soft_wrap=True)


class _Display(CellsDisplay, SweepWatch):
    """The progress over cells, and the best so far; Ctrl-C requests a stop."""

    def __init__(self, algorithms: Sequence[str]) -> None:
        progress = Progress(
            TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("runs, {task.fields[note]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=errors,
        )  # fmt: skip
        self._best: dict[str, Outcome] = {}
        self._scored = dict.fromkeys(algorithms, 0)
        self._progress = progress  # which is shown from the start
        self._live = Live(get_renderable=self._shown, console=errors, refresh_per_second=4)
        super().__init__(progress, self._live)

    def stop(self) -> None:
        if self._live.is_started:
            super().stop()
            if not errors.is_terminal:
                errors.print()  # where the last picture does not end its line

    def stage(self, title: str, cells: int, done: int) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
        self._finished = float(done)
        self._bar = self._progress.add_task(title, total=cells, completed=done, note="preparing")
        if title.startswith("search"):
            self._best.clear()
            self._scored = dict.fromkeys(self._scored, 0)

    def scored(self, outcome: Outcome) -> None:
        name = outcome.trial.algorithm
        self._scored[name] += 1
        if name not in self._best or outcome.order < self._best[name].order:
            self._best[name] = outcome

    def working_on(self, unit: Sequence[RunConfig]) -> None:
        self._progress.update(self._bar, note=unit[0].algorithms[0])

    def _shown(self) -> Group:
        grid = Grid(box=None, padding=(0, 2, 0, 0))
        for title in ("algorithm", "compared", "best so far", "with"):
            grid.add_column(title, justify="right" if title in ("compared", "best so far") else "left", style="dim")
        for name, number in self._scored.items():
            best = self._best.get(name)
            score = "–" if best is None else "diverged" if best.mean is None else f"{best.mean:.2f}"
            grid.add_row(Text(name), str(number), score, Text(best.trial.label if best else ""))
        return Group(self._progress, grid)
