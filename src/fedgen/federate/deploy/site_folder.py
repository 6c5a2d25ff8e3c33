"""The rest of a site's folder: what explains it, keeps it running, and lets the site check itself."""

from fedgen.federate.deploy.folders import Folders, commented
from fedgen.federate.deploy.record import DEPLOYMENT, Deployment
from fedgen.federate.deploy.units import SITE_UNIT, write_site_unit
from fedgen.files import read_text, write_whole

EXPECTED = "federation"  # the folder within a site's that says what the federation expects of it
_README = """\
# Site {name}

This folder connects a site to the federation at {address}. It is the site's own: `site.key` is the site's identity and
must not be given to anybody.

1. Install FedGen {fedgen} with Flower (`pip install '.[flower]'` in a clone of FedGen).
2. Point `data` in `site.toml` at the site's data. What is expected of it is in `federation/task.toml`.
3. Check everything (clock, network, certificate, key, data, model), and again whenever something does not work:

       fedgen federate doctor .

4. Connect, and keep it running:

       ./start.sh

   or let systemd do so: `{unit}` says how at its top.

`log.jsonl` lists what the site was asked and what it sent.
"""


def write_site_rest(folders: Folders, name: str, deployment: Deployment) -> None:
    """Write README, systemd's unit and what the federation expects: configuration, form of the data and versions."""
    site = folders.site(name)
    about = {"name": name, "address": deployment.address, "fedgen": deployment.fedgen, "unit": SITE_UNIT}
    write_whole(site / "README.md", _README.format(**about).encode())
    write_site_unit(site)
    write_whole(site / EXPECTED / DEPLOYMENT, commented(deployment).encode())
    for file in ("config.toml", "task.toml"):  # nothing in them is secret: each run sends them to the sites
        write_whole(site / EXPECTED / file, read_text(folders.app / file, "it is needed").encode())
