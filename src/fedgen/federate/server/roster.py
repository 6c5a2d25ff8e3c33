"""Which sites are connected: maps Flower's nodes to the sites' numbers.

Node ids are random and change. A site's number is fixed: it is the simulator's user number, on which all random draws
depend. With authentication, Flower has checked a node's key and knows the name under which it was registered; the key
must also be the one in the server's folder for that name. Without it, a node is asked for its name and believed.
"""

import contextlib
import time
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedgen.federate.journal import Journal
from fedgen.federate.schema import ServerSettings
from fedgen.federate.server.membership import Membership
from fedgen.federate.server.replies import Replies, SendError, send
from fedgen.federate.text import printable
from fedgen.federate.wire import InvalidMessageError, field, records


class Roster:
    """Keeps track of which node belongs to which site."""

    def __init__(self, grid: Grid, settings: ServerSettings, journal: Journal, members: Membership) -> None:
        self._grid, self._settings, self._journal = grid, settings, journal
        self._replies = Replies(grid)
        self._members = members
        self._site_of: dict[int, int] = {}  # by node
        self._asked: dict[str, int] = {}  # by message id: the node that was asked for its name
        self._strangers: set[int] = set()
        self._seen: dict[int, str] = {}  # by site: when its node was last activated
        self._present: set[int] = set()
        self._duplicated: set[int] = set()  # sites with two nodes under their name

    def present(self) -> dict[int, int]:
        """The sites that are connected now, and their nodes."""
        self.refresh()
        nodes = {node.node_id: node for node in self._grid.get_nodes()}
        self._identify(nodes)
        found: dict[int, int] = {}
        duplicated: set[int] = set()
        for node_id in sorted(nodes, key=lambda n: nodes[n].last_activated_at):
            site = self._site_of.get(node_id)
            if site is not None and self.name(site) not in self._members.removed:
                if site in found and self._settings.authenticated:
                    duplicated.add(site)  # two keys under one name: it is not known which one is the site's
                found[site] = node_id  # without keys, a site that restarts is a new node: the latest one counts
                self._seen[site] = nodes[node_id].last_activated_at
        for site in duplicated:
            del found[site]
            if site not in self._duplicated:
                reason = "two keys are registered under its name; unregister the wrong one"
                self._journal.write("failed", site=self.name(site), reason=reason)
        self._duplicated = duplicated
        for site in sorted(set(found) - self._present):
            self._journal.write("joined", site=self.name(site))
        for site in sorted(self._present - set(found)):
            self._journal.write("left", site=self.name(site))
        self._present = set(found)
        return found

    def refresh(self) -> None:
        """Take up sites that were added or removed, and keys that were replaced."""
        if self._members.refresh():
            self._strangers.clear()
            if self._settings.authenticated:
                self._site_of.clear()  # whose key has been replaced is no longer the site

    def belonging(self) -> list[int]:
        """The numbers of the sites that belong to the federation, connected or not."""
        return self._members.numbers()

    def population(self) -> int:
        """How many numbers have been given to sites so far."""
        return len(self._members.sites)

    def identity(self, site: int) -> bytes | None:
        """What changes when a site is removed or its key replaced."""
        name = self.name(site)
        return None if name in self._members.removed else self._members.keys.get(name, b"")

    def arrival(self, site: int) -> str:
        """When the site connected; another value than before means that it reconnected."""
        return self._seen.get(site, "")

    def name(self, site: int) -> str:
        """A site's name."""
        return self._members.sites[site]

    def _identify(self, nodes: dict[int, Any]) -> None:
        new = [n for n in nodes if n not in self._site_of and n not in self._strangers]
        if self._settings.authenticated:
            for node_id in new:
                name = nodes[node_id].name
                # Where the server's folder has keys, a site without one is refused: so an operator shuts out a site.
                keys = self._members.keys
                if not keys or keys.get(name) == nodes[node_id].public_key:
                    self._assign(node_id, name)
                else:
                    self._strangers.add(node_id)
                    self._journal.write("stranger", node=str(node_id), reason=f"its key is not that of {name}")
            return
        for node_id in new:
            if node_id not in self._asked.values():
                question = Message(RecordDict(), node_id, "query", ttl=self._settings.round_timeout)
                with contextlib.suppress(SendError):  # it is asked again next time
                    self._asked[send(self._grid, question)] = node_id
        for asked, reply in self._replies.take(list(self._asked)):
            node_id = self._asked.pop(asked)
            try:
                if isinstance(reply, Exception):
                    raise InvalidMessageError(f"its answer cannot be unpacked: {type(reply).__name__}")
                if reply.has_error():
                    raise InvalidMessageError(f"it failed: {reply.error.reason[:300]}")
                self._assign(node_id, field(records(reply, {"site": ConfigRecord})["site"], "name", str))
            except InvalidMessageError as error:
                self._journal.write("stranger", node=str(node_id), reason=printable(str(error)))
                if isinstance(reply, Exception) or not reply.has_error():
                    self._strangers.add(node_id)

    def _assign(self, node_id: int, name: str) -> None:
        if name in self._members.sites:
            self._site_of[node_id] = self._members.sites.index(name)
        else:
            self._strangers.add(node_id)
            self._journal.write("stranger", node=str(node_id), reason=printable(f"its name is {name[:40]!r}"))


def wait_until(deadline: float, pause: float) -> bool:
    """Sleep for `pause` seconds or until the deadline; False when the deadline had passed already."""
    left = deadline - time.monotonic()
    if left <= 0:
        return False
    time.sleep(min(pause, left))
    return True
