"""The options by which commands choose a model of a run."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder (--out of `fedgen run`).")]
AlgorithmOption = Annotated[str | None, typer.Option("--algorithm", help="The algorithm. Default: the run's first.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="The seed. Default: the run's first.")]
UserOption = Annotated[int | None, typer.Option("--user", help="A user's number: its own model, not the global one.")]
BestOption = Annotated[
    bool,
    typer.Option(
        "--best", help="The model of the best evaluation, not of the last round (runs with --keep-best or --patience)."
    ),
]
