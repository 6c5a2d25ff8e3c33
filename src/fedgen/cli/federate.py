"""The command line for federations: `fedgen federate demo`, `init` and `gate`; the others are in `federate_life`."""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedgen.cli import federate_life
from fedgen.cli.console import console_for_output
from fedgen.cli.flower import flower_is_installed
from fedgen.cli.interrupts import raise_again
from fedgen.cli.paths import PathErrors
from fedgen.cli.settings import choices, takes_settings
from fedgen.config import checked, parse_setting, resolve
from fedgen.errors import FedgenError
from fedgen.federate.schema import SIMULATION_ONLY, ServerSettings, TaskSettings
from fedgen.federate.text import printable
from fedgen.registry import is_address

app = typer.Typer(
    help="A real federation on Flower: the same algorithms across processes and machines.",
    no_args_is_help=True,
    cls=PathErrors,
)
console = console_for_output(markup=False)
AGREEMENT = 1e-5  # relative, over the first rounds; later ones drift as rounding differs


def _help(schema: type[BaseModel], name: str) -> str:
    """What the schema of a federation's files says of a setting, as an option's help."""
    text = schema.model_fields[name].description or ""
    return escape(f"{text[:1].upper()}{text[1:]}.")


@app.command()
@takes_settings(
    without=("users", "seeds", "evaluate_on", "validation", "patience", "keep_best"),
    defaults={"algorithms": ["fedgen"], "rounds": 5, "alpha": 0.5, "eval_every": 1},
    said={"active": "all sites"},
    lists=("lr_milestones", "augment"),
)
def demo(
    given: dict[str, Any],
    sites: Annotated[int, typer.Option(min=2, help="How many sites there are.")] = 4,
    tls: Annotated[bool, typer.Option(help="Encrypt, and let in only sites whose key is registered.")] = True,
    min_sites: Annotated[int, typer.Option(min=1, help=_help(ServerSettings, "min_sites"))] = 2,
    round_timeout: Annotated[float, typer.Option(help=_help(ServerSettings, "round_timeout"))] = 300.0,
    strikes: Annotated[int, typer.Option(min=1, help=_help(ServerSettings, "strikes"))] = 3,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the algorithm, the model, the dataset or the partition: fedgen.beta=1, model.latent=16 (docs/settings.md). Give it several times for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder. Default: federation-DATE-TIME in runs.")] = None,
) -> None:  # fmt: skip
    """Run a federation of separate processes on this machine and compare it with the simulator.

    Everything is started on the loopback interface: SuperLink, a SuperNode for each site with its own data
    folder, a certificate authority and keys. All of it is stopped at the end, also after Ctrl-C.
    """
    flower_is_installed()
    from fedgen.demo.demo import RUN, demonstrate
    from fedgen.federate.deploy.folders import new_folder
    from fedgen.federate.plan import Plan
    from fedgen.full_report import write_report
    from fedgen.report.figures import learning_curves
    from fedgen.runs.division import load_dataset
    from fedgen.runs.folder import RunFolder
    from fedgen.simulator.devices import use_machine_well
    from fedgen.simulator.setup import prepare

    raise_again()
    settings = {"users": sites, "active": sites, **given}
    config = resolve(settings, dict(parse_setting(text) for text in set_ or ()))
    if any(map(is_address, (*config.algorithms, config.model))):  # the sites' processes are started elsewhere
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH")]))
    use_machine_well()
    data = load_dataset(config)
    setup = prepare(config, data)
    place = new_folder(out or Path("runs") / f"federation-{datetime.now():%Y%m%d-%H%M%S}")
    names = tuple(f"site-{number}" for number in range(sites))
    server = ServerSettings(
        sites=names, min_sites=min(min_sites, config.active), round_timeout=round_timeout, strikes=strikes
    )
    display = _Display(names, config.rounds)
    noisy = Plan(config, setup.task).has_noise
    if noisy:
        console.print("The noise that sites add is their secret: the simulator draws other noise.")
    try:
        with display:
            found = demonstrate(place, setup, data, server, tls=tls, say=display.on_event)
    except KeyboardInterrupt:
        console.print("interrupted; every process that was started has been stopped")
        raise typer.Exit(130) from None
    table = Table(title="Federation and simulator", title_justify="left")
    table.add_column("round", justify="right")
    table.add_column("largest relative difference", justify="right")
    for row in found:
        table.add_row(str(row.round), f"{row.difference:.1e}")
    console.print(table)
    early = max((row.difference for row in found[:3]), default=0.0)
    verdict = "agree" if early <= AGREEMENT else "DIFFER"
    rounds_said = f"first {len(found[:3])} rounds" if len(found) > 1 else "first round"
    console.print(f"The server states of the {rounds_said} {verdict} (to {AGREEMENT:g} relative).")
    run = place.server / "runs" / RUN
    write_report([run], run / "report.html")
    learning_curves(RunFolder(run).summary(), run)
    console.print(f"Run folder: {run} (report.html, summary.json, metrics.jsonl, curves.png)", soft_wrap=True)
    if early > AGREEMENT and not display.trouble and not noisy:
        raise typer.Exit(1)


@app.command()
@takes_settings(
    without=("users", "dataset", *SIMULATION_ONLY),  # sites have their data, and are tested on what they have
    defaults={"algorithms": ["fedgen"], "preset": "tuned", "rounds": 100},
    said={"active": "all sites"},
    lists=("lr_milestones", "augment"),
)
def init(
    given: dict[str, Any],
    folder: Annotated[Path, typer.Argument(help="The new folder.")],
    site: Annotated[list[str] | None, typer.Option(help="A site's name; give it once for each site. Needed.")] = None,
    host: Annotated[str | None, typer.Option(help="The name or address under which the sites reach the server. Needed.")] = None,
    classes: Annotated[str | None, typer.Option(help="How many labels there are, or their names: cat,dog,emu. Needed.")] = None,
    sample: Annotated[str | None, typer.Option(help="The shape of one sample, as 28,28,1. Needed.")] = None,
    dtype: Annotated[str, typer.Option(metavar="|".join(choices(TaskSettings.model_fields["dtype"].annotation)), help=_help(TaskSettings, "dtype"))] = "uint8",
    scale: Annotated[str, typer.Option(help=_help(TaskSettings, "scale"))] = "signed",
    max_value: Annotated[int, typer.Option(min=0, max=65535, help=_help(TaskSettings, "max_value"))] = 0,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that sites connect to.")] = 8000,
    bind: Annotated[str, typer.Option(help="The address on which the server's gate listens for sites.")] = "0.0.0.0",
    superlink_port: Annotated[int, typer.Option(min=1, max=65535, help="SuperLink's port on the server's loopback interface.")] = 8001,
    min_sites: Annotated[int, typer.Option(min=1, help=_help(ServerSettings, "min_sites"))] = 2,
    round_timeout: Annotated[float, typer.Option(help=_help(ServerSettings, "round_timeout"))] = 600.0,
    strikes: Annotated[int, typer.Option(min=1, help=_help(ServerSettings, "strikes"))] = 3,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the algorithm or the model: fedgen.beta=1, model.latent=16 (docs/settings.md). Give it several times for several.")] = None,
) -> None:  # fmt: skip
    """Write what a real federation needs: an app for Flower, a server's folder, and a folder with keys for each site."""
    flower_is_installed()
    from fedgen.federate.deploy.init import begin
    from fedgen.federate.deploy.members import check_names
    from fedgen.federate.plan import Plan
    from fedgen.federate.settings import NOT_DIVIDED, check_config, task_of_settings

    raise_again()
    needed = {"--site": site, "--host": host, "--classes": classes, "--sample": sample}
    if site is None or host is None or classes is None or sample is None:
        missing = [option for option, value in needed.items() if value is None]
        raise FedgenError(f"{', '.join(missing)} must be given, too; see `fedgen federate init --help`")
    settings = {"users": len(site), "active": len(site), **given, "dataset": "of-the-sites"}
    config = resolve(NOT_DIVIDED, settings, dict(parse_setting(text) for text in set_ or ()), own={"dataset"})
    try:
        shape = tuple(int(size) for size in sample.split(","))
    except ValueError:
        raise FedgenError(f"--sample is a shape such as 28,28,1, not '{sample}'") from None
    form = {"sample": shape, "dtype": dtype, "scale": scale, "max_value": max_value}
    task: TaskSettings = checked(TaskSettings, {**_classes(classes), **form}, "")
    task.check()
    server = checked(
        ServerSettings,
        {"sites": site, "min_sites": min(min_sites, config.active), "round_timeout": round_timeout, "strikes": strikes},
        "",
    )
    if len(set(site)) < len(site):
        raise FedgenError("a site is named twice; names must differ")
    check_names(site)
    if port == superlink_port:
        raise FedgenError(f"--port and --superlink-port are both {port}; SuperLink stands behind the gate, elsewhere")
    check_config(config)
    plan = Plan(config, task_of_settings(config, task, proxy_samples=1))  # whether the model takes such samples
    algorithm, federation = plan.configure(plan.hyper)
    place = begin(folder, config, task, server, host=host, port=port, bind=bind, superlink_port=superlink_port)
    console.print(printable(f"{place.root / 'README.md'} says what to do next; docs/federation.md explains it.", 1000))
    if config.active == 1:
        console.print(
            f"One site trains in a round, so min_sites in server.toml is {server.min_sites}: nothing that it sends is"
            " compared with others, and neither a bound nor taking back a round protects the model (docs/federation.md)."
        )
    elif config.active == 2:
        console.print(
            "Two sites train in a round: of two updates nothing tells which is the odd one, and neither a bound nor taking"
            " back a round protects the model (docs/federation.md)."
        )
    if config.weighting == "samples":
        console.print(
            f'weighting is "samples": a site weighs by what it says it has, up to {server.max_samples:,} samples'
            ' (max_samples in server.toml); unless you trust all sites in that, set "uniform" in config.toml.'
        )
    if algorithm.needs.accumulates and federation.aggregation == "mean":
        console.print(
            f"The server of {plan.name} accumulates: one site that pushes a little in each round can harm the model over"
            " many rounds, and --aggregation multi-krum defends against that (docs/attacks.md)."
        )


def _classes(text: str) -> dict[str, Any]:
    """The classes as task.toml has them, from their number or their names."""
    names = [name.strip() for name in text.split(",")]
    if len(names) == 1:
        try:
            return {"classes": int(text)}
        except ValueError:
            raise FedgenError(f"--classes is a number, or several names such as cat,dog,emu, not '{text}'") from None
    if "" in names:
        raise FedgenError(f"--classes {text} has an empty name; write it as cat,dog,emu")
    return {"classes": len(names), "class_names": names}


@app.command()
def gate(
    command: Annotated[list[str], typer.Argument(help="The command that starts SuperLink, after --.")],
    listen: Annotated[str, typer.Option(help="Where sites connect, as 0.0.0.0:8000.")],
    superlink: Annotated[str, typer.Option(help="Where SuperLink listens, as 127.0.0.1:8001.")],
    folder: Annotated[Path, typer.Option(help="The server's folder.")] = Path(),
) -> None:
    """Start SuperLink and let sites reach it, and nobody else (server/superlink.sh calls this).

    What sites need passes; everything else is refused, written to gate.jsonl, and never reaches SuperLink.
    """
    flower_is_installed()
    from fedgen.federate.gate.supervisor import open_gate, parse_address

    raise_again()
    raise typer.Exit(open_gate(folder, parse_address(listen), parse_address(superlink), command))


for _command in (
    federate_life.add_site, federate_life.remove_site, federate_life.rotate_key, federate_life.renew_certificate,
    federate_life.register, federate_life.status, federate_life.doctor,
):  # fmt: skip
    app.command()(_command)


class _Display:
    """Live progress: the round, and what each site does."""

    def __init__(self, sites: tuple[str, ...], rounds: int) -> None:
        self._rounds, self._round = rounds, 0
        self._note = ""
        self._sites = dict.fromkeys(sites, ("", ""))
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self.trouble = False  # a site failed or was refused, so that the simulator had other cohorts

    def __enter__(self) -> "_Display":
        if console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if console.is_terminal:
            self._live.stop()

    def on_event(self, event: dict[str, Any]) -> None:
        """Show an event of the server (at "") or of a site."""
        kind, at = event["event"], event.get("at", "")
        if at:
            self._site_event(kind, at, event)
        elif kind == "starting":
            self._note = f"starting {event['what']}"
        elif kind == "joined":
            self._sites[event["site"]] = ("connected", "")
        elif kind == "round":
            self._note = f"round {event['round'] + 1}: waiting for {len(event['cohort'])} sites"
        elif kind == "score":
            value = event["accuracy"] if event.get("accuracy") is not None else event.get("accuracy_users")
            self._say(f"round {event['round']}: accuracy {value:.2f} %" if value is not None else "diverged")
        elif kind == "done":
            self._round = event["round"] + 1
            loss = "" if event["loss"] is None else f", training loss {event['loss']:.3f}"
            self._say(f"round {self._round}: {len(event['sites'])} sites{loss}, {event['seconds']:.1f} s")
        elif kind in ("failed", "refused", "excluded", "stranger"):
            self.trouble = True
            who = event.get("site") or f"node {event['node']}"
            if who in self._sites:
                self._sites[who] = (kind, event["reason"])
            self._say(f"{who} {kind}: {event['reason']}")
        elif kind == "left":
            self._sites[event["site"]] = ("left", "")
        elif kind == "waiting":
            self._note = (
                f"round {event['round'] + 1}: {event['present']} of the {event['needed']} sites needed are there"
            )
        elif kind == "retry":
            self._note = (
                f"round {event['round'] + 1} again: {event['good']} good updates of the {event['needed']} needed"
            )
        elif kind == "comparing":
            self._note = "running the simulator"
        if console.is_terminal:
            self._live.update(self._picture())

    def _site_event(self, kind: str, at: str, event: dict[str, Any]) -> None:
        if kind == "train":
            self._sites[at] = ("training", f"round {event['round'] + 1}, received {event['received']:,} bytes")
        elif kind == "evaluate":
            self._sites[at] = ("testing", f"after round {event['round']}, received {event['received']:,} bytes")
        elif kind == "evaluated":
            self._sites[at] = ("tested", f"after round {event['round']}")
        elif kind == "trained":
            self._sites[at] = ("trained", f"round {event['round'] + 1}, sent {event['sent']:,} bytes")
        elif kind == "failed":
            self._sites[at] = ("failed", event["reason"])

    def _say(self, line: str) -> None:
        (self._live.console if console.is_terminal else console).print(line)

    def _picture(self) -> Group:
        table = Table(box=None, show_header=False, padding=(0, 2))
        for name, (state, note) in self._sites.items():
            table.add_row(name, state, note)
        bar = Table.grid()  # a bar alone would not end its line
        bar.add_row(ProgressBar(total=self._rounds, completed=self._round, width=40))
        return Group(Text(f"{self._round}/{self._rounds} rounds  {self._note}"), bar, table)
