"""The commands of a federation as shell scripts; the demonstration runs the same ones that `init` writes for users."""

import shlex
import textwrap
from pathlib import Path
from typing import NamedTuple

from fedgen.federate.deploy.connection import CONNECTION
from fedgen.federate.deploy.folders import APP, Folders
from fedgen.federate.flower import OPENS_INTERFACES
from fedgen.files import write_whole

# Modules that run Flower's commands; they do not import JAX, for which neither has any use.
_SUPERNODE, _SUPERLINK = "fedgen.federate.site.supernode", "fedgen.federate.gate.superlink"
DIRECT = ("127.0.0.1", "localhost")  # what no proxy is asked for
_CORRECTION = "fedgen.federate.deploy.connection"  # lets Flower's configuration name the certificate that is here now
PORT_VARIABLE = "FEDGEN_PORT"  # the port that a SuperNode listens on; it must differ where several run on one machine
DEFAULT_PORT = 9094
_QUIET = """\
umask 077
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
unset OPENS_INTERFACES FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}" FLWR_HOME="$PWD/flower"
# What runs on this machine is reached directly: Flower's clients would ask a proxy of the environment for it.
export NO_PROXY="DIRECT,${NO_PROXY-${no_proxy-}}" no_proxy="DIRECT,${no_proxy-${NO_PROXY-}}"
"""
# Only a signal to the script ends it: a SuperNode also ends with code 0 when SuperLink no longer knows its key.
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
  case " $* " in *" -h "* | *" --help "* | *" --version "*) exit "$code" ;; esac
  [ $(($(date +%s) - began)) -gt 300 ] && tries=0
  tries=$((tries + 1))
  if [ "$tries" -ge "${FEDGEN_TRIES:-80}" ]; then
    echo "start.sh: not connected after $tries tries (the reasons are above); giving up." \\
      "'fedgen federate doctor .' says what is not in order"
    exit $((code ? code : 1))
  fi
  pause=${FEDGEN_PAUSE:-$((tries < 20 ? 3 * tries : 60))}
  echo "start.sh: SuperNode ended with code $code; trying again in $pause seconds ($tries of ${FEDGEN_TRIES:-80})"
  sleep "$pause" &
  child=$!
  wait "$child"
done
"""


class Endpoints(NamedTuple):
    """The addresses of a server."""

    listen: str  # HOST:PORT that the gate listens on; empty: there is no gate, and sites connect to SuperLink
    superlink: int  # SuperLink's port on the loopback interface
    address: str  # what sites connect to


def write_scripts(folders: Folders, sites: list[str], endpoints: Endpoints) -> None:
    """Write the scripts for the server and the sites; with a gate, they use TLS and keys."""
    tls, listen = bool(endpoints.listen), shlex.quote(endpoints.listen)
    command = (
        f"python3 -P -m {_SUPERLINK} --host 127.0.0.1 --port {endpoints.superlink} --database superlink.sqlite"
        " --disable-runtime-dependency-installation"
    )
    if tls:
        _write(
            folders.server / "superlink.sh",
            "Start SuperLink, which runs the server's part of the app, and the gate, through which sites reach it.",
            f"""\
            export FEDGEN_SERVER="$PWD"
            exec fedgen federate gate --listen {listen} --superlink 127.0.0.1:{endpoints.superlink} -- \\
              {command} \\
              --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key --enable-supernode-auth
            """,
        )
    else:
        _write(
            folders.server / "superlink.sh",
            "Start SuperLink, to which the sites connect; it also runs the server's part of the app.",
            f"""\
            export FEDGEN_SERVER="$PWD"
            exec {command} --insecure
            """,
        )
    if tls:
        _write(
            folders.server / "register.sh",
            "Tell SuperLink the sites' public keys, each under the name of its site. Needed once.",
            'exec fedgen federate register "$PWD"\n',
        )
    _write(
        folders.server / "run.sh",
        "Start a run, or resume the one of this name: run.sh [NAME]. Its folder is runs/NAME.",
        f"""\
        python3 -P -m {_CORRECTION} || exit
        exec flwr run ../{APP} {CONNECTION} --run-config "run=\\"${{1:-run}}\\""
        """,
    )
    for name in sites:
        write_site_script(folders, name, endpoints.address, tls=tls)


def write_site_script(folders: Folders, name: str, address: str, *, tls: bool = True) -> None:
    """Write the script that connects a site to the server at this address."""
    trust = "--root-certificates ca.crt --auth-supernode-private-key site.key" if tls else "--insecure"
    _write(
        folders.site(name) / "start.sh",
        "Connect this site to the server; Ctrl-C disconnects it.",
        _PERSISTENT.replace(
            "COMMAND",
            f"python3 -P -m {_SUPERNODE} --superlink {shlex.quote(address)} {trust} \\\n"
            f'    --port "${{{PORT_VARIABLE}:-{DEFAULT_PORT}}}" --node-config "folder=\\"$PWD\\""',
        ),
    )


def _write(path: Path, what: str, commands: str) -> None:
    start = f'#!/bin/sh\n# {what}\ncd "$(dirname "$0")" || exit 1\n'
    quiet = _QUIET.replace("OPENS_INTERFACES", " ".join(OPENS_INTERFACES)).replace("DIRECT", ",".join(DIRECT))
    write_whole(path, (start + quiet + textwrap.dedent(commands)).encode())
    path.chmod(0o755)
