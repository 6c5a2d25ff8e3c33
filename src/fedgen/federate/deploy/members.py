"""Adding and removing sites, and replacing their keys, in the folders that `init` wrote.

Files change in an order in which a command that was killed between two of them can be given again.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from fedgen.config import checked
from fedgen.errors import FedgenError, unknown
from fedgen.federate.deploy import keys
from fedgen.federate.deploy.edit import read_values, set_values
from fedgen.federate.deploy.folders import Folders, write_site, write_site_keys
from fedgen.federate.deploy.record import read_deployment
from fedgen.federate.deploy.retired import is_retired, kept_key, replace_key, retire
from fedgen.federate.deploy.scripts import write_site_script
from fedgen.federate.deploy.site_folder import write_site_rest
from fedgen.federate.deploy.turns import changing, staged
from fedgen.federate.schema import ServerSettings, SiteSettings, read_settings
from fedgen.files import read_text, write_whole

_UNFINISHED = "unfinished"  # what a command that is killed leaves behind


class KeyTakenError(FedgenError):
    """The key that a site is to get is one that `site` has already."""

    def __init__(self, path: Path, site: str) -> None:
        super().__init__(f"{path} is the key that {site} has already; every site needs its own")
        self.site = site


def add_site(folders: Folders, name: str, public_key: Path | None = None) -> Path:
    """Add a site and return its new folder; one that was removed before gets back its number.

    With the site's own public key, the folder has no private one. What was interrupted before begins anew.
    """
    with changing(folders.server):
        settings, site, toml = _settings(folders), folders.site(name), folders.server / "server.toml"
        new = _unfinished(folders)
        begun, known = new.site(name).exists(), name in settings.sites
        if known and name not in settings.removed and not begun:
            raise FedgenError(f"{name} is a site already; `fedgen federate rotate-key` gives it another key")
        if not known:
            check_names([*(other for other in settings.sites if other.casefold() == name.casefold()), name][-2:])
        number = settings.sites.index(name) if known else len(settings.sites)
        described: SiteSettings = checked(SiteSettings, {"name": name, "number": number, "data": "data.npz"}, "")
        deployment = read_deployment(folders.server)
        for there in (site, *(() if begun else (folders.public_key(name),))):
            if there.exists():
                raise FedgenError(f"{there} exists already, and nothing is overwritten; move it away first")
        public = None if public_key is None else _own_key(folders, public_key, besides=name if begun else "")

        files = (*_key_files(folders, name), toml, folders.app / "config.toml")
        with staged(new.site(name), site, *files):
            write_site(new, described)
            if public is None:
                public = write_site_keys(new.site(name))
            write_whole(new.site(name) / "ca.crt", read_text(folders.server / "ca.crt", "it is needed").encode())
            write_site_script(new, name, deployment.address)
            write_site_rest(new, name, deployment)
            if not known:
                _count(folders, number + 1)
                set_values(toml, sites=[*settings.sites, name])
            elif name in settings.removed:
                set_values(toml, removed=[other for other in settings.removed if other != name])
            replace_key(folders.public_key(name), public)  # from now on the gate lets it in
    return site


def check_names(names: Sequence[str]) -> None:
    """Refuse names of sites that some disks take for one, which would be one folder and one key."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(name.casefold(), name)) != name:
            raise FedgenError(
                f"{other} and {name} differ by capital letters only, and would be one folder on disks that do not tell"
                " these apart; choose another name"
            )


def remove_site(folders: Folders, name: str) -> None:
    """Remove a site: its key is taken away, and the site is not asked again. It keeps its place in the list."""
    with changing(folders.server):
        settings, begun = _settings(folders), _unfinished(folders).site(name)
        _check_member(folders, settings, name)
        left = len(settings.sites) - len(settings.removed) - 1
        if left < settings.min_sites:
            are = "is 1 site" if left == 1 else f"are {left} sites"
            raise FedgenError(
                f"without {name} there {are}, and min_sites in server/server.toml is {settings.min_sites}:"
                " add another site first, or lower it"
            )
        retire(folders.public_key(name))  # first: from now on the gate refuses it
        set_values(folders.server / "server.toml", removed=[*settings.removed, name])
        shutil.rmtree(begun, ignore_errors=True)


def rotate_key(folders: Folders, name: str, public_key: Path | None = None) -> Path | None:
    """Replace a site's key, by its own or by a new pair, whose folder is returned."""
    with changing(folders.server):
        _check_member(folders, _settings(folders), name)
        if (begun := _unfinished(folders).site(name)).exists():
            raise _interrupted(name, begun)
        if public_key is not None:
            replace_key(folders.public_key(name), _own_key(folders, public_key))
            return None
        place, new = folders.root / "new-keys" / name, folders.root / _UNFINISHED / "new-keys" / name
        if place.exists():
            raise FedgenError(f"{place} exists already; delete the folder, or move it away, and try again")
        with staged(new, place, *_key_files(folders, name)):
            replace_key(folders.public_key(name), write_site_keys(new))
        return place


def _unfinished(folders: Folders) -> Folders:
    """The same federation, with the folders of sites that are being added; there, one says that it is not finished."""
    return Folders(folders.root, sites=folders.root / _UNFINISHED / "sites")


def _settings(folders: Folders) -> ServerSettings:
    settings = read_settings(folders.server / "server.toml", ServerSettings)
    if not settings.authenticated:
        raise FedgenError("the sites of this federation have no keys (authenticated = false in server/server.toml)")
    return settings


def _check_member(folders: Folders, settings: ServerSettings, name: str) -> None:
    if name in settings.removed:
        raise FedgenError(f"{name} was removed; `fedgen federate add-site` brings it back")
    if name not in settings.sites:
        if (begun := _unfinished(folders).site(name)).exists():
            raise _interrupted(name, begun)
        raise unknown("site", name, set(settings.sites) - set(settings.removed))


def _interrupted(name: str, begun: Path) -> FedgenError:
    return FedgenError(f"{name} was not added to the end ({begun} is left): `fedgen federate add-site` does so")


def _own_key(folders: Folders, path: Path, besides: str = "") -> bytes:
    """A public key that a site has made itself, and that no site has or had already, but perhaps this one has."""
    public, folder = keys.checked_public_key(path), folders.server / "keys"
    pem = keys.as_pem(public, path)
    having = [name for name, other in keys.public_keys(folder).items() if other == pem]
    for name in having:
        if name != besides:
            raise KeyTakenError(path, name)
    if not having and is_retired(pem, folder):
        raise FedgenError(
            f"{path} is a key that was replaced or removed before, which SuperLink never takes again; {keys.MAKE_ONE}"
        )
    return public


def _key_files(folders: Folders, name: str) -> list[Path]:
    """What changes when a site gets a key: that, and where the one before it is kept."""
    key = folders.public_key(name)
    return [key, kept_key(key)] if key.exists() else [key]


def _count(folders: Folders, users: int) -> None:
    """Count another site in config.toml, for the runs to come; where all sites are active, it is, too."""
    path = folders.app / "config.toml"
    before = read_values(path)
    if before.get("active") == before.get("users"):
        set_values(path, users=users, active=users)
    else:
        set_values(path, users=users)
