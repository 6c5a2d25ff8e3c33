"""The command line: `fedgen run` and `fedgen list`."""

import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from fedgen.algorithms import ALGORITHMS
from fedgen.cli.bench import bench
from fedgen.cli.data import app as data_app
from fedgen.cli.display import Display
from fedgen.cli.federate import app as federate_app
from fedgen.cli.report import report
from fedgen.cli.reproduce import reproduce
from fedgen.config import parse_setting, read_toml, resolve
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.presets import DESCRIPTIONS
from fedgen.registry import summary_of
from fedgen.report.figures import learning_curves
from fedgen.report.page import write_report
from fedgen.report.tables import comparison
from fedgen.runs.folder import FollowedFolder, RunFolder
from fedgen.runs.scores import headline
from fedgen.runs.tracking import Together, tracker
from fedgen.runs.watch import Watch
from fedgen.simulator.devices import join_hosts, use_machine_well
from fedgen.simulator.run import Interrupted
from fedgen.simulator.run import run as simulate
from fedgen.simulator.setup import prepare
from fedgen.simulator.spread import is_first_host, wait_for_all

app = typer.Typer(
    help="FedGen and its baselines: federated learning on heterogeneous data, simulated fast and honestly.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(federate_app, name="federate")
app.command()(bench)
app.command()(report)
app.command()(reproduce)
console = Console(highlight=False)
if not console.is_terminal:
    console.width = 120  # a file or a pipe has no width of its own
errors = Console(stderr=True, highlight=False, soft_wrap=True)


def main() -> None:
    """Run the command; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except FedgenError as error:
        errors.print(f"[red]error:[/red] {escape(str(error))}")  # a path may have brackets
        sys.exit(2)


@app.command()
def run(
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings, such as a run folder's config.toml.")] = None,
    algorithm: Annotated[list[str] | None, typer.Option(help="An algorithm (see `fedgen list`); give it several times to compare on the same partitions. Default: fedgen and fedavg.")] = None,
    preset: Annotated[str | None, typer.Option(help="paper, reference or tuned. Default: paper.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A dataset's name (see `fedgen list`), or the path of your own: an .npz file, a folder of idx files, or one of images in a folder for each class. Default: mnist.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where the dataset's files are. Default: $FEDGEN_DATA, or where `fedgen data download` puts them.")] = None,
    model: Annotated[str | None, typer.Option(help="cnn or mlp. Default: cnn.")] = None,
    partition: Annotated[str | None, typer.Option(help="How the data is divided among the users (see `fedgen list`). Default: dirichlet; celeba: natural.")] = None,
    partition_file: Annotated[str | None, typer.Option(help="A .json or .npz file to read the partition from; where it does not exist, it is written.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet parameter of the partition: the smaller, the more different the users. Default: 0.1.")] = None,
    users: Annotated[int | None, typer.Option(help="How many users there are. Default: 20.")] = None,
    active: Annotated[int | None, typer.Option(help="How many of them train in a round. Default: 10.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds. Default: 200.")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Mini-batches a user trains on in a round. Default: 20.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples of a mini-batch. Default: 32.")] = None,
    lr: Annotated[float | None, typer.Option(help="The users' learning rate, for all algorithms. Default: 0.01.")] = None,
    share: Annotated[str | None, typer.Option(help="all, or predictor: then feature extractors stay with the users. Default: all.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many repetitions, each with its own partition. Default: 1.")] = None,
    seed: Annotated[int | None, typer.Option(help="The first seed. Default: 0.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Rounds between evaluations. Default: 5.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Any other setting, as key=value: fedgen.beta=1, fedavg.lr=0.1, partition.min_samples=2, train_fraction=0.3.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/DATE-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out after an interruption.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    track: Annotated[list[str] | None, typer.Option(help="Also write the evaluations to tensorboard or mlflow while running (pip install 'fedgen\\[tracking]').")] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 10.0,
    hosts: Annotated[str | None, typer.Option(envvar="FEDGEN_HOSTS", help="Compute together with other processes: auto (under Slurm, Open MPI or Kubernetes), or I/N@ADDRESS:PORT for process I of N, of which process 0 listens there. All get the same command.")] = None,
) -> None:  # fmt: skip
    """Run algorithms on one dataset and compare them.

    Without options: FedGen and FedAvg on MNIST at the paper's settings. Results go to a run folder:
    config.toml, metrics.jsonl, summary.json, report.html, curves.png and the trained models.
    """
    given_out = out
    given: dict[str, Any] = {
        "algorithms": algorithm or None, "preset": preset, "dataset": dataset, "data_dir": data_dir, "model": model,
        "partition": partition, "partition_file": partition_file, "alpha": alpha,
        "users": users, "active": active, "rounds": rounds, "local_steps": local_steps, "batch_size": batch_size,
        "lr": lr, "share": share, "seeds": seeds, "seed": seed, "eval_every": eval_every,
    }  # fmt: skip
    layers = [read_toml(config)] if config else []
    layers.append({key: value for key, value in given.items() if value is not None})
    layers.append(dict(parse_setting(text) for text in set_ or ()))
    if resume and force:
        raise FedgenError("--resume continues a run and --force replaces it; give one of them")
    if resume:
        if out is None:
            raise FedgenError("--resume needs --out, the folder of the run to continue")
        folder = RunFolder.open(out)
        settings = folder.config()
        if settings.partition_file and not Path(settings.partition_file).exists():
            raise FedgenError(f"the run's partition file {settings.partition_file} is no longer there; put it back")
        if any(layers):
            wanted = resolve(read_toml(folder.config_file), *layers)
            changed = [k for k in type(settings).model_fields if getattr(settings, k) != getattr(wanted, k)]
            if changed:
                raise FedgenError(
                    f"the run in {out} was started with other settings ({', '.join(changed)});"
                    " resume it without options, or start another in a new folder"
                )
    else:
        settings = resolve(*layers)
        out = out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    use_machine_well()
    if hosts is not None:
        if given_out is None:
            raise FedgenError("--hosts needs --out, a folder that all hosts share")
        join_hosts(hosts)
    # Before the folder is made, so that a mistake leaves none, and before the display: decoding has its own bar.
    trackers = [tracker(name, out, settings) for name in dict.fromkeys(track or ())]
    setup = prepare(settings)
    if not is_first_host():
        wait_for_all("the run folder")
        try:
            simulate(setup, folder=FollowedFolder(out), checkpoint_seconds=checkpoint_every)
        except Interrupted:
            raise typer.Exit(130) from None
        return
    if not resume:
        folder = RunFolder.create(out, settings, force=force)
    wait_for_all("the run folder")
    with ExitStack() as stack:
        for one in trackers:
            stack.enter_context(one)
        display = stack.enter_context(_Display(settings.rounds, settings.seeds))
        watch = Together([display, *trackers])
        try:
            summary = simulate(setup, folder=folder, watch=watch, checkpoint_seconds=checkpoint_every)
        except Interrupted:
            display.stop()
            others = f" --hosts {escape(shlex.quote(hosts))}" if hosts else ""
            errors.print(
                f"interrupted; continue with: fedgen run --resume --out {escape(shlex.quote(str(out)))}{others}"
            )
            raise typer.Exit(130) from None
    learning_curves(summary, out)
    write_report([out], out / "report.html")
    for row in summary["results"]:
        if row["diverged_at"]:
            errors.print(
                f"[yellow]{row['algorithm']} (seed {row['seed']}) diverged at round {row['diverged_at']}[/yellow]:"
                " its loss or model is no longer finite; try a smaller --lr"
            )
    console.print(comparison(summary, console))
    for one in trackers:
        if one.failure:
            errors.print(f"[yellow]not all was tracked[/yellow]: {escape(one.failure)}")
        console.print(f"Tracked: {escape(one.place)}", soft_wrap=True)
    console.print(f"Run folder: {escape(str(out))} (report.html, summary.json, metrics.jsonl, curves.png)")


@app.command("list")
def list_() -> None:
    """Show the algorithms, presets, datasets, models and partitions, each with one line."""
    groups = {
        "Algorithms": {name: summary_of(builder) for name, builder in ALGORITHMS.items()},
        "Presets": DESCRIPTIONS,
        "Datasets": {name: summary_of(builder) for name, builder in DATASETS.items()},
        "Models": {name: summary_of(builder) for name, builder in MODELS.items()},
        "Partitions": {name: summary_of(builder) for name, builder in PARTITIONERS.items()},
    }
    for title, entries in groups.items():
        grid = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
        for name, line in entries.items():
            grid.add_row(name, line)
        console.print(grid)
        console.print()


class _Display(Display, Watch):
    """The progress bars of a run, and the ear for Ctrl-C."""

    def __init__(self, rounds: int, seeds: int) -> None:
        progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(), TextColumn("{task.completed:>6.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=errors,
        )  # fmt: skip
        super().__init__(progress)
        self._rounds, self._seeds = rounds, seeds
        self._bars: dict[str, Any] = {}
        self._done: dict[tuple[str | int, ...], int] = {}

    def compiling(self, algorithm: str) -> None:
        self._bars[algorithm] = self._progress.add_task(algorithm, total=self._rounds * self._seeds, note="compiling")

    def advanced(self, algorithm: str, seeds: Sequence[int], round: int) -> None:
        bar = self._bars[algorithm]
        self._done[algorithm, *seeds] = round * len(seeds)
        total = sum(value for (name, *_), value in self._done.items() if name == algorithm)
        self._progress.update(bar, completed=total)

    def recorded(self, record: dict[str, Any]) -> None:
        note = "diverged" if "diverged_at" in record else f"{headline(record):5.2f} %"
        self._progress.update(self._bars[record["algorithm"]], note=note)
