"""Who holds the gate's connections: each site has some of its own, and all who have not said who they are share some.

A connection is a stranger's until a site has signed a request on it. Strangers cannot crowd out sites that are
connected; and a site that comes takes the place of a stranger, the oldest one of those that hold the most.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

from fedgen.federate.gate_rules import TurnedAwayError

STRANGERS, FROM_ONE_NETWORK, OF_ONE_SITE = 128, 32, 8  # a SuperNode has about four


class Guest:
    """One open connection."""

    def __init__(self, address: str, leave: Callable[[], object]) -> None:
        self.address, self.leave = address, leave  # which ends the connection
        self.network = network_of(address)
        self.site = ""
        self.since = time.monotonic()


class Connections:
    """All open connections."""

    def __init__(self) -> None:
        self._guests: set[Guest] = set()

    def enter(self, guest: Guest) -> None:
        """Let a stranger in; raises where its network has too many of them."""
        strangers = [other for other in self._guests if not other.site]
        held = Counter(other.network for other in strangers)
        if held[guest.network] >= FROM_ONE_NETWORK:
            raise TurnedAwayError(0, f"more than {FROM_ONE_NETWORK} connections without a site's signature")
        self._guests.add(guest)
        if len(strangers) >= STRANGERS:
            # Whoever has just come from elsewhere is never the one.
            oldest = min(strangers, key=lambda other: (-held[other.network], other.since))
            self._guests.discard(oldest)
            oldest.leave()

    def sign(self, guest: Guest, site: str) -> None:
        """A site's signature was found right on this connection: it is that site's from now on."""
        if guest.site == site:
            return
        if guest.site:
            raise TurnedAwayError(400, f"the connection is {guest.site}'s", site)
        if sum(other.site == site for other in self._guests) >= OF_ONE_SITE:
            raise TurnedAwayError(429, f"more than {OF_ONE_SITE} connections", site)
        guest.site = site

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
