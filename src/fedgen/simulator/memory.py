"""Whether a run can fit into memory at all, found from its shapes before anything of its size is made."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import jax

from fedgen.core.contract import Algorithm, Federation, Task
from fedgen.core.trees import count, nbytes
from fedgen.core.wires import shapes
from fedgen.errors import FedgenError

_CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the container that this process is in; 0 where that is not known."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    for file in _CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # there is none, or its value is "max"
            memory = min(memory, int(Path(file).read_text(encoding="ascii")))
    return memory


def device_memory() -> int:
    """Bytes that a run may take at most: of a GPU what JAX may use of it; 0 where that is not known."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return machine_memory()
    return int((device.memory_stats() or {}).get("bytes_limit", 0))


def check_memory(
    name: str, algorithm: Algorithm, task: Task, federation: Federation, *, active: int, largest: int
) -> None:
    """Refuse what certainly cannot fit; users hold at most `largest` samples.

    A lower bound: the states of the server and of all users, the messages of a cohort, one user's model with its
    gradient, and the mini-batches of one user. What the network computes on the way comes on top.
    """
    available = device_memory()
    if available == 0:
        return
    forms, model = shapes(algorithm, task), jax.eval_shape(task.model.init, jax.random.key(0))[0]
    states = nbytes(forms.server) + federation.users * nbytes(forms.client)
    states += active * nbytes(forms.upload) + 2 * nbytes(model)
    batch, steps = federation.batch_size, federation.local_steps
    if federation.local_epochs:
        steps = federation.local_epochs * -(-largest // batch)
    samples = batch * (8 * steps + 4 * math.prod(task.sample.shape))  # rows and labels of all, and one as float32
    if states + samples <= available:
        return
    if states >= samples:
        raise FedgenError(
            f"{name} cannot fit into memory: with a model of {count(model):,} parameters, {federation.users:,} users"
            f" and {active:,} of them active it needs at least {_shown(states)}, and there are {_shown(available)}; use"
            " a smaller model or fewer users"
        )
    raise FedgenError(
        f"{name} cannot fit into memory: mini-batches of {batch:,} samples need at least {_shown(samples)}, and there"
        f" are {_shown(available)}; use a smaller batch_size"
    )


@contextmanager
def memory_told() -> Iterator[None]:
    """Say in a sentence that memory did not suffice, where that shows only in the computation."""
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        reason = str(error).removeprefix("RESOURCE_EXHAUSTED: ").splitlines()
        raise FedgenError(
            f"the run does not fit into memory ({(reason or ['out of memory'])[0]}); use a smaller model or batch_size,"
            " or fewer users or seeds at once"
        ) from error


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
