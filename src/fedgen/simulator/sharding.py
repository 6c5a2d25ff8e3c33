"""Sharding: which arrays are copied to all devices, and which are divided by run or by host.

The devices form a mesh [host, group, device of the group]. The runs of a call are divided among the groups of each
host, and a run's cohort among the devices of its group, on all hosts. On one host the data is not divided, and CPU
devices even share one copy of it. With several hosts (`jax.distributed`), each host holds an equal block of the samples
and of the users' states, and fetches from the others what its clients need in a round.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from fedgen.core.contract import Array, Tree

HOSTS, RUNS, DEVICES = "hosts", "runs", "devices"
EVERYWHERE = PartitionSpec()
BY_HOST = PartitionSpec(HOSTS)
BY_RUN = PartitionSpec(RUNS)
_ALIGNMENT = 64  # bytes; a CPU device takes a host array that is aligned so as its own, without a copy


def mesh(runs: int = 1) -> Mesh:
    """All devices of all hosts, [host, group, device], in as many groups as can have equally many of the runs."""
    devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
    groups = math.gcd(runs, len(devices) // jax.process_count())
    return Mesh(np.array(devices).reshape(jax.process_count(), groups, -1), (HOSTS, RUNS, DEVICES))


def hosts() -> int:
    """How many processes compute together."""
    return jax.process_count()


def is_first_host() -> bool:
    """Whether this process writes the files and talks to the user."""
    return jax.process_index() == 0


def devices() -> int:
    """How many devices compute a run, over all hosts; inside a program."""
    return int(lax.axis_size(HOSTS) * lax.axis_size(DEVICES))


def device_number() -> Array:
    """Which of them this is, inside a program."""
    return lax.axis_index(HOSTS) * lax.axis_size(DEVICES) + lax.axis_index(DEVICES)


def place(tree: Tree) -> Tree:
    """Copy arrays to all devices (those already there are not copied again)."""
    everywhere = NamedSharding(mesh(), EVERYWHERE)
    return jax.tree.map(lambda a: _put(_aligned(a), everywhere), tree)


def place_samples(x: Any) -> Array:
    """Samples, or states of users: each host gets its block of rows; blocks are padded to the same length."""
    rows = block(len(x)) * hosts()
    if rows > len(x):
        x = np.concatenate([x, np.zeros((rows - len(x), *x.shape[1:]), x.dtype)])
    return _put(_aligned(x), NamedSharding(mesh(), BY_HOST))


def block(rows: int) -> int:
    """How many of these rows a host holds."""
    return -(-rows // hosts())


def fetch(x: Array, rows: Array) -> Array:
    """`x[rows]` inside a program, where this host has only its block of x and the rows may be any."""
    if hosts() == 1:
        return x[rows]
    wanted = lax.all_gather(rows, HOSTS)  # [host that asks, ...]
    local, here = _local(x, wanted)
    values = jnp.where(here.reshape(*here.shape, *(1,) * (x.ndim - 1)), x[local], jnp.zeros((), x.dtype))
    # Now [host that answers, ...]; only one of them had the row, and the others answer 0.
    return jnp.sum(lax.all_to_all(values, HOSTS, 0, 0), axis=0, dtype=x.dtype)


def keep(x: Array, rows: Array, values: Array) -> Array:
    """x with these rows replaced, inside a program; each host writes those of its block."""
    local, here = _local(x, rows)
    return x.at[jnp.where(here, local, x.shape[0])].set(values, mode="drop")


def _local(x: Array, rows: Array) -> tuple[Array, Array]:
    """The positions of these rows in this host's block, and whether they are in it at all."""
    if hosts() == 1:
        return rows, jnp.ones(rows.shape, bool)
    local = rows - lax.axis_index(HOSTS) * x.shape[0]
    here = (local >= 0) & (local < x.shape[0])
    return jnp.where(here, local, 0), here


def gathered(tree: Tree) -> Tree:
    """The whole arrays on each host, where they are divided over the devices of several hosts."""
    return tree if hosts() == 1 else _to_everywhere()(tree)


@cache
def _to_everywhere() -> Callable[[Tree], Tree]:
    """Cached, so that it is compiled once for each tree structure."""
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh(), EVERYWHERE))


def place_like(tree: Tree, like: Tree) -> Tree:
    """Arrays sharded as those of `like`, in newly allocated memory, so that they may be donated.

    Where `like` has more users (padding, see `place_samples`), the others are zeros, which nobody reads.
    """

    def placed(a: Any, b: Any) -> Array:
        filled = np.pad(a, [(0, wanted - found) for wanted, found in zip(b.shape, a.shape, strict=True)])
        return _put(jnp.array(filled), b.sharding)

    return jax.tree.map(placed, tree, like)


def any_host(flag: bool) -> bool:
    """Whether the flag is true on any host; all hosts must call this."""
    return flag if hosts() == 1 else bool(np.any(multihost_utils.process_allgather(np.array(flag))))


def wait_for_all(what: str) -> None:
    """A barrier: return when all hosts have called this."""
    if hosts() > 1:
        multihost_utils.sync_global_devices(what)


def _put(x: Any, sharding: NamedSharding) -> Array:
    """An array that all hosts have, divided as the sharding says."""
    if sharding.is_fully_addressable:
        return jax.device_put(x, sharding)
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return x if x.sharding == sharding else jax.jit(lambda a: a, out_shardings=sharding)(x)
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(np.asarray(jax.random.key_data(x)), sharding))
    return jax.make_array_from_callback(x.shape, sharding, lambda part: np.asarray(x)[part])


def _aligned(x: Any) -> Any:
    """A NumPy array where all CPU devices of a process can share it; other arrays as they are."""
    if not isinstance(x, np.ndarray) or jax.default_backend() != "cpu" or x.nbytes < 2**20:
        return x
    memory: NDArray[np.uint8] = np.empty(x.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy
