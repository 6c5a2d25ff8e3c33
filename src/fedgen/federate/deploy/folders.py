"""The folders of a federation: the app, the server's, one for each site, and the keys that belong to each."""

import textwrap
from pathlib import Path

from pydantic import BaseModel

from fedgen.config import RunConfig, to_commented_toml, toml_value
from fedgen.errors import FedgenError
from fedgen.federate.deploy import keys
from fedgen.federate.settings import ServerSettings, SiteSettings, TaskSettings, check_config
from fedgen.files import write_whole

APP = "fedgen-federation"
CONNECTION = "federation"  # what the server's Flower configuration calls its SuperLink
# What divides one dataset among users: sites have their data already. Left out of config.toml unless it was set.
_OF_A_SIMULATION = (
    "data_dir",
    "user_file",
    "partition",
    "partition_file",
    "alpha",
    "train_fraction",
    "class_limit",
    "proxy_limit",
    "seeds",
    "evaluate_on",
    "validation",
    "score_users",
)
_MODULE = '''"""{what}; it is in the installed package, and this folder holds its settings."""

from pathlib import Path

from fedgen.federate.apps import {half}_app

app = {half}_app(Path(__file__).parents[1])
'''
_PYPROJECT = f"""\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{APP}"
version = "1.0.0"
description = "A federation of FedGen: config.toml says what is learned and how, task.toml what the data looks like"
license = "Apache-2.0"
dependencies = ["fedgen[flower]"]

[tool.flwr.app]
publisher = "fedgen"

[tool.flwr.app.components]
serverapp = "fedgen_federation.server:app"
clientapp = "fedgen_federation.client:app"

[tool.flwr.app.config]
run = "run"  # the name of the run's folder at the server
"""


class Place:
    """Where things are in a federation's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.app = root / APP
        self.server = root / "server"
        self.authority = root / "authority"

    def site(self, name: str) -> Path:
        """A site's folder."""
        return self.root / "sites" / name

    def site_key(self, name: str) -> Path:
        """A site's private key; the public one is beside it and at the server."""
        return self.site(name) / "site.key"

    def public_key(self, name: str) -> Path:
        """The server's copy of a site's public key."""
        return self.server / "keys" / f"{name}.pub"


def write_app(place: Place, config: RunConfig, task: TaskSettings) -> None:
    """The folder that `flwr run` takes. It travels to the sites, so nothing secret belongs into it."""
    check_config(config)
    write_whole(place.app / "pyproject.toml", _PYPROJECT.encode())
    known = without_places(config)
    unsaid = {key for key in _OF_A_SIMULATION if getattr(known, key) == RunConfig.model_fields[key].default}
    if "alpha" not in unsaid:
        unsaid.discard("partition")
    write_whole(place.app / "config.toml", to_commented_toml(known, unsaid).encode())
    write_whole(place.app / "task.toml", commented(task).encode())
    package = place.app / "fedgen_federation"
    write_whole(package / "__init__.py", b'"""A federation of FedGen."""\n')
    write_whole(package / "server.py", _MODULE.format(what="The server's half", half="server").encode())
    write_whole(package / "client.py", _MODULE.format(what="A site's half", half="client").encode())


def without_places(config: RunConfig) -> RunConfig:
    """The configuration without where its maker has the data: sites have their own, and paths are nobody's business."""
    options = {section: options for section, options in config.options.items() if section != "dataset"}
    plugins = {key: origin for key, origin in config.plugins.items() if not key.startswith("dataset ")}
    places = {"data_dir": "", "user_file": "", "partition_file": "", "plugins": plugins}
    return config.model_copy(update={"dataset": Path(config.dataset).stem, "options": options, **places})


def write_server(place: Place, settings: ServerSettings) -> None:
    """The server's settings."""
    write_whole(place.server / "server.toml", commented(settings).encode())


def write_connection(place: Place, address: str, tls: bool) -> None:
    """How the `flwr` command at the server finds its SuperLink."""
    trust = f"root-certificates = {toml_value(str(place.server / 'ca.crt'))}" if tls else "insecure = true"
    connection = f"""\
        [superlink]
        default = "{CONNECTION}"

        [superlink.{CONNECTION}]
        address = "{address}"
        {trust}
        """
    write_whole(place.server / "flower" / "config.toml", textwrap.dedent(connection).encode())


def write_site(place: Place, settings: SiteSettings) -> None:
    """A site's settings."""
    write_whole(place.site(settings.name) / "site.toml", commented(settings).encode())


def write_keys(place: Place, sites: list[str], hosts: list[str]) -> None:
    """An authority of the federation's own, the server's certificate from it, and a pair of keys for each site."""
    authority = keys.make_authority()
    keys.write_private(place.authority / "ca.key", authority.private_bytes())
    certificate = authority.certificate_bytes()
    for folder in (place.authority, place.server, *map(place.site, sites)):
        write_whole(folder / "ca.crt", certificate)
    private, public = keys.make_server_certificate(authority, hosts)
    keys.write_private(place.server / "server.key", private)
    write_whole(place.server / "server.crt", public)
    for name in sites:
        private, public = keys.make_site_keys()
        keys.write_private(place.site_key(name), private)
        write_whole(place.site_key(name).with_suffix(".pub"), public)
        write_whole(place.public_key(name), public)


def commented(settings: BaseModel) -> str:
    """Settings as TOML, each under a line that says what it is."""
    lines = [f"# {(type(settings).__doc__ or '').strip()}", ""]
    for name, about in type(settings).model_fields.items():
        lines += [f"# {about.description}", f"{name} = {toml_value(getattr(settings, name))}", ""]
    return "\n".join(lines)


def new_folder(path: Path) -> Place:
    """An empty folder for a federation; one that holds anything is refused."""
    try:
        if path.exists() and any(path.iterdir()):
            raise FedgenError(f"{path} exists already and is not empty; choose another folder")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedgenError(f"folder {path} cannot be written: {error.strerror}") from error
    return Place(path.resolve())
