"""The proxy through which a SuperNode would reach the server: Flower's client takes it from the environment.

The rules are httpx's: a part of NO_PROXY is an address, a name or the end of one, and never a network such as
10.0.0.0/8.
"""

import ipaddress
import os
import ssl
from urllib.request import getproxies

import httpx

from fedgen.federate.deploy.scripts import DIRECT

_VARIABLES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # the first that is set counts


def proxy_of(host: str, port: int) -> str:
    """The proxy's address for a server, as it is given; empty: a SuperNode that start.sh starts connects directly."""
    found = getproxies()
    proxy = found.get("https") or found.get("all") or ""
    rules = [*DIRECT, *(rule.strip() for rule in found.get("no", "").split(","))]
    return "" if any(_leaves_out(rule.lower(), host.lower(), port) for rule in rules) else proxy


def _leaves_out(rule: str, host: str, port: int) -> bool:
    """Whether a part of NO_PROXY is about the server."""
    scheme, _, rest = rule.rpartition("://")
    if rule == "*" or _is_address(rest):
        return rest in ("*", host)
    name, _, number = rest.partition(":")
    if not name or scheme not in ("", "all", "https") or number not in ("", str(port)):
        return False
    if scheme or name == "localhost":
        return name == host
    return host.endswith(name) if name.startswith(".") else f".{host}".endswith(f".{name}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def where_set(proxy: str) -> str:
    """The proxy without a password, and the variable that names it."""
    try:
        url = httpx.URL(proxy if "://" in proxy else f"http://{proxy}")
        shown = str(url.copy_with(userinfo=b""))
    except httpx.InvalidURL:
        shown = "which is no address"
    name = next((name for name in _VARIABLES if os.environ.get(name)), "the system's settings")
    return f"{shown} ({name})"


def trouble_through_proxy(address: str, trusted: ssl.SSLContext | None) -> str:
    """Why a client such as SuperNode's does not reach the server at HOST:PORT; empty: it does."""
    try:
        with httpx.Client(verify=trusted or True, timeout=15.0) as client:
            client.post(f"https://{address}/")  # which the gate refuses: it is there
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, ValueError) as error:  # the latter for what is no proxy
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ""
