"""What crosses the wire: trees of arrays as Flower's records of arrays, and back with every check.

Arrays travel in NumPy's own format, never pickled. Whoever receives a record knows what is due (names,
shapes, types) from the algorithm and takes nothing else.
"""

import io
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_to_proto
from numpy.lib import format as npy

from fedgen.core.contract import Tree
from fedgen.core.trees import named

_HEADER = 256  # bytes that NumPy's format may put before the numbers


class RefusedError(Exception):
    """A message that is not what was due; its text is the reason."""


def encode(tree: Tree) -> ArrayRecord:
    """The arrays of a tree, named by their place in it."""
    arrays = named(jax.device_get(tree))
    return ArrayRecord({name: Array(np.asarray(leaf, order="C")) for name, leaf in arrays.items()})


def decode(record: ArrayRecord, like: Tree) -> Tree:
    """The tree in a record, which must have exactly the arrays of `like`, and only finite numbers."""
    due = named(like)
    if extra := set(record) - set(due):
        raise RefusedError(f"it holds {_short(min(extra))}, which is not due")
    arrays = []
    for name, leaf in due.items():
        if name not in record:
            raise RefusedError(f"{name} is missing")
        arrays.append(_checked(name, record[name], leaf))
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _checked(name: str, array: Array, due: Any) -> np.ndarray:
    said = f"{_short(str(array.dtype))} of shape {_short(str(tuple(array.shape)))}"
    if tuple(array.shape) != tuple(due.shape) or array.dtype != str(due.dtype):
        raise RefusedError(f"{name} is {said}, not {due.dtype} of shape {tuple(due.shape)}")
    if len(array.data) > due.size * due.dtype.itemsize + _HEADER:
        raise RefusedError(f"{name} says it is {said} but has {len(array.data):,} bytes")
    shape, dtype, numbers = _opened(name, array.data)
    if shape != tuple(due.shape) or dtype != due.dtype:
        raise RefusedError(f"{name} says it is {said} but is {dtype} of shape {_short(str(shape))}")
    if len(numbers) != due.size * due.dtype.itemsize:
        raise RefusedError(f"{name} says it is {said} but cannot be read: it has {len(numbers)} bytes of numbers")
    found = np.frombuffer(numbers, dtype).reshape(shape)
    if np.issubdtype(found.dtype, np.floating) and not np.isfinite(found).all():
        raise RefusedError(f"{name} has values that are NaN or infinite")
    return found


def _opened(name: str, data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], bytes]:
    """The shape and type that an array's header claims, and the bytes after it: nothing is allocated by that claim."""
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of NumPy's format")
        shape, by_columns, dtype = npy.read_array_header_1_0(file)
        if by_columns:
            raise ValueError("it is stored by columns")
    except Exception as error:  # NumPy's parser fails in many ways, and each is the sender's fault
        raise RefusedError(f"{name} cannot be read: {_short(str(error))}") from None
    return shape, dtype, data[file.tell() :]


def records(message: Message, due: Mapping[str, type]) -> dict[str, Any]:
    """The content of a message, which must have exactly these records."""
    content = message.content
    if set(content) != set(due):
        there = _short(", ".join(sorted(content))) or "none"
        raise RefusedError(f"it has the records {there}, not {', '.join(sorted(due))}")
    for name, kind in due.items():
        if not isinstance(content[name], kind):
            raise RefusedError(f"its record {name} is not a {kind.__name__}")
    return dict(content)


def field(record: ConfigRecord, name: str, kind: type) -> Any:
    """One value of a record, which must be of this type."""
    value = record.get(name)
    if type(value) is not kind:
        raise RefusedError(f"its {name} is {_short(repr(value))}, not of type {kind.__name__}")
    return value


def size(content: RecordDict) -> int:
    """How many bytes of arrays a message carries."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def whole_size(content: RecordDict) -> int:
    """How many bytes a message has in all, names and numbers outside of arrays included."""
    return int(recorddict_to_proto(content).ByteSize())


def _short(text: str) -> str:
    """What a stranger wrote, fit for a log: printable and not long."""
    clean = "".join(c if c.isprintable() else "?" for c in text)
    return clean if len(clean) <= 80 else clean[:77] + "..."
