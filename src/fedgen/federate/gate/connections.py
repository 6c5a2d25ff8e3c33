"""The gate's open connections, and which one is closed when there are too many.

A connection is unauthenticated until a site has signed a request on it; from then on it is that site's. Each site has
its own limit, and all unauthenticated connections share one, so that strangers cannot crowd out connected sites. A
new connection is always accepted: when all places for unauthenticated ones are taken, it replaces the oldest one of
the network that holds the most. A site at its own limit loses the connection that it has not used for longest.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

from fedgen.federate.gate.rules import RequestRefusedError

UNAUTHENTICATED, PER_NETWORK, PER_SITE = 128, 32, 8  # limits; a SuperNode opens about four
IN_USE = 30.0  # seconds; a SuperNode sends a heartbeat every 27 or less


class Connection:
    """One open connection."""

    def __init__(self, address: str, close: Callable[[], object]) -> None:
        self.address, self.close = address, close
        self.network = network_of(address)
        self.site = ""  # until a request was signed by one
        self.last_active = time.monotonic()  # when it was opened, or when its latest request came


class ConnectionPool:
    """All open connections."""

    def __init__(self) -> None:
        self._connections: set[Connection] = set()

    def add(self, connection: Connection) -> None:
        """Add a new, unauthenticated connection; above a limit, another unauthenticated one is closed."""
        strangers = [other for other in self._connections if not other.site]
        neighbours = [other for other in strangers if other.network == connection.network]
        self._connections.add(connection)
        if len(neighbours) >= PER_NETWORK:
            self._close_oldest(neighbours)
        elif len(strangers) >= UNAUTHENTICATED:
            held = Counter(other.network for other in strangers)
            most = max(held.values())
            # The new connection itself is not among them, so it is never the one that is closed.
            self._close_oldest([other for other in strangers if held[other.network] == most])

    def authenticate(self, connection: Connection, site: str) -> None:
        """A valid signature of a site came on this connection, which is that site's from now on.

        A site at its limit loses the connection it has not used for longest: it may not even know of it any more.
        """
        connection.last_active = time.monotonic()
        if connection.site == site:
            return
        if connection.site:
            raise RequestRefusedError(400, f"the connection is {connection.site}'s", site)
        own = [other for other in self._connections if other.site == site]
        if len(own) >= PER_SITE:
            self._close_oldest(own)
        connection.site = site

    def is_elsewhere(self, connection: Connection) -> bool:
        """Whether its site has another connection in use: not one of a process that has ended or lost its network."""
        since = time.monotonic() - IN_USE
        others = (other for other in self._connections if other.site == connection.site and other is not connection)
        return any(other.last_active > since for other in others)

    def _close_oldest(self, connections: list[Connection]) -> None:
        oldest = min(connections, key=lambda connection: connection.last_active)
        self._connections.discard(oldest)
        oldest.close()

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self._connections.discard(connection)


def network_of(address: str) -> str:
    """An IPv4 address, or the /64 of an IPv6 address, the smallest network that providers give to one customer."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)
