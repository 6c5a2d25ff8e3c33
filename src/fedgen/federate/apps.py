"""The server app and the client app, which the modules in the app folder hand to Flower."""

import math
import os
import re
import threading
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedgen.compiled import use_compilation_cache
from fedgen.errors import FedgenError
from fedgen.federate import wire
from fedgen.federate.journal import Journal, server_journal
from fedgen.federate.schema import SiteSettings, read_settings
from fedgen.federate.server.server import Server
from fedgen.federate.site.site import Site
from fedgen.federate.wire import InvalidMessageError

_LOOK = 0.5  # seconds between looks whether the parent process is still there
SERVER_VARIABLE = "FEDGEN_SERVER"  # the environment variable with the server's folder


def server_app(app: Path) -> ServerApp:
    """The server app; SuperLink must have been started with FEDGEN_SERVER set to the server's folder."""
    flower = ServerApp()

    @flower.main()
    def main(grid: Grid, context: Context) -> None:
        use_compilation_cache(least_seconds=0.0)  # Flower starts a process for each message
        folder = os.environ.get(SERVER_VARIABLE)
        if not folder:
            raise FedgenError(f"set {SERVER_VARIABLE} to the server's folder before starting flower-superlink")
        name = str(context.run_config.get("run", "run"))
        journal = server_journal(Path(folder), name)
        _end_with_parent()
        try:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
                raise FedgenError(f"the run is called {name!r}; use letters, digits, '-', '_' and '.'")
            Server(app, Path(folder), name, grid, journal).run()
        except Exception as error:
            reason = str(error) if isinstance(error, FedgenError) else f"{type(error).__name__}: {error}"
            journal.write("ended", reason=reason, pid=os.getpid())  # which need not be the run's own process
            raise

    return flower


def _end_with_parent() -> None:
    """End this process soon after the one that started it, which SuperLink takes with it.

    Flower's client would try for minutes to reach a SuperLink that is gone, while the run cannot be resumed. Every file
    is written so that a kill at any time does no harm.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def client_app(app: Path) -> ClientApp:
    """The client app of a site; its SuperNode must have been started with `folder` in its node configuration."""
    flower = ClientApp()

    @flower.query()
    def query(message: Message, context: Context) -> Message:
        try:
            name = read_settings(_folder(context) / "site.toml", SiteSettings).name
        except FedgenError as error:
            raise FedgenError(error_for_server(error)) from None
        return Message(RecordDict({"site": ConfigRecord({"name": name})}), reply_to=message)

    @flower.train()
    def train(message: Message, context: Context) -> Message:
        return _answer(message, context, app, train=True)

    @flower.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _answer(message, context, app, train=False)

    return flower


def _answer(message: Message, context: Context, app: Path, *, train: bool) -> Message:
    """Reply to a message; an error goes into the site's journal in full, and to the server in one sentence."""
    use_compilation_cache(least_seconds=0.0)  # Flower starts a process for each message
    folder = _folder(context)
    journal = Journal(folder / "log.jsonl")
    try:
        return Message(answer(Site(folder, app), message, journal, train=train), reply_to=message)
    except Exception as error:
        journal.write("failed", reason=f"{type(error).__name__}: {error}")
        raise FedgenError(error_for_server(error)) from None


def error_for_server(error: Exception) -> str:
    """What the server learns of an error: why its message was refused, but no other text, which may be private."""
    if isinstance(error, InvalidMessageError):
        return str(error)
    what = "its data or settings are not in order" if isinstance(error, FedgenError) else type(error).__name__
    return f"{what}; the site's own log.jsonl says more"


def answer(site: Site, message: Message, journal: Journal, *, train: bool) -> RecordDict:
    """A site's reply to the server's message."""
    if (whole := wire.whole_size(message.content)) > site.settings.max_message:
        raise InvalidMessageError(f"the server's message has {whole:,} bytes, more than max_message allows")
    content = wire.records(message, {"broadcast": ArrayRecord, "about": ConfigRecord})
    about = content["about"]
    run, number = wire.field(about, "run", str), wire.field(about, "round", int)
    ticket, expected = wire.field(about, "ticket", str), wire.field(about, "site", int)
    if expected != site.settings.number:
        raise InvalidMessageError(
            f"site.toml of {site.settings.name} says number = {site.settings.number}, but in the server's list of sites"
            f" it is number {expected}"
        )
    broadcast = wire.decode(content["broadcast"], site.plan.forms.broadcast)
    journal.write(
        "train" if train else "evaluate",
        run=run, round=number, after=site.last_round(run, number), received=wire.size(message.content), pid=os.getpid(),
    )  # fmt: skip
    echo = ConfigRecord({"run": run, "round": number, "site": expected, "ticket": ticket})
    private = site.plan.config.dp_noise > 0  # loss and scores have no noise added, so they stay at the site
    if not train:
        score = site.evaluate(run, number, broadcast) if site.settings.evaluate else None
        journal.write("evaluated", round=number, score=score and score._asdict())
        metrics = MetricRecord({} if score is None or private else score._asdict())
        return RecordDict({"about": echo, "metrics": metrics})
    trained = site.train(run, number, broadcast, ticket)
    upload = wire.encode(trained.upload)
    loss = float(trained.loss)
    sent = wire.size(RecordDict({"upload": upload}))
    journal.write("trained", round=number, sent=sent, loss=loss if math.isfinite(loss) else None)
    metrics = MetricRecord({} if private else {"loss": loss})
    return RecordDict({"upload": upload, "about": echo, "metrics": metrics})


def _folder(context: Context) -> Path:
    folder = context.node_config.get("folder")
    if not isinstance(folder, str):
        raise FedgenError("start flower-supernode with --node-config 'folder=\"PATH\"', the site's folder")
    return Path(folder)
