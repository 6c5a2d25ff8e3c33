"""Whatever a process starts can be found and ended, also what it detached into a session of its own."""

import select
import subprocess
import sys
import time

from fedgen.federate.deploy.family import family, kill

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
    others: list[subprocess.Popen[bytes]] = []
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0], "it says their numbers"
        child, grandchild = map(int, process.stdout.readline().split())
        found = family([process.pid])
        assert {p.pid for p in found} == {process.pid, child, grandchild}
        # Started now: the system tells when a process started in hundredths of a second.
        bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        others.append(bystander)
        stale = [p._replace(pid=bystander.pid) for p in found[:1]]  # the number is another's by now
        kill([*found, *stale])
        assert process.wait(timeout=10) == -9
        assert family([child, grandchild]) == []
        time.sleep(0.1)
        assert bystander.poll() is None
    finally:
        kill(family([process.pid, *(other.pid for other in others)]))
        process.communicate(timeout=30)
        for other in others:
            other.wait(30)
