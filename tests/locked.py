"""A folder that another process has locked."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedgen.runs.lock import NAME

HOLD = """
import os, sys
from pathlib import Path
from fedgen.runs.lock import lock
held = lock(Path(sys.argv[1]), name=sys.argv[2])
if os.fork() == 0:  # which must not release what it did not take
    held.release()
    os._exit(0)
os.wait()
print(1, flush=True)
input()
"""


@contextmanager
def held_by_another(folder: Path, name: str = NAME) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), name], text=True, **pipes)
    try:
        assert process.stdout.readline() == "1\n"
        yield process
    finally:
        process.kill()
        process.communicate()
