"""The command line for finished runs: `fedgen report`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedgen.cli.interrupts import raise_again

console = Console(highlight=False)


def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders of runs, sweeps or a reproduction.")],
    out: Annotated[Path | None, typer.Option(help="The page to write. Default: report.html in the folder; of several folders, in the current one.")] = None,
    figures: Annotated[Path | None, typer.Option(help="A folder to write the figures to as well, as PNG and SVG.")] = None,
) -> None:  # fmt: skip
    """Make one web page about runs: tables, learning curves, partitions, configuration.

    Each DIR is a run's folder (--out of `fedgen run`), a sweep's or a reproduction's (of `fedgen sweep`, `fedgen
    reproduce`). The page needs nothing but itself: no network, no other file. Runs that may not be compared (another
    dataset, preset, metric ...) get separate tables.
    """
    from fedgen.full_report import write_report
    from fedgen.report.chart_files import save_charts

    raise_again()
    out = out or (folders[0] if len(folders) == 1 else Path()) / "report.html"
    page = write_report(folders, out)
    console.print(f"Report: {escape(str(out))}", soft_wrap=True)
    if figures is not None:
        paths = save_charts(page, figures)
        console.print(f"Figures: {escape(str(figures))} ({len(paths)} files)", soft_wrap=True)
