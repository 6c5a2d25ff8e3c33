"""Units for systemd that keep the scripts running; each is a template, whose instance is the path of the folder.

They are for the user's own service manager (`systemctl --user`), so that nobody needs to be root. Of systemd's
restrictions they have those that work there; memory that is both writable and executable must stay allowed, since JAX
compiles.
"""

from pathlib import Path

from fedgen.files import write_whole

SERVER_UNIT, SITE_UNIT = "fedgen-server@.service", "fedgen-site@.service"
_UNIT = """\
# {what}
{note}#
# To install it, in this folder, with the Python environment active in which FedGen is installed:
#   echo "PATH=$PATH" > environment
#   mkdir -p ~/.config/systemd/user && cp {unit} ~/.config/systemd/user/
#   systemctl --user enable --now "{stem}$(systemd-escape --path "$PWD").service"
#   loginctl enable-linger       # it keeps running when you log out, and starts with the machine
# Its output: journalctl --user --unit "{stem}*"

[Unit]
Description={what} (%f)
StartLimitIntervalSec=0

[Service]
WorkingDirectory=%f
EnvironmentFile=%f/environment
ExecStart=%f/{script}
Restart=on-failure
RestartSec=30
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
LockPersonality=yes
SystemCallArchitectures=native
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
# MemoryMax=16G

[Install]
WantedBy=default.target
"""


def write_server_unit(folder: Path) -> None:
    """Write the unit that keeps SuperLink and the gate running."""
    note = (
        "# It does not go on with a run by itself: after a reboot, or a restart of this service, call run.sh in this\n"
        "# folder (run.sh NAME for a run with a name), which resumes it.\n"
    )
    _write(folder, SERVER_UNIT, "FedGen's server: SuperLink and the gate", "superlink.sh", note)


def write_site_unit(folder: Path) -> None:
    """Write the unit that keeps a site connected."""
    _write(folder, SITE_UNIT, "FedGen's site", "start.sh")


def _write(folder: Path, unit: str, what: str, script: str, note: str = "") -> None:
    stem = unit.removesuffix(".service")
    write_whole(folder / unit, _UNIT.format(what=what, unit=unit, stem=stem, script=script, note=note).encode())
