"""How JAX uses this machine: one CPU device for each core, and a compilation cache between processes."""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread

import jax

from fedgen.compiled import use_compilation_cache
from fedgen.errors import FedgenError

TRIM_SECONDS = 0.1  # between two returns of freed memory, each of which takes some milliseconds
_trimming = Lock()


def use_machine_well() -> None:
    """Set JAX up for the simulator. Call it before the first computation; later it raises RuntimeError.

    A CPU device for each core lets a cohort's clients train side by side; compiled programs are kept in the
    user's cache folder, so that the next process starts at once.
    """
    if not os.environ.get("JAX_NUM_CPU_DEVICES") and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", available_cores())
    use_compilation_cache(least_seconds=0.2)


def join_hosts(place: str) -> None:
    """Compute together with other processes; call it right after `use_machine_well`.

    `place` is `I/N@ADDRESS:PORT`: this is process I (from 0) of N, and process 0 listens at the address. Or it is
    `auto`, where Slurm, Open MPI or Kubernetes say the same.
    """
    form = re.fullmatch(r"(\d+)/(\d+)@(\S+:\d+)", place)
    if form is None and place != "auto":
        raise FedgenError(f"--hosts takes auto or I/N@ADDRESS:PORT, for example 0/2@10.0.0.1:7000, not '{place}'")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        if form is None:
            jax.distributed.initialize()
        else:
            number, count, address = int(form[1]), int(form[2]), form[3]
            if number >= count:
                raise FedgenError(f"--hosts {place}: of {count} processes the last is number {count - 1}")
            jax.distributed.initialize(address, count, number)
    except (ValueError, RuntimeError) as error:
        raise FedgenError(f"the other hosts cannot be joined: {str(error).splitlines()[0]}") from error


@contextmanager
def returning_freed_memory() -> Iterator[None]:
    """Meanwhile, and once more at the end, give the system back what was freed.

    For compiling, the peak of a run's memory: each of the compiler's threads has its own heap, where glibc keeps what
    was freed, and no other thread can use it.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # other C libraries have no such function
        yield
        return
    done = Event()

    def work() -> None:
        while not done.wait(TRIM_SECONDS):
            if _trimming.acquire(blocking=False):  # of several programs compiled at once one trims for all
                try:
                    trim(0)
                finally:
                    _trimming.release()

    thread = Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        trim(0)


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
