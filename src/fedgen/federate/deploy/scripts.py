"""The commands of a federation as small scripts: what init tells people to run is what the demonstration runs."""

import textwrap
from pathlib import Path
from typing import NamedTuple

from fedgen.federate.deploy.folders import APP, CONNECTION, Place
from fedgen.files import write_whole

# Copied to the sites: there it starts without the package, whose arrays a SuperNode has no use for.
_SUPERNODE = Path(__file__).parents[1] / "site" / "supernode.py"
PORT_VARIABLE = "FEDGEN_PORT"  # of a SuperNode's own interface, where several run on one machine
_QUIET = """\
umask 077
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}" FLWR_HOME="$PWD/flower"
"""
# SuperLink counts a site as connected for a minute after it was cut off, and refuses a second connection.
_PERSISTENT = """\
tries=0 child=
end() { kill "$child" 2>/dev/null; wait "$child"; exit 0; }
trap end INT TERM
while :; do
  began=$(date +%s)
  COMMAND "$@" &
  child=$!
  wait "$child"
  code=$?
  [ "$code" -eq 0 ] && exit 0
  [ $(($(date +%s) - began)) -gt 300 ] && tries=0
  tries=$((tries + 1))
  if [ "$tries" -ge "${FEDGEN_TRIES:-10}" ]; then
    echo "start.sh: not connected after $tries tries (the reasons are above); giving up"
    exit "$code"
  fi
  echo "start.sh: SuperNode ended with code $code. After a crash the server takes a site back only when it has" \\
    "missed it for about a minute: trying again in ${FEDGEN_PAUSE:-10} seconds ($tries of ${FEDGEN_TRIES:-10})"
  sleep "${FEDGEN_PAUSE:-10}" &
  child=$!
  wait "$child"
done
"""


class Doors(NamedTuple):
    """Where a server is reached."""

    listen: str  # HOST:PORT at which the gate listens; empty: there is none, and SuperLink is reached directly
    superlink: int  # SuperLink's port on the loopback interface
    address: str  # what sites connect to


def write_scripts(place: Place, sites: list[str], doors: Doors) -> None:
    """Scripts for the server and for the sites; with a gate there are certificates and keys, too."""
    tls = bool(doors.listen)
    command = (
        f"flower-superlink --host 127.0.0.1 --port {doors.superlink} --database superlink.sqlite"
        " --disable-runtime-dependency-installation"
    )
    if tls:
        _write(
            place.server / "superlink.sh",
            "Start SuperLink, which runs the server's half of the app, and the gate, through which sites reach it.",
            f"""\
            export FEDGEN_SERVER="$PWD"
            exec fedgen federate gate --listen "{doors.listen}" --superlink 127.0.0.1:{doors.superlink} -- \\
              {command} \\
              --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key --enable-supernode-auth
            """,
        )
    else:
        _write(
            place.server / "superlink.sh",
            "Start SuperLink, to which the sites connect; it also runs the server's half of the app.",
            f"""\
            export FEDGEN_SERVER="$PWD"
            exec {command} --insecure
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
        write_whole(place.site(name) / _SUPERNODE.name, _SUPERNODE.read_bytes())
        _write(
            place.site(name) / "start.sh",
            "Connect this site to the server; Ctrl-C disconnects it.",
            _PERSISTENT.replace(
                "COMMAND",
                f"python3 -P {_SUPERNODE.name} --superlink {doors.address} {trust} \\\n"
                f'    --port "${{{PORT_VARIABLE}:-9094}}" --node-config "folder=\\"$PWD\\""',
            ),
        )


def _write(path: Path, what: str, commands: str) -> None:
    start = f'#!/bin/sh\n# {what}\ncd "$(dirname "$0")" || exit 1\n'
    write_whole(path, (start + _QUIET + textwrap.dedent(commands)).encode())
    path.chmod(0o755)
