"""Mutated replies at the level of the decoder, without sockets: `python tests/federate/fuzz.py --messages 1000000`.

A real reply is mutated in one of four places, and read as gate and server do:

- its objects, as they come to the gate: only `InvalidObjectError` may come out;
- its records as Flower's serialised bytes, which Flower parses first: what Flower can read, the server must take or
  refuse with `InvalidMessageError`;
- the bytes and the description of one of its arrays, so that mutations reach the innermost parser;
- its announcement, as it comes to the gate: what passes, SuperLink can store and hand out again.
"""

import argparse
import contextlib
import random
import resource
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, recorddict_from_proto, recorddict_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.server.superlink.linkstate.utils import message_to_dict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from gate_traffic import Letter, pulled
from google.protobuf.message import DecodeError

from fedgen.core.trees import named
from fedgen.federate import wire
from fedgen.federate.flower import UNPACKING_ERRORS
from fedgen.federate.gate.messages import MessageQueue
from fedgen.federate.gate.objects import InvalidObjectError, examine_object, get_object_id, inflated_size
from fedgen.federate.gate.rules import RequestRefusedError
from fedgen.federate.schema import ServerSettings
from fedgen.federate.server.checks import checked_update
from fedgen.federate.wire import InvalidMessageError

METADATA = ("run_id", "group_id", "ttl", "message_type", "created_at", "src_task_id", "message_id")
ODD: dict[type, tuple[Any, ...]] = {
    float: (0.0, -1.0, 1e300, 5e-324, float("nan"), float("inf"), float("-inf")),
    int: (0, 1, 2**63, 2**64 - 1),
    str: ("", "3", "train", "\x1b[31m\n", "a" * 100_000),
}
INTERESTING = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x00" * 8, b"{}", b"[", b"'", b"nan", b"-1")


def mutate(data: bytes, random_: random.Random) -> bytes:
    """Change a few bytes: flipped, overwritten, inserted, deleted, repeated or cut off."""
    out = bytearray(data)
    for _ in range(random_.choice((1, 1, 1, 2, 4, 8))):
        at = random_.randrange(len(out) + 1)
        way = random_.randrange(7)
        if way == 0 and at < len(out):
            out[at] ^= 1 << random_.randrange(8)
        elif way == 1 and at < len(out):
            out[at] = random_.randrange(256)
        elif way == 2:
            out[at:at] = random_.choice(INTERESTING)
        elif way == 3:
            del out[at : at + random_.choice((1, 2, 8, 64))]
        elif way == 4:
            out[at:at] = out[at : at + random_.choice((1, 4, 32))]
        elif way == 5:
            piece = random_.choice(INTERESTING)
            out[at : at + len(piece)] = piece
        elif random_.random() < 0.1:
            del out[at:]
    return bytes(out)


class Fuzzer:
    """Mutates one honest reply of a federation's server, given as its parts."""

    def __init__(self, server: Any, seed: int) -> None:
        self.reason = ""  # of the latest refusal
        self.random, self.found = random.Random(seed), Counter[str]()
        self.server, self.form = server, server.plan.forms.upload
        self.algorithm = server.plan.configure(server.plan.hyper)[0]
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.broadcast = jax.device_get(self.algorithm.broadcast(server.plan.server_init(), np.int32(0)))
        self.question = ConfigRecord({"run": "a" * 16, "round": 0, "site": 1, "ticket": "b" * 16})
        self.message = Message(RecordDict({"about": self.question}), 7, "train")
        sent = named(self.broadcast)  # an honest site that learned nothing sends what it got, and its label counts
        drawn = server.config.local_steps * server.config.batch_size
        parts = [
            sent.get(name, np.full(leaf.shape, drawn // leaf.size, leaf.dtype))
            for name, leaf in named(self.form).items()
        ]
        self.arrays = dict(wire.encode(jax.tree.unflatten(jax.tree.structure(self.form), parts)))
        self.content = self._content(self.arrays)
        self.packed = recorddict_to_proto(self.content).SerializeToString()
        reply = Message(self.content, reply_to=self.message)
        self.objects = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        self.pieces = {name: examine_object(name, raw, _children(raw)) for name, raw in self.objects.items()}
        self.root = next(name for name, piece in self.pieces.items() if piece.kind == "Message")
        assert self._checked(self.content), f"what is not mutated is refused: {self.reason}"
        assert inflated_size(self.root, self.pieces) > 0
        self.names = sorted(self.objects)
        self.letter = Letter({"a": np.zeros(3)})
        self.announcement = PushMessagesRequest.FromString(self.letter.announcement)
        self.announcement.clientapp_runtime_list.append(1.5)

    def _content(self, arrays: dict[str, Array]) -> RecordDict:
        metrics = MetricRecord({"loss": 1.0})
        return RecordDict({"upload": ArrayRecord(arrays), "about": self.question, "metrics": metrics})

    def run(self, messages: int) -> None:
        """Read this many mutated messages; raises what should not have come out, with the bytes that caused it."""
        ways: list[Callable[[], str]] = [self._object, self._records, self._array, self._announcement]
        for number in range(messages):
            way = ways[number % len(ways)]
            self.found[f"{way.__name__[1:]}: {way()}"] += 1

    def _object(self) -> str:
        name = self.random.choice(self.names)
        raw = mutate(self.objects[name], self.random)
        try:
            piece = examine_object(get_object_id(raw), raw, self.pieces[name].uses)
            inflated_size(self.root, {**self.pieces, name: piece})
        except InvalidObjectError:
            return "refused"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; object {raw!r}") from error
        return "taken"

    def _records(self) -> str:
        raw = mutate(self.packed, self.random)
        try:
            content = recorddict_from_proto(RecordDictProto.FromString(raw))
        except UNPACKING_ERRORS:  # Flower itself does not read it; the server counts it as a strike
            return "not read by Flower"
        return self._result(content, raw)

    def _array(self) -> str:
        name = self.random.choice(list(self.arrays))
        honest = self.arrays[name]
        shape, dtype, data = honest.shape, honest.dtype, mutate(honest.data, self.random)
        if self.random.random() < 0.2:
            shape = tuple(self.random.choice((0, -1, 1, 3, 1 << 40)) for _ in range(self.random.randrange(4)))
        if self.random.random() < 0.1:
            dtype = self.random.choice(("float64", "object", "O", "\x1b[31m", "int64", "float32"))
        changed = Array(dtype=dtype, shape=tuple(shape), stype=honest.stype, data=data)
        return self._result(self._content({**self.arrays, name: changed}), data)

    def _announcement(self) -> str:
        raw = self.announcement.SerializeToString()
        if self.random.random() < 0.5:
            raw = mutate(raw, self.random)
        try:
            request = PushMessagesRequest.FromString(raw)
        except DecodeError:
            return "not read by Flower"
        if request.messages_list and self.random.random() < 0.5:
            about, field = request.messages_list[0].metadata, self.random.choice(METADATA)
            setattr(about, field, self.random.choice(ODD[type(getattr(about, field))]))
        queue = MessageQueue("site", self.server.folder / "fuzz", 100_000)
        queue.record_sent(pulled(self.letter.question))
        try:
            queue.announce(request, len(raw))
        except RequestRefusedError:
            return "refused"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; request {raw!r}") from error
        self._assert_stored(request)
        return "taken"

    def _assert_stored(self, request: PushMessagesRequest) -> None:
        """What the gate took is in SuperLink's database what it was on the wire, and what the question says."""
        about, question = request.messages_list[0].metadata, self.letter.question.metadata
        row = message_to_dict(message_from_proto(request.messages_list[0]))
        with contextlib.closing(sqlite3.connect(":memory:")) as base:
            for value in (about.ttl, about.created_at, *request.clientapp_runtime_list):
                assert base.execute("SELECT ?", (value,)).fetchone() == (value,), f"{value} was taken"
        said = row["run_id"], row["group_id"], row["message_type"], row["reply_to_message_id"]
        assert said == (question.run_id, question.group_id, question.message_type, question.message_id)
        assert not row["content"], "the content is in the objects"

    def _result(self, content: RecordDict, raw: bytes) -> str:
        try:
            return "taken" if self._checked(content) else "refused"
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}; message {raw!r}") from error

    def _checked(self, content: RecordDict) -> bool:
        reply = Message(content, reply_to=self.message)
        settings: ServerSettings = self.server.settings
        try:
            upload, *_ = checked_update(reply, self.question, self.server.plan, self.algorithm, settings)
        except InvalidMessageError as error:
            self.reason = str(error)
            return False
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(upload)), "a number that is none was taken"
        return True


def _children(raw: bytes) -> tuple[str, ...]:
    from fedgen.federate.flower import get_object_head_values_from_object_content

    return tuple(get_object_head_values_from_object_content(raw)[1])


def peak() -> float:
    """The most memory that this process has had so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Fuzz and print what came of it."""
    import sys
    import tempfile

    sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    from local_federation import local_federation

    from helpers import small_setup

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server, _ = local_federation(Path(folder), small_setup("fedgen", users=3, active=3, rounds=1))
        fuzzer = Fuzzer(server, options.seed)
        fuzzer.run(1000)
        before, start = peak(), time.monotonic()
        fuzzer.run(options.messages)
        seconds = time.monotonic() - start
    print(f"{options.messages:,} messages in {seconds:.0f} s; peak memory {before:.0f} to {peak():.0f} MB")
    for what, count in sorted(fuzzer.found.items()):
        print(f"  {what}: {count:,}")


if __name__ == "__main__":
    main()
