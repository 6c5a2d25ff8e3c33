"""The commands of a federation as small scripts: what init tells people to run is what the demonstration runs."""

import textwrap
from pathlib import Path

from fedgen.federate.folders import APP, CONNECTION, Place
from fedgen.files import write_whole

PORT_VARIABLE = "FEDGEN_PORT"  # of a SuperNode's own interface, where several run on one machine
_QUIET = """\
umask 077
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}" FLWR_HOME="$PWD/flower"
"""


def write_scripts(place: Place, sites: list[str], bind: str, port: int, address: str, tls: bool) -> None:
    """Scripts for the server, which listens on `bind`:`port`, and for the sites, which reach it at `address`."""
    certificates = "--insecure"
    if tls:
        certificates = (
            "--ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key --enable-supernode-auth"
        )
    _write(
        place.server / "superlink.sh",
        "Start SuperLink, to which the sites connect; it also runs the server's half of the app.",
        f"""\
        export FEDGEN_SERVER="$PWD"
        exec flower-superlink --host {bind} --port {port} --database superlink.sqlite \\
          --disable-runtime-dependency-installation {certificates}
        """,
    )
    if tls:
        registered = "\n".join(
            f"flwr supernode register keys/{n}.pub {CONNECTION} --name {n} || failed=1" for n in sites
        )
        _write(
            place.server / "register.sh",
            "Tell SuperLink, once, which sites there are: a site is known by its key and called by this name.",
            f"failed=0\n{registered}\nexit $failed\n",
        )
    _write(
        place.server / "run.sh",
        "Start a run, or continue the one of this name: run.sh [NAME]. Its folder is runs/NAME.",
        f"""\
        exec flwr run ../{APP} {CONNECTION} --run-config "run=\\"${{1:-run}}\\""
        """,
    )
    trust = "--root-certificates ca.crt --auth-supernode-private-key site.key" if tls else "--insecure"
    for name in sites:
        _write(
            place.site(name) / "start.sh",
            "Connect this site to the server; Ctrl-C disconnects it.",
            f"""\
            exec flower-supernode --superlink {address} {trust} \\
              --port "${{{PORT_VARIABLE}:-9094}}" --node-config "folder=\\"$PWD\\""
            """,
        )


def _write(path: Path, what: str, commands: str) -> None:
    start = f'#!/bin/sh\n# {what}\ncd "$(dirname "$0")" || exit 1\n'
    write_whole(path, (start + _QUIET + textwrap.dedent(commands)).encode())
    path.chmod(0o755)
