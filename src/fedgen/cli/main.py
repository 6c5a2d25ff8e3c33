"""The command line: all commands, each of which imports what it needs when it is called."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedgen.cli.bench import bench
from fedgen.cli.data import app as data_app
from fedgen.cli.evaluate import evaluate
from fedgen.cli.export import export
from fedgen.cli.federate import app as federate_app
from fedgen.cli.inventory import list_
from fedgen.cli.predict import predict
from fedgen.cli.report import report
from fedgen.cli.reproduce import reproduce
from fedgen.cli.run import run
from fedgen.cli.sweep import sweep
from fedgen.errors import FedgenError
from fedgen.federate.text import printable
from fedgen.version import __version__

app = typer.Typer(
    help="FedGen and its baselines: federated learning on heterogeneous data, simulated fast and honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(run)
app.command()(sweep)
app.command("list")(list_)
app.command()(report)
app.command()(predict)
app.command()(evaluate)
app.command()(export)
app.command()(reproduce)
app.command()(bench)
app.add_typer(data_app, name="data")
app.add_typer(federate_app, name="federate")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedgen {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version, and end.")
    ] = False,
) -> None:
    pass


errors = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except FedgenError as error:
        # A path may have brackets, and characters that a terminal obeys.
        said = "\n".join(printable(line, len(line)) for line in str(error).split("\n"))
        errors.print(f"[red]error:[/red] {escape(said)}")
        sys.exit(2)
