"""Whatever a process starts can be found and ended, also what it detached into a session of its own."""

import subprocess
import sys
import time

from fedgen.federate.family import family, kill

# A process that starts one in a session of its own, which starts another; the first says their numbers.
SCRIPT = """
import subprocess, sys, time
inner = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)']);"
inner += "print(p.pid, flush=True); time.sleep(300)"
p = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True, stdout=subprocess.PIPE, text=True)
print(p.pid, p.stdout.readline().strip(), flush=True)
time.sleep(300)
"""


def test_detached_grandchildren_end_too() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        child, grandchild = map(int, process.stdout.readline().split())
        found = family([process.pid])
        assert {p.pid for p in found} == {process.pid, child, grandchild}
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        stale = [p._replace(pid=bystander.pid) for p in found[:1]]  # the number is another's by now
        kill([*found, *stale])
        assert process.wait(timeout=10) == -9
        assert family([child, grandchild]) == []
        time.sleep(0.1)
        assert bystander.poll() is None
        bystander.kill()
        bystander.wait()
    finally:
        kill(family([process.pid]))
        process.communicate()
