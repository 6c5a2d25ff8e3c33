"""Adding and removing sites, and replacing their keys, in the folders that `init` wrote."""

from pathlib import Path

from fedgen.config import checked
from fedgen.errors import FedgenError, unknown
from fedgen.federate.deploy import keys
from fedgen.federate.deploy.edit import read_values, set_values
from fedgen.federate.deploy.folders import Folders, write_site, write_site_keys
from fedgen.federate.deploy.record import read_deployment
from fedgen.federate.deploy.scripts import write_site_script
from fedgen.federate.deploy.site_folder import write_site_rest
from fedgen.federate.schema import ServerSettings, SiteSettings, read_settings
from fedgen.files import read_text, write_whole


def add_site(folders: Folders, name: str, public_key: Path | None = None) -> Path:
    """Add a site and return its new folder; one that was removed before gets back its number.

    With the site's own public key, the folder has no private one.
    """
    settings, site = _settings(folders), folders.site(name)
    back = name in settings.removed
    if name in settings.sites and not back:
        raise FedgenError(f"{name} is a site already; `fedgen federate rotate-key` gives it another key")
    number = settings.sites.index(name) if back else len(settings.sites)
    described: SiteSettings = checked(SiteSettings, {"name": name, "number": number, "data": "data.npz"}, "")
    deployment = read_deployment(folders.server)
    for there in (site, folders.public_key(name)):
        if there.exists():
            raise FedgenError(f"{there} exists already, and nothing is overwritten; move it away first")
    public = None if public_key is None else _own_key(folders, public_key)

    write_site(folders, described)
    if public is None:
        public = write_site_keys(site)
    write_whole(site / "ca.crt", read_text(folders.server / "ca.crt", "it is needed").encode())
    write_site_script(folders, name, deployment.address)
    write_site_rest(folders, name, deployment)
    if back:
        set_values(folders.server / "server.toml", removed=[other for other in settings.removed if other != name])
    else:
        before = (folders.server / "server.toml").read_bytes()
        set_values(folders.server / "server.toml", sites=[*settings.sites, name])
        try:
            _count(folders, len(settings.sites) + 1)
        except FedgenError:
            write_whole(folders.server / "server.toml", before)
            raise
    write_whole(folders.public_key(name), public)  # last: from now on the gate lets it in
    return site


def remove_site(folders: Folders, name: str) -> None:
    """Remove a site: its key is deleted, and the site is not asked again. It keeps its place in the list."""
    settings = _settings(folders)
    _check_member(settings, name)
    left = len(settings.sites) - len(settings.removed) - 1
    if left < settings.min_sites:
        raise FedgenError(
            f"without {name} there are {left} sites, and min_sites in server/server.toml is {settings.min_sites}: add"
            " another site first, or lower it"
        )
    folders.public_key(name).unlink(missing_ok=True)  # first: from now on the gate refuses it
    set_values(folders.server / "server.toml", removed=[*settings.removed, name])


def rotate_key(folders: Folders, name: str, public_key: Path | None = None) -> Path | None:
    """Replace a site's key, by its own or by a new pair, whose folder is returned."""
    _check_member(_settings(folders), name)
    place = None
    if public_key is None:
        place = folders.root / "new-keys" / name
        if place.exists():
            raise FedgenError(f"{place} exists already; delete the folder, or move it away, and try again")
        public = write_site_keys(place)
    else:
        public = _own_key(folders, public_key)
    write_whole(folders.public_key(name), public)
    return place


def _settings(folders: Folders) -> ServerSettings:
    settings = read_settings(folders.server / "server.toml", ServerSettings)
    if not settings.authenticated:
        raise FedgenError("the sites of this federation have no keys (authenticated = false in server/server.toml)")
    return settings


def _check_member(settings: ServerSettings, name: str) -> None:
    if name in settings.removed:
        raise FedgenError(f"{name} was removed; `fedgen federate add-site` brings it back")
    if name not in settings.sites:
        raise unknown("site", name, set(settings.sites) - set(settings.removed))


def _own_key(folders: Folders, path: Path) -> bytes:
    """A public key that a site has made itself."""
    public = keys.checked_public_key(path)
    pem = keys.as_pem(public, path)
    for name, other in keys.public_keys(folders.server / "keys").items():
        if other == pem:
            raise FedgenError(f"{path} is the key that {name} has already; every site needs its own")
    return public


def _count(folders: Folders, users: int) -> None:
    """Count another site in config.toml, for the runs to come; where all sites are active, it is, too."""
    path = folders.app / "config.toml"
    before = read_values(path)
    if before.get("active") == before.get("users"):
        set_values(path, users=users, active=users)
    else:
        set_values(path, users=users)
