"""Which sites belong to the federation now: `server.toml` and the folder `keys`, read again while a run goes on.

A site's number is its position in `sites`. So a site that was removed stays there, and `removed` names it as well.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.federate.deploy.keys import key_files, public_keys
from fedgen.federate.journal import Journal
from fedgen.federate.schema import ServerSettings, read_settings


class Membership:
    """The sites and their keys; `refresh` takes up what `fedgen federate add-site` and its like have written.

    With `fixed`, which is asked when a site is first added, the run keeps to the sites that it began with.
    """

    def __init__(
        self,
        folder: Path,
        settings: ServerSettings,
        journal: Journal,
        *,
        users: int = 0,
        fixed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder, self._journal, self._users, self._fixed = folder, journal, users, functools.cache(fixed)
        self._stamp: Any = None  # the settings may be older than the files: the first look reads them again
        self._kept_out: tuple[str, ...] = ()
        self.sites, self.removed = self._of_this_run(settings.sites), frozenset(settings.removed)
        self.keys = public_keys(folder / "keys")  # by name; if there are none, Flower's are trusted

    def numbers(self) -> list[int]:
        """The numbers of the sites that belong to the federation."""
        return [number for number, name in enumerate(self.sites) if name not in self.removed]

    def refresh(self) -> bool:
        """Read the files again if they have changed; True where sites or keys are others than before."""
        if (stamp := self._files()) == self._stamp:
            return False
        self._stamp = stamp
        try:
            settings = read_settings(self._folder / "server.toml", ServerSettings)
            keys = public_keys(self._folder / "keys")
            if settings.sites[: len(self.sites)] != self.sites:
                raise FedgenError("server.toml lists the sites in another order; a site's number is its place there")
        except FedgenError as error:
            self._journal.write("unchanged", reason=f"{error}; the run goes on with the sites that it had")
            return False
        before = self.sites, self.removed, self.keys
        self.sites, self.keys = self._of_this_run(settings.sites), keys
        self.removed = frozenset(settings.removed)
        for name in self.sites[len(before[0]) :]:
            self._journal.write("added", site=name)
        for name in sorted(self.removed - before[1]):
            self._journal.write("removed", site=name)
        for name in sorted(before[1] - self.removed):
            self._journal.write("added", site=name)
        return before != (self.sites, self.removed, self.keys)

    def _of_this_run(self, sites: tuple[str, ...]) -> tuple[str, ...]:
        """The sites that may take part: all, or those at the beginning where their number is fixed."""
        if not 0 < self._users < len(sites) or not self._fixed():
            return sites
        if (new := sites[self._users :]) != self._kept_out:
            reason = "the algorithm depends on the number of users; a run that is started anew has all sites"
            self._journal.write("unchanged", reason=f"{', '.join(new)} cannot join this run: {reason}")
            self._kept_out = new
        return sites[: self._users]

    def _files(self) -> tuple[object, ...]:
        """What tells whether the files have changed."""
        return key_files([self._folder / "server.toml", *sorted((self._folder / "keys").glob("*.pub"))])
