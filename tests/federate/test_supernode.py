"""A SuperNode whose main thread has ended is a process that has ended, so that start.sh can start it anew."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgen.federate.folders import Place
from fedgen.federate.processes import free_port
from fedgen.federate.scripts import Doors, write_scripts

# What Flower does: its main thread ends, one way or another, while another thread goes on.
_CALL = """
import sys, threading
from fedgen.federate.supernode import run_to_the_end

def command():
    threading.Thread(target=threading.Event().wait).start()
    print("said", end="")
    {end}

run_to_the_end(command)
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no such key')", 1, "no such key"),
        ("raise RuntimeError('500 Internal Server Error')", 1, "RuntimeError: 500 Internal Server Error"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_the_end_of_the_main_thread_ends_the_process(end: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", _CALL.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout) == (code, "said")
    assert said in done.stderr


def test_start_sh_hears_that_flowers_supernode_has_ended(tmp_path: Path) -> None:
    """Flower's own: it has no key file, and says so."""
    place = Place(tmp_path)
    port = free_port()
    write_scripts(place, ["north"], Doors(f"127.0.0.1:{port}", port, f"127.0.0.1:{port}"))
    (place.site("north") / "ca.crt").write_text("none")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["/bin/sh", place.site("north") / "start.sh"], env={**os.environ, "PATH": path, "FEDGEN_TRIES": "1"},
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Starting Flower SuperNode" in done.stdout + done.stderr
    assert "not connected after 1 tries" in done.stdout
