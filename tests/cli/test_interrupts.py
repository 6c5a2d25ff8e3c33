"""Ctrl-C while Python imports: the process ends, at once and without a traceback."""

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["pydantic", "jax._src"])
def test_ctrl_c_while_importing_ends_the_process(module: str) -> None:
    """`-X importtime` tells on stderr what has been imported, so that the signal comes in the middle of it."""
    # Tests that run in the background of a shell ignore the signal, and so would what they start.
    start = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.executable, sys.argv[1:])"
    )
    words = ["-X", "importtime", "-m", "fedgen", "run", "--rounds", "1"]
    command = [sys.executable, "-c", start, sys.executable, *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            for line in process.stderr:
                if line.rpartition("|")[2].strip().startswith(module):
                    process.send_signal(signal.SIGINT)
                    break
            rest = process.stderr.read()
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in rest


def test_where_it_is_ignored_it_stays_so() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "from fedgen.cli.interrupts import end_at_once, raise_again; end_at_once(); raise_again();"
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
