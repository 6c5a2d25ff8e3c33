"""Who holds the gate's connections: each site has some of its own, and all who have not said who they are share some.

A connection is a stranger's until a site has signed a request on it. Strangers cannot crowd out sites that are
connected; and a site that comes takes the place of a stranger, the oldest one of those that hold the most. Whoever has
as many as are allowed and opens another one loses the one of its own that was silent longest.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

from fedgen.federate.gate.rules import TurnedAwayError

STRANGERS, FROM_ONE_NETWORK, OF_ONE_SITE = 128, 32, 8  # a SuperNode has about four


class Guest:
    """One open connection."""

    def __init__(self, address: str, leave: Callable[[], object]) -> None:
        self.address, self.leave = address, leave  # which ends the connection
        self.network = network_of(address)
        self.site = ""
        self.heard = time.monotonic()  # when it came, or when its latest request did


class Connections:
    """All open connections."""

    def __init__(self) -> None:
        self._guests: set[Guest] = set()

    def enter(self, guest: Guest) -> None:
        """Let a stranger in; where its network, or all, have too many of them, another one has to go."""
        strangers = [other for other in self._guests if not other.site]
        neighbours = [other for other in strangers if other.network == guest.network]
        self._guests.add(guest)
        if len(neighbours) >= FROM_ONE_NETWORK:
            self._end_one(neighbours)
        elif len(strangers) >= STRANGERS:
            held = Counter(other.network for other in strangers)
            most = max(held.values())
            # Whoever has just come from elsewhere is never the one.
            self._end_one([other for other in strangers if held[other.network] == most])

    def sign(self, guest: Guest, site: str) -> None:
        """A site's signature was found right on this connection: it is that site's from now on.

        Where the site has too many, the one that was silent longest ends: the site may know of it no longer.
        """
        guest.heard = time.monotonic()
        if guest.site == site:
            return
        if guest.site:
            raise TurnedAwayError(400, f"the connection is {guest.site}'s", site)
        own = [other for other in self._guests if other.site == site]
        if len(own) >= OF_ONE_SITE:
            self._end_one(own)
        guest.site = site

    def _end_one(self, guests: list[Guest]) -> None:
        silent = min(guests, key=lambda guest: guest.heard)
        self._guests.discard(silent)
        silent.leave()

    def exit(self, guest: Guest) -> None:
        """The connection has ended."""
        self._guests.discard(guest)


def network_of(address: str) -> str:
    """An IPv4 address, or the /64 of an IPv6 address, which is what one customer of a provider has at least."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)
