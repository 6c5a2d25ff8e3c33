"""The command line for measurements: `fedgen bench`."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedgen.cli.console import console_for_output
from fedgen.cli.interrupts import raise_again
from fedgen.errors import FedgenError, unknown
from fedgen.files import check_writable, write_whole

console = console_for_output(markup=False)
errors = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)


# Those of fedgen.bench.suite, which is slow to import.
PARTS = (
    "rounds", "start", "memory", "seeds", "networks", "resnet", "pfl-cifar10", "sweep", "users", "cohort", "runs",
    "runs-of-fedgen", "steps", "images", "resnet-clients", "resnet18-clients",
)  # fmt: skip


def bench(
    only: Annotated[list[str] | None, typer.Option(help=f"A part to measure; give it several times. Default: all of {', '.join(PARTS)}.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="A part to leave out.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats and smaller sizes: a minute or two, less certain.")] = False,
    json_: Annotated[Path | None, typer.Option("--json", help="A file for everything that was measured.")] = None,
    markdown_: Annotated[Path | None, typer.Option("--markdown", help="A file for the main tables, as Markdown.")] = None,
    picture_: Annotated[Path | None, typer.Option("--picture", help="A file for the picture, NAME.png; NAME.svg comes beside it.")] = None,
) -> None:  # fmt: skip
    """Measure the simulator beside its peers: rounds, roofline, start, memory and growth.

    The peers are a PyTorch loop, Flower's simulation and pfl, each where it is
    installed (the extra `bench` brings them), on the same draws and down to
    the same losses.
    """
    from fedgen.bench.show import machine_line, markdown, picture, tables
    from fedgen.bench.suite import run_bench
    from fedgen.report.terminal import terminal

    raise_again()
    for name in (*(only or ()), *(skip or ())):
        if name not in PARTS:
            raise unknown("part", name, PARTS)
    chosen = [name for name in PARTS if name in (only or PARTS) and name not in (skip or ())]
    if not chosen:
        raise FedgenError("--skip leaves nothing to measure; leave out fewer parts")
    if picture_ is not None and picture_.suffix not in (".png", ".svg"):
        raise FedgenError(f"--picture writes NAME.png and NAME.svg; give it one of these names, not {picture_}")
    for path in (json_, markdown_, picture_):
        if path is not None:
            check_writable(path)
    report = run_bench(chosen, quick, lambda line: errors.print(f"… {line}"))
    console.print(machine_line(report))
    for table in tables(report):
        console.print(*terminal(table, console.width))
    if "start" in report:
        start, compiling = report["start"], report["start"]["compiling"]
        console.print(f"Start to the first round: {start['cold']:.1f} s; with the cache {start['cached']:.1f} s")
        console.print(
            f"Compiling FedGen and FedAvg: {compiling['cold']:.1f} s; with the cache {compiling['cached']:.1f} s"
        )
    if "memory_mb" in report:
        console.print(f"Peak memory of a default run: {report['memory_mb']:.0f} MB")
    for name, reason in report["absent"].items():
        console.print(f"Not measured: {name}: {reason}")
    if json_ is not None:
        write_whole(json_, (json.dumps(report, indent=1) + "\n").encode())
    if markdown_ is not None:
        write_whole(markdown_, markdown(report).encode())
    if picture_ is not None:
        picture(report, picture_)
    if report["failed"]:
        raise typer.Exit(1)
