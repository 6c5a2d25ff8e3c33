"""How JAX uses this machine: one CPU device for each core, and a compilation cache between processes."""

import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread, Timer
from typing import NamedTuple, ParamSpec, TypeVar

import jax

from fedgen.compiled import use_compilation_cache
from fedgen.errors import FedgenError

WAIT_SECONDS = 300  # for all hosts of a run to be started
TRIM_SECONDS = 0.1  # between two returns of freed memory, each of which takes some milliseconds
_trimming = Lock()
P = ParamSpec("P")
R = TypeVar("R")


def use_machine_well() -> None:
    """Set JAX up for the simulator, as the command does: all cores, and compiled programs kept between processes.

    A CPU device for each core lets a cohort's clients train side by side. Compiled programs are kept in the user's
    cache folder, so that the next process starts at once.

    Raises:
        RuntimeError: Where JAX has computed something already; call it before.
    """
    if not os.environ.get("JAX_NUM_CPU_DEVICES") and "device_count" not in os.environ.get("XLA_FLAGS", ""):
        jax.config.update("jax_num_cpu_devices", available_cores())
    use_compilation_cache(least_seconds=0.2)


def in_float32(f: Callable[P, R]) -> Callable[P, R]:
    """The same function, which computes in float32 also where the caller has set jax_enable_x64."""

    @functools.wraps(f)
    def computed(*arguments: P.args, **named: P.kwargs) -> R:
        with jax.enable_x64(False):
            return f(*arguments, **named)

    return computed


def check_devices() -> None:
    """Say in a sentence that JAX has no devices to compute on; later it would raise its own error."""
    try:
        jax.devices()
    except RuntimeError as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        named = f" as JAX_PLATFORMS={platforms} says; unset it, or give cpu or cuda" if platforms else ""
        raise FedgenError(f"JAX cannot compute here{named} ({str(error).splitlines()[0]})") from error


class Hosts(NamedTuple):
    """What `--hosts` says: this is one of some processes, by its number from 0, and number 0 listens at the address."""

    number: int
    processes: int
    address: str

    def __str__(self) -> str:
        """What this process waits for."""
        if self.number:
            return f"process 0 of {self.processes} at {self.address}"
        others = f"{self.processes - 1} other process{'es' if self.processes > 2 else ''}"
        return f"{others} to connect to {self.address}"


def parse_hosts(place: str) -> Hosts | None:
    """`I/N@ADDRESS:PORT`; or None for `auto`, where Slurm, Open MPI or Kubernetes say the same."""
    if place == "auto":
        return None
    form = re.fullmatch(r"(\d+)/(\d+)@(\S+):(\d+)", place)
    if form is None:
        raise FedgenError(f"--hosts takes auto or I/N@ADDRESS:PORT, for example 0/2@10.0.0.1:7000, not '{place}'")
    number, count, port = int(form[1]), int(form[2]), int(form[4])
    if number >= count:
        raise FedgenError(f"--hosts {place}: of {count} processes the last is number {count - 1}")
    if not 1 <= port <= 65535:
        raise FedgenError(f"--hosts {place}: a port is a number from 1 to 65535, not {port}")
    return Hosts(number, count, f"{form[3]}:{port}")


def join_hosts(place: str, wait: int = WAIT_SECONDS) -> None:
    """Compute together with other processes, all of which must come in time; call it after `use_machine_well`."""
    hosts = parse_hosts(place)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    later = wait + 60  # JAX's own limit ends the process with a dump of its stack
    try:
        with _ending_after(wait, f"waited {wait} s for {hosts or 'the other hosts'}; start the same command on each"):
            if hosts is None:
                jax.distributed.initialize(initialization_timeout=later)
            else:
                jax.distributed.initialize(hosts.address, hosts.processes, hosts.number, initialization_timeout=later)
    except (ValueError, RuntimeError) as error:
        raise FedgenError(f"the other hosts cannot be joined: {str(error).splitlines()[0]}") from error


@contextmanager
def _ending_after(seconds: int, reason: str) -> Iterator[None]:
    """End the process as for a user's mistake if the block takes longer: nothing else can end JAX's waiting."""

    def end() -> None:
        print(f"error: {reason}", file=sys.stderr, flush=True)
        os._exit(2)

    timer = Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
