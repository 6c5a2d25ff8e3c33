"""The objects that a site's message consists of: whether each is valid, and how large the message is when unpacked.

Flower cuts a message into objects, each named by the hash of its content, and rebuilds it from lists in those objects:
which chunks an array is joined from, which arrays a record holds. A short list can name one chunk a million times, so
the unpacked size is computed before anything is unpacked. Objects are read with Flower's own parsers, so that gate and
SuperLink cannot understand the same bytes differently.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fedgen.federate.flower import (
    CHUNK_SIZE,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
    inflatable_class_registry,
    validate_object_content,
)

CHUNK = "ArrayChunk"
# Which types of children each type of object may have. There is no cycle, so no object can contain itself.
_MADE_OF: dict[str, frozenset[str]] = {
    "Message": frozenset({"RecordDict"}),
    "RecordDict": frozenset({"ArrayRecord", "ConfigRecord", "MetricRecord"}),
    "ArrayRecord": frozenset({"Array"}),
    "Array": frozenset({CHUNK}),
    "ConfigRecord": frozenset(),
    "MetricRecord": frozenset(),
    CHUNK: frozenset(),
}


class InvalidObjectError(Exception):
    """An object that is not valid; its text is the reason."""


class Piece(NamedTuple):
    """An object whose content was checked."""

    kind: str
    uses: tuple[str, ...]  # its children, each as often as it names them
    size: int  # bytes of its content
    body: int  # bytes of that without Flower's head


def examine_object(object_id: str, content: bytes, announced: Collection[str]) -> Piece:
    """Check an object: its content must have this hash and name exactly the children that were announced."""
    if get_object_id(content) != object_id:
        raise InvalidObjectError("an object whose content is not the one that was announced")
    try:
        validate_object_content(content)
        kind, children, _ = get_object_head_values_from_object_content(content)
        body = get_object_body(content, inflatable_class_registry[kind])
        uses = _uses(kind, children, body)
        fits = len(children) == len(set(children)) and set(uses) == set(children)
    except Exception as error:  # parsers fail in many ways, and each is the sender's fault
        raise InvalidObjectError(f"an object that cannot be read: {type(error).__name__}") from None
    if not fits or set(children) != set(announced):
        raise InvalidObjectError(f"an object of type {kind} that is made of others than it says")
    return Piece(kind, uses, len(content), len(body))


def _uses(kind: str, children: list[str], body: bytes) -> tuple[str, ...]:
    if kind == "Array":
        places: list[Any] = json.loads(body)["arraychunk_ids"]
        if not all(type(place) is int and place >= 0 for place in places):
            raise ValueError
        return tuple(children[place] for place in places)
    if kind in ("ArrayRecord", "RecordDict"):
        return tuple(map(str, json.loads(body).values()))
    return tuple(children)


def inflated_size(root: str, pieces: Mapping[str, Piece]) -> int:
    """The bytes of the unpacked message, in which each object is repeated wherever it is named."""
    if pieces[root].kind != "Message":
        raise InvalidObjectError(f"a message that is an object of type {pieces[root].kind}")
    known: dict[str, int] = {}

    def size(name: str) -> int:
        if name not in known:
            piece = pieces[name]
            for use in piece.uses:
                if pieces[use].kind not in _MADE_OF[piece.kind]:
                    raise InvalidObjectError(f"an object of type {piece.kind} that is made of a {pieces[use].kind}")
            known[name] = piece.size + sum(map(size, piece.uses))
        return known[name]

    return size(root)


def check_chunks(pieces: Mapping[str, Piece]) -> None:
    """Refuse arrays in more pieces than Flower cuts them into: each chunk but an array's last is of one size."""
    for piece in pieces.values():
        if piece.kind == "Array" and any(pieces[use].body != CHUNK_SIZE for use in piece.uses[:-1]):
            raise InvalidObjectError("an array that is cut smaller than Flower does it")
