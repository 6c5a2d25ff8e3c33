"""What may be given as the server's name or address; it becomes part of a certificate, of scripts and of settings."""

import ipaddress
import re

from fedgen.errors import FedgenError

_MOST = 253  # characters of a name in DNS
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")


def checked_host(host: str) -> str:
    """A name or address by which sites reach the server, and nothing else."""
    if not (_is_address(host) or _is_name(host)):
        advice = (
            "give the form of the name that DNS has, in ASCII, with xn-- where it had other letters"
            if not host.isascii()
            else "give a name such as fed.example.org or an address such as 192.0.2.7, without http:// and port"
        )
        raise FedgenError(f"--host {host!r} is neither a name in DNS nor an address: {advice}")
    return host


def checked_bind(bind: str) -> str:
    """An address of this machine that the gate is to listen on."""
    if not (_is_address(bind) or bind == "localhost"):
        raise FedgenError(f"--bind {bind!r} is not an address: give one of this machine, or 0.0.0.0 or :: for all")
    return bind


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # an interface's name means nothing on another machine


def _is_name(host: str) -> bool:
    labels = host.split(".")
    if len(host) > _MOST or labels[-1].isdigit():  # an address that is none
        return False
    return all(_LABEL.fullmatch(label) for label in labels)
