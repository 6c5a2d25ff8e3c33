"""The wire format: trees of arrays as Flower's array records, and back with every check.

Arrays are sent in NumPy's own format, never pickled. The receiver knows names, shapes and types of the arrays from the
algorithm and accepts nothing else.
"""

import io
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.lib import format as npy

from fedgen.core.contract import Tree
from fedgen.core.trees import named
from fedgen.federate.flower import recorddict_to_proto
from fedgen.federate.text import printable

HEADER = 256  # bytes that NumPy's format may put before the numbers


class InvalidMessageError(Exception):
    """A message that is not as expected; its text is the reason."""


class NotFiniteError(InvalidMessageError):
    """A message with values that are NaN or infinite, which an honest site sends too if it was given a broken model."""


def encode(tree: Tree) -> ArrayRecord:
    """The arrays of a tree, named by their paths in it."""
    arrays = named(jax.device_get(tree))
    return ArrayRecord({name: Array(np.asarray(leaf, order="C")) for name, leaf in arrays.items()})


def decode(record: ArrayRecord, like: Tree) -> Tree:
    """The tree in a record, which must have exactly the arrays of `like`, and only finite numbers."""
    expected = named(like)
    if extra := set(record) - set(expected):
        raise InvalidMessageError(f"it holds {_short(min(extra))}, which is not expected")
    arrays = []
    for name, leaf in expected.items():
        if name not in record:
            raise InvalidMessageError(f"{name} is missing")
        arrays.append(_checked(name, record[name], leaf))
    return jax.tree.unflatten(jax.tree.structure(like), arrays)


def _checked(name: str, array: Array, expected: Any) -> np.ndarray:
    said = f"{_short(str(array.dtype))} of shape {_short(str(tuple(array.shape)))}"
    if tuple(array.shape) != tuple(expected.shape) or array.dtype != str(expected.dtype):
        raise InvalidMessageError(f"{name} is {said}, not {expected.dtype} of shape {tuple(expected.shape)}")
    if len(array.data) > expected.size * expected.dtype.itemsize + HEADER:
        raise InvalidMessageError(f"{name} says it is {said} but has {len(array.data):,} bytes")
    shape, dtype, numbers = _parse(name, array.data)
    if shape != tuple(expected.shape) or dtype != expected.dtype:
        raise InvalidMessageError(f"{name} says it is {said} but is {dtype} of shape {_short(str(shape))}")
    if len(numbers) != expected.size * expected.dtype.itemsize:
        raise InvalidMessageError(
            f"{name} says it is {said} but cannot be read: it has {len(numbers)} bytes of numbers"
        )
    found = np.frombuffer(numbers, dtype).reshape(shape)
    if np.issubdtype(found.dtype, np.floating) and not np.isfinite(found).all():
        raise NotFiniteError(f"{name} has values that are NaN or infinite")
    return found


def _parse(name: str, data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], bytes]:
    """Shape and type from an array's header, and the bytes after it; nothing is allocated for what it claims."""
    # NumPy's parser needs memory for a long header that is nested; an honest one is short.
    file = io.BytesIO(data[:HEADER])
    try:
        version = npy.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"version {version} of NumPy's format")
        shape, by_columns, dtype = npy.read_array_header_1_0(file)
        if by_columns:
            raise ValueError("it is stored by columns")
    except MemoryError:
        raise
    except Exception as error:  # NumPy's parser raises many types, and all others mean a bad message
        raise InvalidMessageError(f"{name} cannot be read: {_short(str(error))}") from None
    return shape, dtype, data[file.tell() :]


def records(message: Message, expected: Mapping[str, type]) -> dict[str, Any]:
    """The content of a message, which must have exactly these records."""
    content = message.content
    if set(content) != set(expected):
        there = _short(", ".join(sorted(content))) or "none"
        raise InvalidMessageError(f"it has the records {there}, not {', '.join(sorted(expected))}")
    for name, kind in expected.items():
        if not isinstance(content[name], kind):
            raise InvalidMessageError(f"its record {name} is not a {kind.__name__}")
    return dict(content)


def field(record: ConfigRecord, name: str, kind: type) -> Any:
    """One value of a record, which must be of this type."""
    value = record.get(name)
    if type(value) is not kind:
        raise InvalidMessageError(f"its {name} is {_short(repr(value))}, not of type {kind.__name__}")
    return value


def size(content: RecordDict) -> int:
    """How many bytes of arrays a message has."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def whole_size(content: RecordDict) -> int:
    """How many bytes a message has in all, names and metrics included."""
    try:
        return int(recorddict_to_proto(content).ByteSize())
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # a shape beyond Flower's integers, say
        raise InvalidMessageError(f"it cannot be packed again: {_short(str(error))}") from None


def _short(text: str) -> str:
    return printable(text, 80)
