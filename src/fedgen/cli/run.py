"""The command `fedgen run`."""

import shlex
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fedgen.cli.console import console_for_output
from fedgen.cli.display import Display
from fedgen.cli.interrupts import raise_again
from fedgen.cli.settings import takes_settings
from fedgen.config import doubts_of, parse_setting, read_toml, resolve
from fedgen.errors import FedgenError
from fedgen.report.progress import RunBars

console = console_for_output()
errors = Console(stderr=True, highlight=False, soft_wrap=True)
DIVERGED = 3  # the exit code where no score is left


@takes_settings()
def run(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings, such as a run folder's config.toml. Options given beside it win.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of an algorithm, the model, the dataset or the partition: fedgen.beta=1, model.latent=16, partition.min_samples=2. Also what one algorithm has differently (fedavg.lr=0.1). All of them: docs/settings.md. Give it several times for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/DATE-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out after an interruption.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the run in --out.")] = False,
    track: Annotated[list[str] | None, typer.Option(help="Also write the evaluations to tensorboard, mlflow or wandb while running (pip install 'fedgen\\[tracking]').")] = None,
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between checkpoints.")] = 10.0,
    hosts: Annotated[str | None, typer.Option(envvar="FEDGEN_HOSTS", help="Compute together with other processes: auto (under Slurm, Open MPI or Kubernetes), or I/N@ADDRESS:PORT for process I of N, of which process 0 listens there. All get the same command, and wait for each other for five minutes.")] = None,
) -> None:  # fmt: skip
    """Run algorithms on one dataset and compare them.

    Without options: FedGen and FedAvg on MNIST at the paper's settings. Results go to a run folder:
    config.toml, metrics.jsonl, summary.json, report.html, curves.png and the trained models.

    Exit codes: 0, the run has ended; 2, a mistake in the input; 3, every algorithm diverged, so that there is no score;
    130, interrupted.
    """
    from fedgen.full_report import write_report
    from fedgen.report.comparison import comparison
    from fedgen.report.figures import learning_curves
    from fedgen.runs.folder import FollowedFolder, RunFolder
    from fedgen.runs.tracking import Together, tracker
    from fedgen.simulator.devices import WAIT_SECONDS, check_devices, join_hosts, parse_hosts, use_machine_well
    from fedgen.simulator.run import Interrupted
    from fedgen.simulator.run import run as simulate
    from fedgen.simulator.setup import prepare
    from fedgen.simulator.sharding import is_first_host, wait_for_all

    raise_again()
    given_out = out
    layers = [read_toml(config)] if config else []
    layers.append(given)
    layers.append(dict(parse_setting(text) for text in set_ or ()))
    if resume and force:
        raise FedgenError("--resume continues a run and --force replaces it; give one of them")
    if resume:
        if out is None:
            raise FedgenError("--resume needs --out, the folder of the run to continue")
        folder = RunFolder.existing(out)
        settings = folder.config()
        if settings.partition_file and not Path(settings.partition_file).exists():
            raise FedgenError(f"the run's partition file {settings.partition_file} is no longer there; put it back")
        if any(layers):
            wanted = folder.config(*layers)
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
        awaited = parse_hosts(hosts) or "the other hosts"
        errors.print(f"waiting for {awaited} (at most {WAIT_SECONDS} s)")
        join_hosts(hosts)
    check_devices()
    if resume and is_first_host():
        folder = RunFolder.open(out)
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
        for sentence in doubts_of(settings):
            errors.print(f"[yellow]{escape(sentence)}[/yellow]")
    wait_for_all("the run folder")
    with ExitStack() as stack:
        stack.enter_context(folder)
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
        display.stop()
        learning_curves(summary, out)
        write_report([out], out / "report.html")
    for row in summary["results"]:
        if row["diverged_at"]:
            errors.print(
                f"[yellow]{row['algorithm']} (seed {row['seed']}) diverged at round {row['diverged_at']}[/yellow]:"
                " its loss or model is no longer finite; try a smaller --lr"
            )
        if "stopped_at" in row:
            best = f"; the best evaluation was at round {row['best']['round']}" if "best" in row else ""
            console.print(f"{row['algorithm']} (seed {row['seed']}) was stopped at round {row['stopped_at']}{best}")
    for table in comparison(summary, console.width):
        console.print(table)
    for one in trackers:
        if one.failure:
            errors.print(f"[yellow]not all was tracked[/yellow]: {escape(one.failure)}")
        console.print(f"Tracked: {escape(one.place)}", soft_wrap=True)
    console.print(
        f"Run folder: {escape(str(out))} (report.html, summary.json, metrics.jsonl, curves.png)", soft_wrap=True
    )
    if all(row["diverged_at"] for row in summary["results"]):
        errors.print("[red]every run diverged[/red], so there is no score")
        raise typer.Exit(DIVERGED)


class _Display(Display, RunBars):
    """The progress bars of a run; Ctrl-C requests a stop."""

    def __init__(self, rounds: int, seeds: int) -> None:
        RunBars.__init__(self, rounds, seeds, errors)
        Display.__init__(self, self.progress)
