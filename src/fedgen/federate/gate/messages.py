"""What passes between SuperLink and one site, message by message.

A site may fetch what was passed down to it, and answer that, and nothing else. Its answer is collected on disk, piece
by piece, and SuperLink hears of it when all of it is there and in order: until then it changes nothing for anybody.
"""

import asyncio
import re
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse, Reconnect
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest

from fedgen.federate.gate.objects import CHUNK, BadObjectError, Piece, examine_object, inflated_size
from fedgen.federate.gate.rules import NOT_IN_ORDER, TOO_LARGE, TurnedAwayError

_QUESTIONS = 64  # that one site may have open; Flower gives out one at a time
RECORDS = 1 << 20  # bytes of a message besides the numbers in its arrays: they take more room once they are unpacked
_HASH = re.compile(r"[0-9a-f]{64}")


class Question:
    """A message that was passed down to a site."""

    def __init__(self, message: Any, tree: ObjectTree) -> None:
        about = message.metadata
        self.about = {"run": str(about.run_id), "kind": about.message_type, "round": about.group_id}
        self.objects = set(_children_of(tree))
        self.bytes = 0  # on the wire, so far
        self.confirmed = False  # the site has said that it has all of it


class Incoming:
    """An answer that is being collected."""

    def __init__(self, request: PushMessagesRequest, question: Question, folder: Path, size: int) -> None:
        self.request, self.question, self.folder = request, question, folder
        self.session = secrets.token_hex(16)
        self.announced = _children_of(request.message_object_trees[0])
        self.pieces: dict[str, Piece] = {}
        self.numbers = self.records = 0  # bytes of the objects that are chunks of arrays, and of the others
        self.bytes = size  # on the wire, so far
        self.refusal: TurnedAwayError | None = None
        self.delivery: asyncio.Task[Any] | None = None
        self.delivered = False

    @property
    def root(self) -> str:
        """The object that is the message itself."""
        return str(self.request.message_object_trees[0].object_id)

    @property
    def answers(self) -> str:
        """The id of the message that this is the answer to."""
        return str(self.request.messages_list[0].metadata.reply_to_message_id)

    @property
    def is_whole(self) -> bool:
        """Whether all objects are there."""
        return len(self.pieces) == len(self.announced)

    @property
    def is_open(self) -> bool:
        """Whether it is still being collected."""
        return self.refusal is None and not self.delivered

    def opened(self) -> PushMessagesResponse:
        """What a site hears that has announced it."""
        return PushMessagesResponse(
            reconnect=Reconnect(reconnect=5),
            results={self.root: 0},
            objects_to_push=list(self.announced),
            session_id=self.session,
        )

    def add(self, name: str, piece: Piece) -> None:
        """Count an object in."""
        self.pieces[name] = piece
        if piece.kind == CHUNK:
            self.numbers += piece.size
        else:
            self.records += piece.size

    def content(self, name: str) -> bytes:
        """An object that was collected."""
        return (self.folder / name).read_bytes()


class Desk:
    """One site's messages, both ways."""

    def __init__(self, site: str, folder: Path, max_message: int) -> None:
        self.site, self._folder, self._max_message = site, folder, max_message
        self._questions: OrderedDict[str, Question] = OrderedDict()  # by message id
        self._incoming: Incoming | None = None  # the latest
        self.bytes_up = self.bytes_down = 0  # all that was signed by this site, and all that it got

    def pass_down(self, response: PullMessagesResponse) -> Question | None:
        """Remember what a site was given, so that it can fetch the rest of it."""
        found = None
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            found = self._questions[message.metadata.message_id] = Question(message, tree)
        while len(self._questions) > _QUESTIONS:
            self._questions.popitem(last=False)
        return found

    def question_with(self, object_id: str) -> Question:
        """The message that an object belongs to, of those that were passed down to this site."""
        for question in reversed(self._questions.values()):
            if object_id in question.objects:
                return question
        raise TurnedAwayError(403, "an object that was not sent to this site", self.site)

    def question(self, message_id: str) -> Question:
        """A message that was passed down to this site and is not answered yet."""
        if message_id not in self._questions:
            raise TurnedAwayError(403, "a message that was not sent to this site, or is answered already", self.site)
        return self._questions[message_id]

    def announce(self, request: PushMessagesRequest, size: int) -> PushMessagesResponse:
        """Begin to collect an answer, in place of one that never came to its end.

        The site is to push every object: to say which ones SuperLink has already would tell it what others sent. One
        that did not hear our answer, and announces the same again, goes on where it was.
        """
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise TurnedAwayError(403, "not one message with the objects that it is made of", self.site)
        about = request.messages_list[0].metadata
        if about.dst_node_id != SUPERLINK_NODE_ID or about.src_node_id != request.node.node_id:
            # SuperLink would pass on a site's instructions to others.
            raise TurnedAwayError(403, "a message that is not the site's answer to the server", self.site)
        question = self.question(about.reply_to_message_id)
        if self._incoming is not None and self._incoming.delivery is not None and not self._incoming.delivered:
            raise TurnedAwayError(503, "the answer before this one is still on its way", self.site)
        if (latest := self._incoming) is not None and latest.is_open and latest.request == request:
            latest.bytes += size
            return latest.opened()
        try:
            incoming = Incoming(request, question, self._folder, size)
        except BadObjectError as error:
            raise self._refusal(error, about.reply_to_message_id) from None
        if about.message_id != incoming.root:
            raise TurnedAwayError(NOT_IN_ORDER, "a message with the objects of another", self.site, incoming.answers)
        self.clear()
        self._folder.mkdir(parents=True, mode=0o700)
        self._incoming = incoming
        return incoming.opened()

    def take(self, request: PushObjectRequest, size: int) -> Incoming:
        """One more object of an answer; a refused one spoils the whole answer."""
        incoming, name = self._incoming, request.object_id
        if incoming is None or incoming.session != request.session_id or name not in incoming.announced:
            raise TurnedAwayError(403, "an object that was not announced", self.site)
        incoming.bytes += size
        if incoming.refusal is None and name not in incoming.pieces:
            try:
                incoming.add(name, examine_object(name, request.object_content, incoming.announced[name]))
                self._check_sizes(incoming)
                (incoming.folder / name).write_bytes(request.object_content)
            except (BadObjectError, TurnedAwayError, OSError) as error:
                incoming.refusal = self._refusal(error, incoming.answers)
                shutil.rmtree(incoming.folder, ignore_errors=True)
        if incoming.refusal is not None:
            raise incoming.refusal
        return incoming

    def finish(self, incoming: Incoming) -> None:
        """SuperLink has the answer: the question is closed."""
        incoming.delivered = True
        self._questions.pop(incoming.answers, None)
        self.clear()

    def clear(self) -> None:
        """Forget what is on disk."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _check_sizes(self, incoming: Incoming) -> None:
        too_large = f"a message of more than {self._max_message:,} bytes (max_message)"
        if incoming.numbers + incoming.records > self._max_message:
            raise TurnedAwayError(TOO_LARGE, too_large)
        if incoming.records > RECORDS:
            raise TurnedAwayError(TOO_LARGE, f"a message of more than {RECORDS:,} bytes besides its arrays")
        if incoming.is_whole and (size := inflated_size(incoming.root, incoming.pieces)) > self._max_message:
            raise TurnedAwayError(TOO_LARGE, f"{too_large}: unpacked it has {size:,}")

    def _refusal(self, error: Exception, question: str) -> TurnedAwayError:
        status, reason = NOT_IN_ORDER, str(error)
        if isinstance(error, TurnedAwayError):
            status = error.status
        if isinstance(error, OSError):
            status, reason = 507, f"the gate cannot write to {self._folder}: {error.strerror}"
        return TurnedAwayError(status, reason, self.site, question)


def _children_of(tree: ObjectTree) -> dict[str, frozenset[str]]:
    """The objects of a tree, each with those that it is made of."""
    found: dict[str, frozenset[str]] = {}
    for node in _nodes(tree):
        children = frozenset(child.object_id for child in node.children)
        if not _HASH.fullmatch(node.object_id):
            raise BadObjectError("an object whose name is not a hash")
        if len(children) < len(node.children) or found.setdefault(node.object_id, children) != children:
            raise BadObjectError("an object that is announced twice")
    return found


def _nodes(tree: ObjectTree) -> Iterator[ObjectTree]:
    left = [tree]
    while left:
        node = left.pop()
        left += node.children
        yield node


def desks(names: Mapping[str, bytes], folder: Path, max_message: int) -> dict[str, Desk]:
    """A desk for each site, which collects in a folder of its own; what an earlier gate left is deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    return {name: Desk(name, folder / name, max_message) for name in names}
