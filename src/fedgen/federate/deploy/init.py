"""What `fedgen federate init` writes: all that the server and each site need, and the commands to run."""

from pathlib import Path

from fedgen.config import RunConfig
from fedgen.federate.deploy.folders import (
    APP,
    Place,
    new_folder,
    without_places,
    write_app,
    write_connection,
    write_keys,
    write_server,
    write_site,
)
from fedgen.federate.deploy.scripts import Doors, write_scripts
from fedgen.federate.settings import ServerSettings, SiteSettings, TaskSettings
from fedgen.files import write_whole

_README = """\
# A federation of {count} sites

What is learned and how: `{app}/config.toml`. What the data looks like: `{app}/task.toml`. Both travel to the sites.

## At the server ({host})

The gate listens on {bind}, port {port}, and lets through what sites need and nothing else: open the firewall for it,
best for the sites' addresses only. SuperLink listens behind it on 127.0.0.1:{inner}. Whoever reaches *that* port can
register sites and run programs here, since Flower's control interface on it asks for no password: never open it to
others, and let nobody have an account on this machine whom you would not let do that.

`server/` stays here, and so does `authority/`, whose key is needed only to make another server certificate: put it
away safely. Install FedGen (`pip install '.[{extras}]'` in a clone of it), then

    server/superlink.sh          # SuperLink and the gate: keep it running; gate.jsonl says what was refused
    server/register.sh           # once, while SuperLink runs
    server/run.sh                # start a run, or continue it after an interruption; server/log.jsonl says what happens

Timeouts, the least number of sites and other limits are in `server/server.toml`. Results are in `server/runs/run`.

## At each site

Hand each site its folder, over a channel that you trust: it holds the site's private key, so delete the folder here
once it has arrived. There, install FedGen in the same version (`pip install '.[{extras}]'` in a clone of it), point
`data` in `site.toml` at the site's data, and

    ./start.sh                   # keep it running; log.jsonl says what the site was asked and what it sent

Sites: {sites}.
"""
_PLUGINS = """
## Plug-ins

The server and all sites need these in the same version, or as the same file in their folders:

{listed}
"""


def begin(
    path: Path,
    config: RunConfig,
    task: TaskSettings,
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    bind: str,
    superlink_port: int,
) -> Place:
    """A new folder with an app, a server whose gate listens on `bind`, and its sites, which reach it as `host`."""
    place, names = new_folder(path), list(settings.sites)
    write_app(place, config, task)
    write_server(place, settings)
    for number, name in enumerate(names):
        write_site(place, SiteSettings(name=name, number=number, data="data.npz"))
    write_keys(place, names, [host, *(h for h in ("localhost", "127.0.0.1") if h != host)])
    write_connection(place, f"127.0.0.1:{superlink_port}", tls=True)
    write_scripts(place, names, Doors(f"{_bracketed(bind)}:{port}", superlink_port, f"{_bracketed(host)}:{port}"))
    extras = "flower,privacy" if config.dp_noise else "flower"
    listed = ", ".join(names)
    text = _README.format(
        extras=extras, count=len(names), app=APP, host=host, port=port, bind=bind, inner=superlink_port, sites=listed
    )  # fmt: skip
    if needed := without_places(config).plugins:
        text += _PLUGINS.format(listed="\n".join(f"- {name}: {origin}" for name, origin in needed.items()))
    write_whole(place.root / "README.md", text.encode())
    return place


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
