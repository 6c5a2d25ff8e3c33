"""What `fedgen federate init` writes: the folders of server and sites, and a README with the commands to run."""

from pathlib import Path

from fedgen.config import RunConfig
from fedgen.federate.deploy.connection import write_connection
from fedgen.federate.deploy.folders import (
    APP,
    Folders,
    commented,
    new_folder,
    without_paths,
    write_app,
    write_keys,
    write_server,
    write_site,
)
from fedgen.federate.deploy.hosts import checked_bind, checked_host
from fedgen.federate.deploy.record import DEPLOYMENT, bracketed, new_deployment
from fedgen.federate.deploy.scripts import Endpoints, write_scripts
from fedgen.federate.deploy.site_folder import write_site_rest
from fedgen.federate.deploy.units import SERVER_UNIT, write_server_unit
from fedgen.federate.schema import ServerSettings, SiteSettings, TaskSettings
from fedgen.files import write_whole

_README = """\
# A federation of {count} sites

The training settings are in `{app}/config.toml`, the shape of the data in `{app}/task.toml`. Both are sent to the
sites.

## At the server ({host})

The gate listens on {bind}, port {port}, and forwards only what sites need to SuperLink: open the firewall for this
port, preferably for the sites' addresses only. SuperLink listens on 127.0.0.1:{inner}. Whoever reaches *that* port can
register sites and run programs here, since Flower's control interface asks for no password: never open it to others,
and give nobody an account on this machine who must not do that.

`server/` stays here. So does `authority/`, whose key is needed only to make another server certificate: keep it
offline. Install FedGen (`pip install '.[{extras}]'` in a clone of it), then, in this folder, with this README:

    server/superlink.sh          # SuperLink and the gate: keep it running; gate.jsonl lists what was refused
    server/register.sh           # once, while SuperLink runs
    server/run.sh                # start a run, or resume it after an interruption; server/log.jsonl is its log

Timeouts, the least number of sites and other limits are in `server/server.toml`. Results are in `server/runs/run`.
`server/{unit}` lets systemd keep `superlink.sh` running; how is at its top. After a reboot, or another
restart of SuperLink, call `server/run.sh` by hand: it resumes the run that was interrupted.

Also in this folder:

    fedgen federate status . --watch             # the run's progress, and what each site does
    fedgen federate add-site . NAME              # also while a run goes on: the site joins it
    fedgen federate remove-site . NAME           # refused at once, and left out from the next round on
    fedgen federate rotate-key . NAME            # another key for a site
    fedgen federate renew-certificate .          # before the server's certificate ends, after 825 days

## At each site

Hand each site its folder, over a channel that you trust: it holds the site's private key, so delete the folder here
once it has arrived. There, install FedGen in the same version (`pip install '.[{extras}]'` in a clone of it), point
`data` in `site.toml` at the site's data, and

    fedgen federate doctor .     # what is not in order, and what to do about it
    ./start.sh                   # keep it running; log.jsonl lists what the site was asked and what it sent

The folder's own README.md says so, too.

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
) -> Folders:
    """Create the folders of a federation whose gate listens on `bind` and is reached by the sites as `host`."""
    host, bind = checked_host(host), checked_bind(bind)
    folders, names = new_folder(path), list(settings.sites)
    write_app(folders, config, task)
    write_server(folders, settings)
    for number, name in enumerate(names):
        write_site(folders, SiteSettings(name=name, number=number, data="data.npz"))
    write_keys(folders, names, [host, *(h for h in ("localhost", "127.0.0.1") if h != host)])
    write_connection(folders.server, f"127.0.0.1:{superlink_port}", tls=True)
    deployment = new_deployment(host, port)
    write_whole(folders.server / DEPLOYMENT, commented(deployment).encode())
    write_scripts(folders, names, Endpoints(f"{bracketed(bind)}:{port}", superlink_port, deployment.address))
    write_server_unit(folders.server)
    for name in names:
        write_site_rest(folders, name, deployment)
    extras = "flower,privacy" if config.dp_noise else "flower"
    listed = ", ".join(names)
    text = _README.format(
        extras=extras, count=len(names), app=APP, host=host, port=port, bind=bind, inner=superlink_port, sites=listed,
        unit=SERVER_UNIT,
    )  # fmt: skip
    if needed := without_paths(config).plugins:
        text += _PLUGINS.format(listed="\n".join(f"- {name}: {origin}" for name, origin in needed.items()))
    write_whole(folders.root / "README.md", text.encode())
    return folders
