"""The command line for the life of a federation: its sites, their keys, the certificate, and how it is doing."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedgen.cli.console import console_for_output
from fedgen.cli.flower import flower_is_installed
from fedgen.cli.interrupts import raise_again
from fedgen.errors import FedgenError
from fedgen.federate.text import printable

console = console_for_output(markup=False, soft_wrap=True)

Root = Annotated[Path, typer.Argument(help="The folder that `fedgen federate init` wrote.")]
Site = Annotated[str, typer.Argument(help="The site's name.")]
OwnKey = Annotated[
    Path | None,
    typer.Option(
        help="The public key (new.key.pub) of a pair that the site has made itself"
        " (ssh-keygen -t ecdsa -b 384 -N '' -f new.key): the safer way, since its private key then never leaves the site.",
    ),
]
STYLES = {"ok": "green", "warning": "yellow", "wrong": "red", "skipped": "dim"}


def add_site(folder: Root, name: Site, public_key: OwnKey = None) -> None:
    """Add a site, also while a run goes on: it joins from the next round.

    Writes the new site's folder, ready to be sent to it, and lets it in. A site that was removed before comes back under
    its old number. Run this at the server.
    """
    flower_is_installed()
    from fedgen.federate.deploy.folders import existing_federation
    from fedgen.federate.deploy.members import add_site

    raise_again()
    folders = existing_federation(folder)
    site = add_site(folders, name, public_key)
    _say(f"{name} is added: it is in server/server.toml, and its key in server/keys.")
    _tell_superlink(folders.server)
    if public_key is None:
        _say(f"Send {site} to the site over a channel that you trust, since it holds the private key; then delete it.")
    else:
        _say(f"Send {site} to the site, which puts its own pair into it: new.key as site.key, new.key.pub as site.pub.")
    _say("Its README.md says what to do there. A run that goes on takes the site in with its next round.")


def remove_site(folder: Root, name: Site) -> None:
    """Remove a site: the gate refuses it within a second, and a run goes on without it.

    What its updates have changed in the model so far stays. `add-site` brings it back, with another key. Run this at the
    server.
    """
    flower_is_installed()
    from fedgen.federate.deploy.folders import existing_federation
    from fedgen.federate.deploy.members import remove_site

    raise_again()
    folders = existing_federation(folder)
    remove_site(folders, name)
    _say(f"{name} is removed: the gate refuses its key. The other sites keep their numbers.")
    _tell_superlink(folders.server)
    if (left := folders.site(name)).exists():
        _say(f"{left} is still there: delete it, or move it away before `add-site` brings {name} back.")


def rotate_key(folder: Root, name: Site, public_key: OwnKey = None) -> None:
    """Replace a site's key, as when the old one may have been read by others. The old one is refused within a second.

    Run this at the server. Until the site has its new pair in place, as site.key and site.pub, and start.sh is started
    again, the site is not connected.
    """
    flower_is_installed()
    from fedgen.federate.deploy.folders import existing_federation
    from fedgen.federate.deploy.members import KeyTakenError, rotate_key

    raise_again()
    folders = existing_federation(folder)
    try:
        place = rotate_key(folders, name, public_key)
        _say(f"The key of {name} is replaced; the gate refuses the old one.")
    except KeyTakenError as error:
        if error.site != name:
            raise
        place = None
        _say(f"This is done: {public_key} is the key that {name} has already.")
    _tell_superlink(folders.server)
    if place is not None:
        _say(f"Send site.key and site.pub in {place} to the site over a channel that you trust; then delete {place}.")
        _say("There they take the place of the old two (chmod 600 site.key); then start.sh is started again.")
    else:
        _say("At the site: mv new.key site.key; mv new.key.pub site.pub. Then start.sh is started again.")


def renew_certificate(
    folder: Annotated[
        Path, typer.Argument(help="The federation's folder, the server's within it, or only the server's certificate.")
    ],
    authority: Annotated[
        Path | None, typer.Option(help="The folder with ca.key and ca.crt. Default: authority in the federation's.")
    ] = None,
) -> None:
    """Make another certificate for the server, for the same key and names, valid for up to 825 days.

    Run this where the authority's key is kept: besides the authority only server/server.crt is needed there. The old
    certificate is kept beside the new one; sites need nothing new.
    """
    flower_is_installed()
    from fedgen.federate.deploy.folders import Folders
    from fedgen.federate.deploy.renew import renew_certificate, server_certificate

    raise_again()
    certificate = server_certificate(folder.resolve())
    done = renew_certificate(certificate, authority or Folders(certificate.parent.parent).authority)
    _say(f"{certificate} is now valid until {done.until:%Y-%m-%d}; the old one is {done.kept.name}.")
    _say(f"Before {done.before:%Y-%m-%d}, when the old one ends: restart server/superlink.sh. Sites reconnect.")


def register(folder: Root) -> None:
    """Tell SuperLink the keys in server/keys, and that it must forget others of the same sites.

    SuperLink must run. `server/register.sh` calls this; what is registered already stays.
    """
    flower_is_installed()
    from fedgen.federate.deploy.folders import existing_federation
    from fedgen.federate.deploy.superlink import NotRunningError, register_keys

    raise_again()
    try:
        done = register_keys(existing_federation(folder).server)
    except NotRunningError as error:
        raise FedgenError(f"{error}; start server/superlink.sh first, then call server/register.sh again") from error
    for line in done or ["SuperLink knows all keys already"]:
        _say(f"{line}.")


def status(
    folder: Root,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it, until Ctrl-C.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, for other programs; with --watch one a line.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between looks, with --watch.")] = 2.0,
) -> None:
    """Show how a federation is doing: its run, and each site's state, answers, bytes and troubles. Run it at the server.

    `up` and `down` are bytes on the wire, as the gate counts them. `refused` are answers that failed a check; with too
    many of them a site is excluded.
    """
    flower_is_installed()
    from fedgen.federate.deploy.folders import existing_federation
    from fedgen.federate.server.status import Status

    raise_again()
    found = Status(existing_federation(folder).server)
    found.update()
    if not watch:
        if as_json:
            typer.echo(json.dumps(found.as_dict(), indent=2))
        else:
            console.print(_picture(found))
        return
    try:
        while as_json:
            typer.echo(json.dumps(found.as_dict()))
            time.sleep(every)
            found.update()
        with Live(_picture(found), console=console, auto_refresh=False, transient=False) as live:
            while True:
                time.sleep(every)
                found.update()
                live.update(_picture(found), refresh=True)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def doctor(
    folder: Annotated[Path, typer.Argument(help="The site's folder, with site.toml.")] = Path(),
) -> None:
    """Check everything that a site needs, and say what is wrong and what to do. Run it at the site.

    Versions, key, the port for the site's own processes, the server's name, port and certificate, clock, whether gate and
    SuperLink know the key, data, labels and model. Nothing is changed, and no data is sent. The exit code is 1 if something
    is wrong.
    """
    flower_is_installed()
    from fedgen.federate.site.doctor import examine

    raise_again()
    wrong = warnings = 0
    for found in examine(folder.resolve()):
        wrong += found.state == "wrong"
        warnings += found.state == "warning"
        line = Text.assemble((f"{found.state:8}", STYLES[found.state]), f"{found.what}: {printable(found.text)}")
        console.print(line)
        if found.advice:
            console.print(f"        -> {printable(found.advice)}")
    if wrong:
        _say(f"{wrong} {'thing is' if wrong == 1 else 'things are'} wrong; the lines after -> say what to do.")
        raise typer.Exit(1)
    if warnings:
        _say("Nothing is wrong, but read the warnings above; ./start.sh connects the site.")
    else:
        _say("The site is ready: ./start.sh connects it.")


def _say(line: str) -> None:
    console.print(printable(line, 1000))


def _tell_superlink(server: Path) -> None:
    """Register and unregister keys, or say how it is done later."""
    from fedgen.federate.deploy.superlink import NotRunningError, register_keys

    try:
        for line in register_keys(server):
            _say(f"{line}.")
    except NotRunningError:
        _say("SuperLink does not run: when server/superlink.sh does, run server/register.sh once.")
    except FedgenError as error:
        raise FedgenError(
            f"the folders are changed, but SuperLink does not know all of it yet: {error}; then run server/register.sh"
        ) from error


def _picture(found: Any) -> Group:
    run = found.run
    head = [f"run {run.name}: {run.state}" if run.name else run.state]
    if run.algorithm:
        head.append(run.algorithm)
    if run.name:
        head.append(f"round {run.round} of {run.rounds or '?'}")
    if run.seconds is not None:
        head.append(f"{run.seconds:.1f} s a round")
    if run.score:
        name, value = next(iter(run.score.items()))
        head.append(f"{name} {value:.2f} % after round {run.score_round}")
    lines = [", ".join(head), run.note]
    if found.superlink:
        lines.append(f"{found.superlink} (server/superlink.sh starts it)")
    if found.turned_away:
        lines.append(f"the gate refused {found.turned_away:,} requests of unknown senders (server/gate.jsonl)")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for column, side in _COLUMNS:
        table.add_column(column, justify=side)  # type: ignore[arg-type]
    for site in found.sites.values():
        table.add_row(*(Text(printable(cell, 60)) for cell in _row(site)))
    troubles = [f"{site.name}: {site.trouble}" for site in found.sites.values() if site.trouble]
    return Group(*map(_line, filter(None, lines)), table, *map(_line, troubles))


def _line(text: str) -> Text:
    return Text(printable(text))


_COLUMNS = (
    ("site", "left"), ("state", "left"), ("last seen", "right"), ("round", "right"), ("seconds", "right"),
    ("up", "right"), ("down", "right"), ("failed", "right"), ("refused", "right"),
)  # fmt: skip


def _row(site: Any) -> tuple[str, ...]:
    strikes = f" ({site.strikes} strikes)" if site.strikes else ""
    return (
        site.name, site.state, _ago(site.last_seen), str(site.round or ""),
        "" if site.seconds is None else f"{site.seconds:.1f}", _bytes(site.bytes_up), _bytes(site.bytes_down),
        str(site.failures or ""), f"{site.refusals}{strikes}" if site.refusals else "",
    )  # fmt: skip


def _ago(when: float | None) -> str:
    if when is None:
        return ""
    seconds = max(time.time() - when, 0)
    if seconds > 86_400:
        return f"{datetime.fromtimestamp(when):%Y-%m-%d %H:%M}"
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def _bytes(size: int) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size} {unit}" if size else ""
        size //= 1000
    return f"{size} GB"
