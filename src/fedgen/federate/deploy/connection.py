"""How the `flwr` command at the server finds SuperLink, and by which certificate it knows it.

Flower takes only an absolute path of the certificate, which is wrong once the federation's folder was moved or renamed.
So run.sh runs this module, in the server's folder, before it calls `flwr`.
"""

import sys
from pathlib import Path
from typing import Any

from fedgen import toml
from fedgen.errors import FedgenError
from fedgen.federate.deploy.edit import read_values, set_values
from fedgen.files import write_whole

CONNECTION = "federation"  # the name of SuperLink in the server's Flower configuration
_CERTIFICATE = "root-certificates"


def write_connection(server: Path, address: str, tls: bool) -> None:
    """Write Flower's configuration into the server's folder."""
    trust = {_CERTIFICATE: _certificate(server)} if tls else {"insecure": True}
    connection = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **trust}}}
    write_whole(_file(server), toml.dumps(connection).encode())


def read_connection(server: Path) -> dict[str, Any]:
    """What the configuration says of SuperLink; empty where it says nothing."""
    about = read_values(_file(server)).get("superlink", {}).get(CONNECTION, {})
    return dict(about)


def correct_connection(server: Path) -> None:
    """Let the configuration name the certificate that is in the server's folder now; the rest of it stays."""
    about, here = read_connection(server), _certificate(server)
    if about.get(_CERTIFICATE, here) != here:
        connections = read_values(_file(server))["superlink"]
        set_values(_file(server), superlink={**connections, CONNECTION: {**about, _CERTIFICATE: here}})


def _file(server: Path) -> Path:
    return server / "flower" / "config.toml"


def _certificate(server: Path) -> str:
    return str(server.absolute() / "ca.crt")


if __name__ == "__main__":
    try:
        correct_connection(Path.cwd())
    except FedgenError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
