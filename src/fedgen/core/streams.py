"""Random streams: the key of every draw is folded from the seed, a purpose and the indices it belongs to.

There is no shared generator, so switching one feature on or off changes no draw of another, and a site
of a real federation draws exactly what the simulator draws for it.
"""

import zlib

import jax

from fedgen.core.contract import Array


def stream(key: Array, purpose: str, *indices: int | Array) -> Array:
    """The key for one purpose (a word) and the given indices (round, client, step ...)."""
    key = jax.random.fold_in(key, zlib.crc32(purpose.encode()))
    for index in indices:
        key = jax.random.fold_in(key, index)
    return key
