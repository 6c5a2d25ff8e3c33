"""The folders of a federation, with their settings and keys: the app, the server and one for each site."""

import contextlib
from pathlib import Path

from pydantic import BaseModel

from fedgen import toml
from fedgen.config import READING, RunConfig, to_commented_toml
from fedgen.errors import FedgenError
from fedgen.federate.deploy import keys
from fedgen.federate.schema import SIMULATION_ONLY, ServerSettings, SiteSettings, TaskSettings
from fedgen.federate.settings import check_config
from fedgen.files import write_whole

APP = "fedgen-federation"
_MODULE = '''"""{what}. The code is in the installed fedgen package; this folder holds the settings."""

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


class Folders:
    """The paths of a federation: where server, sites, app and certificate authority have their files."""

    def __init__(self, root: Path, sites: Path | None = None) -> None:
        self.root = root
        self.sites = sites or root / "sites"
        self.app = root / APP
        self.server = root / "server"
        self.authority = root / "authority"

    def site(self, name: str) -> Path:
        """A site's folder."""
        return self.sites / name

    def site_key(self, name: str) -> Path:
        """A site's private key; the public one is beside it and at the server."""
        return self.site(name) / "site.key"

    def public_key(self, name: str) -> Path:
        """The server's copy of a site's public key."""
        return self.server / "keys" / f"{name}.pub"


def write_app(folders: Folders, config: RunConfig, task: TaskSettings) -> None:
    """Write the app folder for `flwr run`. Flower sends it to the sites, so nothing secret may be in it."""
    check_config(config)
    write_whole(folders.app / "pyproject.toml", _PYPROJECT.encode())
    public = without_paths(config)
    omitted = {key for key in SIMULATION_ONLY if getattr(public, key) == RunConfig.model_fields[key].default}
    if "alpha" not in omitted:
        omitted.discard("partition")
    write_whole(folders.app / "config.toml", to_commented_toml(public, omitted).encode())
    write_whole(folders.app / "task.toml", commented(task).encode())
    package = folders.app / "fedgen_federation"
    write_whole(package / "__init__.py", b'"""A federation of FedGen."""\n')
    write_whole(package / "server.py", _MODULE.format(what="The server app", half="server").encode())
    write_whole(
        package / "client.py", _MODULE.format(what="The client app, which runs at each site", half="client").encode()
    )


def without_paths(config: RunConfig) -> RunConfig:
    """The configuration without local paths of data: sites have their own data, and paths may be private."""
    options = {section: options for section, options in config.options.items() if section != "dataset"}
    plugins = {key: origin for key, origin in config.plugins.items() if not key.startswith("dataset ")}
    reading = {key: RunConfig.model_fields[key].default for key in READING}
    places = {"data_dir": "", "user_file": "", "partition_file": "", "plugins": plugins, **reading}
    return config.model_copy(update={"dataset": Path(config.dataset).stem, "options": options, **places})


def write_server(folders: Folders, settings: ServerSettings) -> None:
    """Write the server's settings."""
    write_whole(folders.server / "server.toml", commented(settings).encode())


def write_site(folders: Folders, settings: SiteSettings) -> None:
    """Write a site's settings."""
    write_whole(folders.site(settings.name) / "site.toml", commented(settings).encode())


def write_keys(folders: Folders, sites: list[str], hosts: list[str]) -> None:
    """Make a certificate authority for this federation, the server's certificate and a key pair for each site."""
    authority = keys.make_authority()
    keys.write_private(folders.authority / "ca.key", authority.private_bytes())
    certificate = authority.certificate_bytes()
    for folder in (folders.authority, folders.server, *map(folders.site, sites)):
        write_whole(folder / "ca.crt", certificate)
    private, public = keys.make_server_certificate(authority, hosts)
    keys.write_private(folders.server / "server.key", private)
    write_whole(folders.server / "server.crt", public)
    for name in sites:
        write_whole(folders.public_key(name), write_site_keys(folders.site(name)))


def write_site_keys(folder: Path) -> bytes:
    """Make a key pair in a folder that has none yet; returns the public key."""
    private, public = keys.make_site_keys()
    keys.write_private(folder / "site.key", private)
    write_whole(folder / "site.pub", public)
    return public


def commented(settings: BaseModel) -> str:
    """Settings as TOML, each under a comment that describes it."""
    fields = type(settings).model_fields.items()
    entries = [(str(about.description), {name: getattr(settings, name)}) for name, about in fields]
    return f"# {(type(settings).__doc__ or '').strip()}\n\n{toml.dumps_commented(entries)}"


def existing_federation(path: Path) -> Folders:
    """The federation that `init` wrote into a folder; the server's folder within it will do, too."""
    for root in (path, path.parent if path.name == "server" else path):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            (root / "server" / "server.toml").stat()
            return Folders(root.resolve())
    raise FedgenError(
        f"{path} holds no federation (no server/server.toml); give the folder that `fedgen federate init` wrote"
    )


def new_folder(path: Path) -> Folders:
    """Create an empty folder for a federation; one that is not empty is refused."""
    try:
        if path.exists() and any(path.iterdir()):
            raise FedgenError(f"{path} exists already and is not empty; choose another folder")
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FedgenError(f"folder {path} cannot be written: {error.strerror}") from error
    return Folders(path.resolve())
