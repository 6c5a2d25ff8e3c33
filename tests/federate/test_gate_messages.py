"""A site's message is what it says, and no larger unpacked than packed; and nobody gets what was sent to others."""

import asyncio
import errno
import json
import math
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from unittest import mock

import gate_traffic
import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_id, get_object_tree
from gate_traffic import Letter, asked, objects, pulled

from fedgen.core.trees import named
from fedgen.federate.gate import messages as gate_messages
from fedgen.federate.gate import objects as gate_objects
from fedgen.federate.gate import sent_marks
from fedgen.federate.gate.connections import Connection, ConnectionPool, network_of
from fedgen.federate.gate.http import Response
from fedgen.federate.gate.messages import MessageQueue
from fedgen.federate.gate.objects import InvalidObjectError, examine_object, inflated_size
from fedgen.federate.gate.objects_sent import SentObjects
from fedgen.federate.gate.rules import RequestRefusedError
from fedgen.federate.gate.sent_marks import SentMarks
from fedgen.federate.journal import Journal
from fedgen.federate.server.checks import besides_arrays, most_objects

LIMIT = 100_000


def bare(kind: str, children: list[str], body: bytes) -> tuple[str, bytes]:
    """An object as its sender likes it, and its name."""
    content = f"{kind} {','.join(children)} {len(body)}\0".encode() + body
    return get_object_id(content), content


class Forgery:
    """A message that is put together by hand: arrays by name, each a list of places in its chunks."""

    def __init__(self, chunks: list[bytes], places: list[int], names: int = 1, records: int = 1) -> None:
        self.contents: dict[str, bytes] = {}
        parts = [self.put("ArrayChunk", [], chunk) for chunk in chunks]
        body = {"dtype": "uint8", "shape": [3], "stype": "numpy.ndarray", "arraychunk_ids": places}
        array = self.put("Array", parts, json.dumps(body).encode())
        record = self.put("ArrayRecord", [array], json.dumps({f"a{n}": array for n in range(names)}).encode())
        content = self.put("RecordDict", [record], json.dumps({f"r{n}": record for n in range(records)}).encode())
        self.root = self.put("Message", [content], b"about")
        leaves = [ObjectTree(object_id=part) for part in parts]
        tree = ObjectTree(object_id=array, children=leaves)
        for name in (record, content, self.root):
            tree = ObjectTree(object_id=name, children=[tree])
        self.tree = tree

    def put(self, kind: str, children: list[str], body: bytes) -> str:
        name, content = bare(kind, children, body)
        self.contents[name] = content
        return name

    def announcement(self, letter: Letter) -> PushMessagesRequest:
        request = letter.request
        request.messages_list[0].metadata.message_id = self.root
        del request.message_object_trees[:]
        request.message_object_trees.append(self.tree)
        return request


@pytest.fixture
def queue(tmp_path: Path) -> MessageQueue:
    return MessageQueue("north", tmp_path / "incoming", LIMIT)


def send(queue: MessageQueue, request: PushMessagesRequest, contents: dict[str, bytes]) -> bool:
    opened = queue.announce(request, 0)
    assert set(opened.objects_to_push) == set(contents)
    for name, content in contents.items():
        pushed = PushObjectRequest(object_id=name, object_content=content, session_id=opened.session_id)
        incoming = queue.receive(pushed, len(content))
    return incoming.is_complete


def test_what_flower_makes_is_taken(queue: MessageQueue) -> None:
    """Arrays that are equal, which Flower sends once, and one without numbers."""
    letter = Letter({"a": np.zeros(50), "b": np.zeros(50), "c": np.zeros(0), "d": np.arange(9.0)})
    queue.record_sent(pulled(letter.question))
    assert send(queue, letter.request, letter.contents)


@pytest.mark.parametrize(
    "forgery",
    [
        Forgery([b"x" * 1000], [0] * 1000),  # one chunk a thousand times
        Forgery([b"x" * 1000], [0], names=1000),  # one array under a thousand names
        Forgery([b"x" * 1000], [0] * 10, names=5, records=5),
    ],
)
def test_few_bytes_that_would_become_many_are_refused(forgery: Forgery, queue: MessageQueue) -> None:
    letter = Letter({})
    queue.record_sent(pulled(letter.question))
    assert sum(map(len, forgery.contents.values())) < LIMIT
    with pytest.raises(RequestRefusedError, match="unpacked it has") as refused:
        send(queue, forgery.announcement(letter), forgery.contents)
    assert refused.value.status == 413
    assert (refused.value.site, refused.value.question) == ("north", letter.question.metadata.message_id)
    assert not queue._folder.exists()


def test_the_size_is_that_of_all_that_flower_would_join() -> None:
    forgery = Forgery([b"x" * 100, b"y" * 10], [0, 1, 0], names=2)
    children = {node.object_id: [c.object_id for c in node.children] for node in gate_messages._nodes(forgery.tree)}
    pieces = {name: examine_object(name, content, children[name]) for name, content in forgery.contents.items()}
    heads = {name: len(content) for name, content in forgery.contents.items()}
    one, two, array, record, content, root = heads.values()
    assert inflated_size(forgery.root, pieces) == root + content + record + 2 * (array + 2 * one + two)


def test_much_besides_the_arrays_is_refused(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpacked, a list of small numbers takes many times its bytes."""
    monkeypatch.setattr(gate_messages, "RECORDS", 2000)
    letter = Letter({f"array {n}": np.array([n]) for n in range(30)})
    queue.record_sent(pulled(letter.question))
    with pytest.raises(RequestRefusedError, match="more than 2,000 bytes besides its arrays"):
        send(queue, letter.request, letter.contents)


CHUNK, CHUNK_CONTENT = bare("ArrayChunk", [], b"numbers")
OTHER = "0" * 64


def array(children: list[str], places: object) -> tuple[str, bytes]:
    return bare("Array", children, json.dumps({"arraychunk_ids": places}).encode())


@pytest.mark.parametrize(
    ("name", "content", "announced", "reason"),
    [
        (OTHER, CHUNK_CONTENT, [], "not the one that was announced"),
        (CHUNK, CHUNK_CONTENT, [OTHER], "made of others"),
        (*array([CHUNK], [0]), [], "made of others"),
        (*array([CHUNK], [0]), [OTHER], "made of others"),
        (*array([CHUNK, OTHER], [0]), [CHUNK, OTHER], "made of others"),
        (*array([CHUNK, CHUNK], [0, 1]), [CHUNK], "made of others"),
        (*array([CHUNK], [0, -1]), [CHUNK], "cannot be read"),
        (*array([CHUNK], [True, False]), [CHUNK], "cannot be read"),
        (*array([CHUNK], [0, 1]), [CHUNK], "cannot be read"),
        (*array([CHUNK], 7), [CHUNK], "cannot be read"),
        (*bare("Array", [CHUNK], b"[" * 100_000), [CHUNK], "cannot be read"),
        (*bare("ArrayRecord", [CHUNK], b'["a"]'), [CHUNK], "cannot be read"),
        (*bare("Surprise", [], b""), [], "cannot be read"),
        (*bare("CustomDataClass", [], b""), [], "cannot be read"),
        (get_object_id(b"anything"), b"anything", [], "cannot be read"),
    ],
)
def test_an_object_that_is_not_what_it_says(name: str, content: bytes, announced: list[str], reason: str) -> None:
    with pytest.raises(InvalidObjectError, match=reason):
        examine_object(name, content, announced)


def test_objects_stand_where_they_belong(queue: MessageQueue) -> None:
    """An array in the place of the message: Flower would unpack it before it looks at its type."""
    chunk, _ = bare("ArrayChunk", [], b"x")
    name, content = array([chunk], [0])
    letter, forgery = Letter({}), Forgery([b"x"], [0])
    forgery.contents = {chunk: forgery.contents[chunk], name: content}
    forgery.root, forgery.tree = name, ObjectTree(object_id=name, children=[ObjectTree(object_id=chunk)])
    queue.record_sent(pulled(letter.question))
    with pytest.raises(RequestRefusedError, match="an object of type Array"):
        send(queue, forgery.announcement(letter), forgery.contents)


def _without_question(r: PushMessagesRequest) -> None:
    r.messages_list[0].metadata.reply_to_message_id = ""


def _to_a_site(r: PushMessagesRequest) -> None:
    r.messages_list[0].metadata.dst_node_id = 8


def _of_another(r: PushMessagesRequest) -> None:
    r.messages_list[0].metadata.src_node_id = 8


def _as_the_server(r: PushMessagesRequest) -> None:
    r.messages_list[0].metadata.src_node_id, r.messages_list[0].metadata.dst_node_id = 1, 8


def _twice(r: PushMessagesRequest) -> None:
    r.messages_list.append(r.messages_list[0])


def _nothing(r: PushMessagesRequest) -> None:
    del r.messages_list[:]


def _two_trees(r: PushMessagesRequest) -> None:
    r.message_object_trees.append(r.message_object_trees[0])


def _to_another_question(r: PushMessagesRequest) -> None:
    r.messages_list[0].metadata.reply_to_message_id = asked("another").metadata.message_id


def _under_another_name(r: PushMessagesRequest) -> None:
    r.messages_list[0].metadata.message_id = OTHER


def _with_a_path(r: PushMessagesRequest) -> None:
    r.message_object_trees[0].children[0].object_id = "../" * 21 + "x"


def _with_two_meanings(r: PushMessagesRequest) -> None:
    """One object that is made of nothing in one place and of something in another."""
    tree = r.message_object_trees[0].children[0]
    first, second = (child for child in tree.children if not child.children)
    second.children.add(object_id=first.object_id, children=[ObjectTree(object_id=OTHER)])


def _metadata(name: str, value: object) -> Callable[[PushMessagesRequest], None]:
    def change(r: PushMessagesRequest) -> None:
        setattr(r.messages_list[0].metadata, name, value)

    return change


def _created(seconds: float) -> Callable[[PushMessagesRequest], None]:
    """At another time, and expiring with the question all the same."""

    def change(r: PushMessagesRequest) -> None:
        about = r.messages_list[0].metadata
        about.created_at += seconds
        about.ttl -= seconds

    return change


def _with_content(r: PushMessagesRequest) -> None:
    r.messages_list[0].content.items.add(key="about")


def _with_an_error_besides(r: PushMessagesRequest) -> None:
    r.messages_list[0].error.reason = "failed"


def _with_nothing(r: PushMessagesRequest) -> None:
    r.messages_list[0].ClearField("content")


def _took(*seconds: float) -> Callable[[PushMessagesRequest], None]:
    return lambda r: r.clientapp_runtime_list.extend(seconds)


@pytest.mark.parametrize(
    "change",
    [
        *(_metadata(name, value) for name in ("ttl", "created_at") for value in (math.nan, math.inf, -math.inf, 0.0)),
        *map(_created, (1e6, -1e6, 1e300, -1e300)),
        _metadata("ttl", 4.0), _metadata("ttl", 43_300.0),
        _metadata("run_id", 2), _metadata("group_id", "3\n\x1b[31m"), _metadata("message_type", "evaluate"),
        _with_content, _with_an_error_besides, _with_nothing,
        *map(_took, (math.nan, math.inf, 1e300)), _took(1.0, 2.0),
    ],
)  # fmt: skip
def test_what_no_supernode_says_of_its_answer_is_refused_and_counts(
    change: Callable[[PushMessagesRequest], None], queue: MessageQueue
) -> None:
    """SuperLink would store it, and fail when the server asks for it."""
    letter = Letter({"a": np.zeros(3)})
    sent = queue.record_sent(pulled(letter.question))
    request = letter.request
    change(request)
    with pytest.raises(RequestRefusedError) as refused:
        queue.announce(request, 0)
    assert (refused.value.status, refused.value.question) == (422, letter.question.metadata.message_id)
    assert sent is not None
    assert queue.lost() is None, "it would send the same again"


@pytest.mark.parametrize("change", [_created(100.0), _created(-300.0), _took(12.5), _took(-3.0), _took(0.0)])
def test_what_a_supernode_may_say_of_its_answer_is_taken(
    change: Callable[[PushMessagesRequest], None], queue: MessageQueue
) -> None:
    """Also one whose clock was set meanwhile."""
    letter = Letter({"a": np.zeros(3)})
    queue.record_sent(pulled(letter.question))
    request = letter.request
    change(request)
    assert queue.announce(request, 0).session_id


def test_an_answer_that_comes_too_late_is_no_offence(queue: MessageQueue) -> None:
    """Flower then says that it lives less than no time; SuperLink drops it."""
    question = asked()
    question.metadata.__dict__["_created_at"] -= 50_000.0
    letter = Letter({"a": np.zeros(3)}, gate_traffic.named(question))
    assert letter.proto.metadata.ttl < 0
    queue.record_sent(pulled(letter.question))
    assert queue.announce(letter.request, 0).session_id


def test_an_answer_of_an_error_is_taken(queue: MessageQueue) -> None:
    question = asked()
    answer = gate_traffic.named(Message(Error(1, "it failed"), reply_to=question))
    proto = message_to_proto(answer)
    proto.metadata.src_node_id = gate_traffic.NODE
    queue.record_sent(pulled(question))
    node = Node(node_id=gate_traffic.NODE)
    request = PushMessagesRequest(
        node=node, messages_list=[proto], message_object_trees=[get_object_tree(answer)], clientapp_runtime_list=[0.5]
    )
    assert queue.announce(request, 0).objects_to_push == [answer.object_id]


def _announced_by_flower(form: dict[str, np.ndarray], queue: MessageQueue) -> Letter:
    letter = Letter(form)
    queue.record_sent(pulled(letter.question))
    return letter


def test_more_objects_than_an_answer_has_are_refused(queue: MessageQueue, tmp_path: Path) -> None:
    """For each of them SuperLink keeps all sites waiting; how many there may be the server says."""
    draws = np.random.default_rng(0)
    form = {f"a{n}": draws.normal(size=(n % 5, 3)).astype(np.float32) for n in range(60)}
    form["big"] = draws.normal(size=(1100, 1200)).astype(np.float32)  # two chunks
    letter = _announced_by_flower(form, queue)
    number = sum(1 for _ in gate_messages._nodes(letter.tree))
    assert number <= most_objects(form) <= number + 30, "equal arrays are sent once"
    queue._marks = marks = SentMarks(tmp_path)
    marks.mark("north", letter.question.metadata.message_id, most_objects(form))
    assert queue.announce(letter.request, 0).session_id
    marks.mark("north", letter.question.metadata.message_id, number - 65)
    with pytest.raises(RequestRefusedError, match=f"a message of {number} objects; {number - 1} are") as refused:
        queue.announce(_made_anew(letter), 0)
    assert refused.value.status == 413
    assert besides_arrays(form) < gate_messages.RECORDS


def _made_anew(letter: Letter) -> PushMessagesRequest:
    """Not the announcement that was made before, with which a site goes on where it was."""
    request = letter.request
    request.clientapp_runtime_list.append(1.0)
    return request


def test_where_the_server_has_not_said_how_many_objects_there_may_be_more_are_no_offence(
    queue: MessageQueue, tmp_path: Path
) -> None:
    queue._marks = SentMarks(tmp_path)
    letter = _announced_by_flower({f"a{n}": np.full(3, n) for n in range(200)}, queue)
    queue._marks.mark("north", OTHER, 4)  # of another message
    with pytest.raises(RequestRefusedError, match=r"objects; \d+ are allowed") as refused:
        queue.announce(letter.request, 0)
    assert refused.value.status == 403
    few = _announced_by_flower({f"a{n}": np.full(3, n) for n in range(40)}, queue)
    assert queue.announce(few.request, 0).session_id


def test_one_object_in_very_many_places_counts_as_often(queue: MessageQueue) -> None:
    letter = _announced_by_flower({"a": np.zeros(3)}, queue)
    request = letter.request
    leaf = ObjectTree(object_id=OTHER)
    tree = request.message_object_trees[0]
    for number in range(400):
        tree.children.append(ObjectTree(object_id=get_object_id(b"%d" % number), children=[leaf]))
    with pytest.raises(RequestRefusedError, match=r"a message of 80[0-9] objects"):
        queue.announce(request, 0)


def test_an_array_in_small_pieces_is_refused(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    letter = Letter({})
    queue.record_sent(pulled(letter.question))
    forgery = Forgery([b"x" * 100, b"y" * 10, b"z"], [0, 1, 2])
    with pytest.raises(RequestRefusedError, match="cut smaller than Flower does it") as refused:
        send(queue, forgery.announcement(letter), forgery.contents)
    assert refused.value.status == 422
    monkeypatch.setattr(gate_objects, "CHUNK_SIZE", 100)
    queue.record_sent(pulled(letter.question))
    for chunks in ([b"x" * 100, b"y" * 10], [b"x" * 100, b"y" * 100], [b"y" * 10]):
        whole = Forgery(chunks, list(range(len(chunks))))
        assert send(queue, whole.announcement(letter), whole.contents)


@pytest.mark.parametrize(
    "change",
    [
        _without_question, _to_a_site, _of_another, _as_the_server, _twice, _nothing, _two_trees, _to_another_question,
        _under_another_name, _with_a_path, _with_two_meanings,
    ],
)  # fmt: skip
def test_a_site_sends_its_own_answers_to_the_server_and_nothing_else(
    change: Callable[[PushMessagesRequest], None], queue: MessageQueue
) -> None:
    letter = Letter({"a": np.zeros(3)})
    queue.record_sent(pulled(letter.question))
    request = letter.request
    change(request)
    with pytest.raises(RequestRefusedError) as refused:
        queue.announce(request, 0)
    assert refused.value.status in (403, 422)
    assert refused.value.site == "north"
    queue.announce(letter.request, 0)


def test_a_site_gets_what_was_sent_to_it_and_not_for_ever(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_messages, "_OPEN_MESSAGES", 2)
    first, second, third = (asked(ticket) for ticket in "abc")
    for question in (first, second):
        queue.record_sent(pulled(question))
    own = sorted(objects(pulled(first).message_object_trees[0]) - objects(pulled(third).message_object_trees[0]))
    for name in own:
        assert queue.message_with(name) is queue.message(first.metadata.message_id)
    with pytest.raises(RequestRefusedError, match="not sent to this site"):
        queue.message_with(OTHER)
    with pytest.raises(RequestRefusedError, match="not sent to this site"):
        queue.message(OTHER)
    queue.record_sent(pulled(third))  # more than are remembered
    for name in own[:1]:
        with pytest.raises(RequestRefusedError, match="not sent to this site"):
            queue.message_with(name)


def test_a_message_that_is_answered_while_it_is_offered_again_is_no_offence(queue: MessageQueue) -> None:
    """A site lost its connection, was offered the message again, and then its last request was read."""
    letter = Letter({"a": np.zeros(3)}, asked("a"))
    sent = queue.record_sent(pulled(letter.question))
    assert sent is not None
    session = queue.announce(letter.request, 0).session_id
    assert queue.lost() is sent
    sent.offer_again()
    for name, content in letter.contents.items():
        pushed = PushObjectRequest(object_id=name, object_content=content, session_id=session)
        incoming = queue.receive(pushed, 0)
    queue.finish(incoming)
    for name in objects(pulled(letter.question).message_object_trees[0]):
        assert queue.message_with(name).answered
    assert queue.message_or_answered(sent.id) is sent
    assert queue.lost() is None
    with pytest.raises(RequestRefusedError, match="answered already"):
        queue.announce(letter.request, 0)


def test_an_object_for_all_sites_is_fetched_once() -> None:
    asked_for: list[str] = []

    async def ask_all() -> list[Response]:
        kept = SentObjects(kept=2148)  # one of 60 bytes and what it takes besides

        def ask(name: str, size: int, *, there: bool = True) -> Callable[[], Awaitable[Response]]:
            async def response() -> Response:
                asked_for.append(name)
                await asyncio.sleep(0)
                content = b"x" * size if there else b""
                found = PullObjectResponse(object_found=True, object_available=there, object_content=content)
                return Response(200, found.SerializeToString())

            return response

        together = await asyncio.gather(*(kept.get("a", ask("a", 60)) for _ in range(5)))
        for _ in range(2):
            await kept.get("later", ask("later", 1, there=False))  # not complete yet: asked for again
        await kept.get("b", ask("b", 60))  # takes the place of a
        await kept.get("a", ask("a", 60))
        return list(together)

    together = asyncio.run(ask_all())
    assert len(set(together)) == 1
    assert asked_for == ["a", "later", "later", "b", "a"]


def test_an_idle_site_asks_superlink_only_when_there_is_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    monkeypatch.setattr(sent_marks, "time", mock.Mock(time=lambda: now))
    marks = SentMarks(tmp_path)
    assert marks.marked_since("north", now), "a server app that writes no marks: SuperLink is always asked"
    marks.mark("north", "the message", 7)
    assert marks.marked_since("north", now - 1)
    assert [marks.objects(*asked) for asked in (("north", "the message"), ("north", "another"), ("south", ""))] == [
        7, None, None,
    ]  # fmt: skip
    os.utime(tmp_path / "sent/north", (now - 10,) * 2)
    assert not marks.marked_since("north", now - 5)
    assert marks.marked_since("south", now - 5)
    assert marks.marked_since("north", now - 60), "and now and then anyway"


def test_a_site_collects_one_answer_at_a_time(queue: MessageQueue) -> None:
    """So that what lies on disk is bounded: the next announcement takes the place of what never came to its end."""
    first, second = (Letter({"a": np.zeros(3)}, asked(ticket)) for ticket in "ab")
    for letter in (first, second):
        queue.record_sent(pulled(letter.question))
    name = next(iter(first.contents))
    old = queue.announce(first.request, 0).session_id
    queue.receive(PushObjectRequest(object_id=name, object_content=first.contents[name], session_id=old), 0)
    assert [path.name for path in queue._folder.iterdir()] == [name]
    queue.announce(second.request, 0)
    assert not list(queue._folder.iterdir())
    with pytest.raises(RequestRefusedError, match="not announced"):
        queue.receive(PushObjectRequest(object_id=name, object_content=first.contents[name], session_id=old), 0)


def test_how_much_a_message_has_besides_its_arrays_is_known_before(queue: MessageQueue) -> None:
    """So that a model of too many arrays is refused at the start, and not each site's every answer."""
    draws = np.random.default_rng(0)
    shapes = [(n + 1, 3) for n in range(40)] + [(), (1100, 1200)]  # the last of which is two chunks
    form = {f'a "{n}"': draws.normal(size=shape).astype(np.float32) for n, shape in enumerate(shapes)}
    queue._max_message = 1 << 30
    letter = Letter(named(form))
    queue.record_sent(pulled(letter.question))
    assert send(queue, letter.request, letter.contents)
    assert queue._incoming is not None
    expected = besides_arrays(form)
    assert queue._incoming.records <= expected <= queue._incoming.records + 2500


def test_who_announces_the_same_again_goes_on_where_it_was(queue: MessageQueue) -> None:
    """A site that did not hear the gate's answer announces once more, while objects may be under way."""
    letter = Letter({"a": np.zeros(3)})
    queue.record_sent(pulled(letter.question))
    opened = queue.announce(letter.request, 100)
    pushes = [PushObjectRequest.FromString(push) for push in letter.pushes(opened)]
    for push in pushes[:2]:
        queue.receive(push, 0)
    assert queue.announce(letter.request, 10) == opened
    incoming = [queue.receive(push, 0) for push in pushes[2:]][-1]
    assert incoming.is_complete
    assert incoming.bytes == 110
    # Not so after a refusal: the next announcement is another try.
    incoming.refusal = RequestRefusedError(422, "bad")
    assert queue.announce(letter.request, 0).session_id != opened.session_id


def test_an_answer_on_its_way_is_not_replaced(queue: MessageQueue) -> None:
    letter = Letter({"a": np.zeros(3)})
    queue.record_sent(pulled(letter.question))
    assert send(queue, letter.request, letter.contents)
    incoming = queue._incoming
    assert incoming is not None
    incoming.delivery = object()  # type: ignore[assignment]
    with pytest.raises(RequestRefusedError, match="still on its way") as refused:
        queue.announce(letter.request, 0)
    assert refused.value.status == 503, "so that the site tries again"
    queue.finish(incoming)
    with pytest.raises(RequestRefusedError, match="is answered already"):
        queue.announce(letter.request, 0)


def test_a_queue_that_is_retired_leaves_the_folder_to_the_next_one(queue: MessageQueue) -> None:
    letter = Letter({"a": np.zeros(3)})
    queue.record_sent(pulled(letter.question))
    assert send(queue, letter.request, letter.contents)
    on_its_way = queue._incoming
    assert on_its_way is not None
    queue.retire()
    assert not queue._folder.exists()
    follower = MessageQueue("north", queue._folder, LIMIT)
    follower.record_sent(pulled(letter.question))
    assert send(follower, letter.request, letter.contents)
    queue.finish(on_its_way)
    assert {path.name for path in queue._folder.iterdir()} == set(letter.contents)


def test_an_answer_that_cannot_be_kept_is_asked_for_again_and_no_offence(
    queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk may have room again; as often as any message that is lost, and no longer."""
    letter = Letter({"a": np.zeros(3)})
    sent = queue.record_sent(pulled(letter.question))
    assert sent is not None

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_bytes", full)
        with pytest.raises(
            RequestRefusedError, match=r"cannot keep an answer in .*: No space left on device"
        ) as refused:
            send(queue, letter.request, letter.contents)
    assert (refused.value.status, refused.value.site, refused.value.question) == (507, "north", sent.id)
    assert not queue._folder.exists(), "what there was of it"
    assert queue.lost() is sent
    sent.offer_again()
    assert send(queue, letter.request, letter.contents)
    assert queue._incoming is not None
    (queue._folder / queue._incoming.root).unlink()
    with pytest.raises(RequestRefusedError, match="cannot keep an answer") as refused:
        queue.content(queue._incoming, queue._incoming.root)
    assert refused.value.status == 507
    assert not queue._incoming.is_open, "so that it is not sent to its end again and again"
    assert queue.lost() is sent
    sent.offer_again()
    assert queue.lost() is None


def test_where_the_folder_cannot_be_made_that_is_said(queue: MessageQueue) -> None:
    first, second = (Letter({"a": np.zeros(3)}, asked(ticket)) for ticket in "ab")
    queue.record_sent(pulled(first.question))
    assert send(queue, first.request, first.contents)
    sent = queue.record_sent(pulled(second.question))
    queue.clear()
    queue._folder.write_text("in its place")
    for _ in range(2):
        with pytest.raises(RequestRefusedError, match=r"cannot keep an answer in .*: File exists") as refused:
            queue.announce(second.request, 0)
        assert (refused.value.status, refused.value.question) == (507, second.question.metadata.message_id)
    assert queue.lost() is sent
    assert queue._incoming is None, "the answer before it is deleted"
    queue._folder.unlink()
    assert send(queue, second.request, second.contents)


def test_strangers_never_crowd_out_who_comes_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedgen.federate.gate import connections as gate_connections

    monkeypatch.setattr(gate_connections, "UNAUTHENTICATED", 8)
    monkeypatch.setattr(gate_connections, "PER_NETWORK", 4)
    connections, gone = ConnectionPool(), []

    def comes(address: str) -> Connection:
        connection = Connection(address, lambda: gone.append(connection))
        connections.add(connection)
        return connection

    site = comes("192.0.2.9")
    connections.authenticate(site, "north")
    flood = [comes(address) for address in ("192.0.2.1", "2001:db8::1") for _ in range(4)]
    flood.append(comes("2001:db8::2:1"))  # in the same /64
    assert gone == [flood.pop(4)], "which has room for it, and takes nobody else's"
    gone.clear()
    for number in range(4):
        connections.authenticate(comes("198.51.100.7"), "south")
        assert len(gone) == number + 1
        flood.append(comes(gone[-1].address))  # and again
    assert gone == flood[:4], "who came first of those who hold the most"
    with pytest.raises(RequestRefusedError, match="the connection is north's"):
        connections.authenticate(site, "south")


def test_networks() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.1") == network_of("192.0.2.1") != network_of("192.0.2.2")
    assert network_of("fe80::1%eth0") == network_of("fe80::2")


def test_a_journal_with_a_limit_does_not_fill_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "gate.jsonl"
    journal = Journal(path, limit=2000)
    for number in range(100):
        journal.write("refused", status=413, site=f"site-{number}", reason="x" * 100)
    assert sorted(p.name for p in tmp_path.iterdir()) in (["gate.jsonl", "gate.jsonl.1"], ["gate.jsonl.1"])
    assert all(p.stat().st_size < 2400 for p in tmp_path.iterdir())
