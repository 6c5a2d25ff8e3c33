"""All that a process starts can be found and killed, also what it detached into another session."""

import select
import subprocess
import sys

import psutil

from fedgen.federate.deploy.process_tree import is_running, kill, process_tree

# A process that starts one in its own session, which starts another; the first prints their pids.
SCRIPT = """
import subprocess, sys, time
inner = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3000)']);"
inner += "print(p.pid, flush=True); time.sleep(3000)"
p = subprocess.Popen([sys.executable, "-c", inner], start_new_session=True, stdout=subprocess.PIPE, text=True)
print(p.pid, p.stdout.readline().strip(), flush=True)
time.sleep(3000)
"""


def test_detached_grandchildren_are_killed_and_a_reused_pid_is_left_alone() -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3000)"])
    try:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 600)[0], "it prints their pids"
        child, grandchild = map(int, process.stdout.readline().split())
        found = process_tree([process.pid])
        assert {p.pid for p in found} == {process.pid, child, grandchild}

        # As psutil remembers a process whose pid is another's by now: the same number, an earlier start.
        stale = psutil.Process(bystander.pid)
        stale._create_time = stale.create_time() - 100
        stale._ident = (stale.pid, stale._create_time)
        assert not is_running(stale)
        kill([*found, stale])
        assert process.wait(timeout=600) == -9, "its exit code is still there for whoever started it"
        assert not any(map(is_running, found))
        assert process_tree([process.pid, child, grandchild]) == []
        assert [p.pid for p in process_tree([bystander.pid])] == [bystander.pid]
    finally:
        for other in (process, bystander):
            kill(process_tree([other.pid]))
            other.wait(600)
        assert process.stdout is not None
        process.stdout.close()
