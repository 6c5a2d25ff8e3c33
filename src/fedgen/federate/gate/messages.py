"""The messages between SuperLink and one site.

A site may fetch the messages that SuperLink has for it, reply to each once, and do nothing else. A reply is collected
on disk, object by object, and forwarded to SuperLink when it is complete and valid: until then it has no effect.
"""

import asyncio
import re
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedgen.federate.flower import (
    CHUNK_SIZE,
    SUPERLINK_NODE_ID,
    ObjectTree,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    PushObjectRequest,
    Reconnect,
)
from fedgen.federate.gate.announced import InvalidAnnouncementError, check_announcement
from fedgen.federate.gate.objects import (
    CHUNK,
    InvalidObjectError,
    Piece,
    check_chunks,
    examine_object,
    inflated_size,
)
from fedgen.federate.gate.rules import NOT_IN_ORDER, TOO_LARGE, RequestRefusedError
from fedgen.federate.gate.sent_marks import SentMarks

_OPEN_MESSAGES = 64  # that one site may have open; Flower hands out one at a time
_ANSWERED = 4  # answered messages that are remembered
_OFFERS = 3  # how often a site gets the same message; a fault of the message itself must not become an endless loop
RECORDS = (
    1 << 20
)  # most bytes of a message besides the numbers in its arrays: unpacked, they take several times as many
# SuperLink takes milliseconds for each object of an answer, in which it does nothing else. So many an answer may have
# beyond what the server expects: so a site with another model than the others' learns from the server what is wrong.
_MORE_OBJECTS = 64
# Where the server has not said what it expects: so many for each of the question's, and for chunks of large arrays.
_OBJECTS_EACH = 8
HASH = re.compile(r"[0-9a-f]{64}")


class ServerMessage:
    """A message from the server that a site has begun to fetch."""

    def __init__(self, message: Any, tree: ObjectTree) -> None:
        self._message, self._tree = message, tree
        self.metadata = about = message.metadata
        self.id = str(about.message_id)
        self._expires = about.created_at + about.ttl  # by the clock of this machine, on which the server app runs
        self._offers = 1
        self.dropped = False  # there will be no answer to it, so it is not offered again
        self.about = {"run": str(about.run_id), "kind": about.message_type, "round": about.group_id}
        self.objects = set(_children_of(tree))
        self.bytes = 0  # on the wire, so far
        self.confirmed = False  # the site has acknowledged all of it
        self.answered = False

    @property
    def run_id(self) -> int:
        """The run that it belongs to, as Flower numbers runs."""
        return int(self._message.metadata.run_id)

    def objects_of_answer(self, max_message: int) -> int:
        """As many objects as no answer has by an algorithm here; `max_message` is how many bytes it may have."""
        return _OBJECTS_EACH * len(self.objects) + max_message // CHUNK_SIZE

    def may_be_offered_again(self) -> bool:
        """Whether the site may still answer it in time; one that it failed at several times is left alone."""
        return not self.dropped and self._offers < _OFFERS and time.time() < self._expires

    def offer_again(self) -> PullMessagesResponse:
        """The message once more, as SuperLink handed it out."""
        self._offers += 1
        return PullMessagesResponse(messages_list=[self._message], message_object_trees=[self._tree])


class Incoming:
    """A site's reply while its objects are being collected."""

    def __init__(self, request: PushMessagesRequest, reply_to: ServerMessage, folder: Path, size: int) -> None:
        self.request, self.reply_to, self.folder = request, reply_to, folder
        self.session = secrets.token_hex(16)
        self.announced = _children_of(request.message_object_trees[0])
        self.pieces: dict[str, Piece] = {}
        self.numbers = self.records = 0  # bytes of the objects that are chunks of arrays, and of the others
        self.bytes = size  # on the wire, so far
        self.refusal: RequestRefusedError | None = None
        self.delivery: asyncio.Task[Any] | None = None
        self.delivered = False

    @property
    def root(self) -> str:
        """The object that is the message itself."""
        return str(self.request.message_object_trees[0].object_id)

    @property
    def reply_to_id(self) -> str:
        """The id of the server's message that this replies to."""
        return str(self.request.messages_list[0].metadata.reply_to_message_id)

    @property
    def is_complete(self) -> bool:
        """Whether all objects have arrived."""
        return len(self.pieces) == len(self.announced)

    @property
    def is_open(self) -> bool:
        """Whether it is still being collected."""
        return self.refusal is None and not self.delivered

    def response(self) -> PushMessagesResponse:
        """The response to the announcement: which objects to push."""
        return PushMessagesResponse(
            reconnect=Reconnect(reconnect=5),
            results={self.root: 0},
            objects_to_push=list(self.announced),
            session_id=self.session,
        )

    def add(self, name: str, piece: Piece) -> None:
        """Add an object that has arrived."""
        self.pieces[name] = piece
        if piece.kind == CHUNK:
            self.numbers += piece.size
        else:
            self.records += piece.size


class MessageQueue:
    """One site's messages in both directions."""

    def __init__(self, site: str, folder: Path, max_message: int, marks: SentMarks | None = None) -> None:
        self.site, self._folder, self._max_message, self._marks = site, folder, max_message, marks
        self._sent: OrderedDict[str, ServerMessage] = OrderedDict()  # by message id
        self._answered: OrderedDict[str, ServerMessage] = OrderedDict()  # the latest of them
        self._incoming: Incoming | None = None  # the latest reply
        self.nothing_at = 0.0  # when SuperLink last had no message for the site
        self.bytes_up = self.bytes_down = 0  # of all requests signed by this site, and of the responses
        self.retired = False  # the site was removed, or has another key and with it another queue of the same folder

    def record_sent(self, response: PullMessagesResponse) -> ServerMessage | None:
        """Remember the message that a site gets, so that the site may fetch its objects and reply to it."""
        found = None
        for message, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            for older in self._sent.values():
                older.dropped = True  # the server asks again only when it expects no answer to it any more
            found = self._sent[message.metadata.message_id] = ServerMessage(message, tree)
        while len(self._sent) > _OPEN_MESSAGES:
            self._sent.popitem(last=False)
        return found

    def lost(self) -> ServerMessage | None:
        """A message that the site has lost: a SuperNode that asks for messages has none that it still has to answer.

        Either our response did not arrive, or the SuperNode was restarted, or its reply was lost on the way.
        """
        reply = self._incoming
        delivered = reply.reply_to if reply is not None and reply.delivery and not reply.delivery.done() else None
        for message in reversed(self._sent.values()):
            if message.may_be_offered_again() and message is not delivered:
                return message
        return None

    def drop_run(self, run_id: int) -> None:
        """A run has ended: its messages are not offered again."""
        for message in self._sent.values():
            if message.run_id == run_id:
                message.dropped = True

    def has_run(self, run_id: int) -> bool:
        """Whether the site got a message of this run of late; a SuperNode asks for a run when it has one."""
        return any(message.run_id == run_id for message in (*self._sent.values(), *self._answered.values()))

    def message_with(self, object_id: str) -> ServerMessage:
        """The message that an object belongs to, among those for this site; one that is answered comes last.

        A site that lost its connection may be offered a message while its last request, with the rest of the answer,
        still waits here to be read: then the message is answered before the site has fetched it again.
        """
        for message in (*reversed(self._sent.values()), *self._answered.values()):
            if object_id in message.objects:
                return message
        raise RequestRefusedError(403, "an object that was not sent to this site", self.site)

    def message(self, message_id: str) -> ServerMessage:
        """A message for this site that it has not replied to yet."""
        if message_id not in self._sent:
            raise RequestRefusedError(
                403, "a message that was not sent to this site, or is answered already", self.site
            )
        return self._sent[message_id]

    def message_or_answered(self, message_id: str) -> ServerMessage:
        """A message for this site, or one that it replied to of late."""
        return self._answered.get(message_id) or self.message(message_id)

    def announce(self, request: PushMessagesRequest, size: int) -> PushMessagesResponse:
        """Begin to collect a reply; one that was never completed is dropped.

        The site is asked to push every object: leaving out those that SuperLink has already would tell it what others
        sent. A site that did not get our response and announces the same reply again continues where it was.
        """
        if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
            raise RequestRefusedError(403, "not one message with the objects that it is made of", self.site)
        about = request.messages_list[0].metadata
        if about.dst_node_id != SUPERLINK_NODE_ID or about.src_node_id != request.node.node_id:
            # SuperLink itself would forward a site's instructions to other sites.
            raise RequestRefusedError(403, "a message that is not the site's answer to the server", self.site)
        reply_to = self.message(about.reply_to_message_id)
        if self._incoming is not None and self._incoming.delivery is not None and not self._incoming.delivered:
            raise RequestRefusedError(503, "the answer before this one is still on its way", self.site)
        if (latest := self._incoming) is not None and latest.is_open and latest.request == request:
            latest.bytes += size
            return latest.response()
        try:
            check_announcement(request, reply_to.metadata)
            self._check_number(request.message_object_trees[0], reply_to)
            incoming = Incoming(request, reply_to, self._folder, size)
            if about.message_id != incoming.root:
                raise InvalidObjectError("a message with the objects of another")
        except (InvalidAnnouncementError, InvalidObjectError, RequestRefusedError) as error:
            reply_to.dropped = True  # asked again, it would send the same again
            raise self._refusal(error, about.reply_to_message_id) from None
        self._incoming = None  # its objects are deleted
        self.clear()
        try:
            self._folder.mkdir(parents=True, mode=0o700)
        except OSError as error:
            raise self._refusal(error, about.reply_to_message_id) from None
        self._incoming = incoming
        return incoming.response()

    def receive(self, request: PushObjectRequest, size: int) -> Incoming:
        """Take one object of a reply; if one is refused, the whole reply is."""
        incoming, name = self._incoming, request.object_id
        if incoming is None or incoming.session != request.session_id or name not in incoming.announced:
            raise RequestRefusedError(403, "an object that was not announced", self.site)
        incoming.bytes += size
        if incoming.refusal is None and name not in incoming.pieces:
            try:
                incoming.add(name, examine_object(name, request.object_content, incoming.announced[name]))
                self._check_sizes(incoming)
                (incoming.folder / name).write_bytes(request.object_content)
            except (InvalidObjectError, RequestRefusedError) as error:
                incoming.reply_to.dropped = True  # asked again, it would send the same again
                self._refuse(incoming, error)
            except OSError as error:  # of ours, and it may pass: a full disk, say
                self._refuse(incoming, error)
        if incoming.refusal is not None:
            raise incoming.refusal
        return incoming

    def content(self, incoming: Incoming, name: str) -> bytes:
        """The content of an object that has arrived; where it cannot be read any more, the reply is refused."""
        try:
            return (incoming.folder / name).read_bytes()
        except OSError as error:
            raise self._refuse(incoming, error) from None

    def _refuse(self, incoming: Incoming, error: Exception) -> RequestRefusedError:
        incoming.refusal = self._refusal(error, incoming.reply_to_id)
        self.clear()
        return incoming.refusal

    def finish(self, incoming: Incoming) -> None:
        """SuperLink has the reply: there can be no second one to the same message."""
        incoming.delivered = True
        if (message := self._sent.pop(incoming.reply_to_id, None)) is not None:
            message.answered = True
            self._answered[incoming.reply_to_id] = message
            while len(self._answered) > _ANSWERED:
                self._answered.popitem(last=False)
        self.clear()

    def clear(self) -> None:
        """Delete what was collected on disk."""
        if not self.retired:
            shutil.rmtree(self._folder, ignore_errors=True)

    def retire(self) -> None:
        """Leave the folder, empty, to the queue of the site's next key: requests that have this one may still go on."""
        self.clear()
        self.retired = True

    def _check_number(self, tree: ObjectTree, question: ServerMessage) -> None:
        """Refuse an answer of more objects than an honest one: for each of them SuperLink keeps all sites waiting.

        The server says how many they are. Where it has not (it is just doing so, or has asked anew since), they are
        taken for some times as many as the question's, which no algorithm here exceeds. One of somebody's own might, so
        that more than these are no strike.
        """
        number = sum(1 for _ in _nodes(tree))  # also those that are in several places, as SuperLink goes through them
        said = None if self._marks is None else self._marks.objects(self.site, question.id)
        most = _MORE_OBJECTS + (question.objects_of_answer(self._max_message) if said is None else said)
        if number > most:
            status = 403 if said is None else TOO_LARGE
            raise RequestRefusedError(status, f"a message of {number:,} objects; {most:,} are allowed")

    def _check_sizes(self, incoming: Incoming) -> None:
        too_large = f"a message of more than {self._max_message:,} bytes (max_message)"
        if incoming.numbers + incoming.records > self._max_message:
            raise RequestRefusedError(TOO_LARGE, too_large)
        if incoming.records > RECORDS:
            raise RequestRefusedError(TOO_LARGE, f"a message of more than {RECORDS:,} bytes besides its arrays")
        if incoming.is_complete and (size := inflated_size(incoming.root, incoming.pieces)) > self._max_message:
            raise RequestRefusedError(TOO_LARGE, f"{too_large}: unpacked it has {size:,}")
        if incoming.is_complete:
            check_chunks(incoming.pieces)

    def _refusal(self, error: Exception, question: str) -> RequestRefusedError:
        status, reason = NOT_IN_ORDER, str(error)
        if isinstance(error, RequestRefusedError):
            status = error.status
        if isinstance(error, OSError):
            status, reason = 507, f"the gate cannot keep an answer in {self._folder}: {error.strerror}"
        return RequestRefusedError(status, reason, self.site, question)


def _children_of(tree: ObjectTree) -> dict[str, frozenset[str]]:
    """The objects of a tree, each with its children."""
    found: dict[str, frozenset[str]] = {}
    for node in _nodes(tree):
        children = frozenset(child.object_id for child in node.children)
        if not HASH.fullmatch(node.object_id):
            raise InvalidObjectError("an object whose name is not a hash")
        if len(children) < len(node.children) or found.setdefault(node.object_id, children) != children:
            raise InvalidObjectError("an object that is announced twice")
    return found


def _nodes(tree: ObjectTree) -> Iterator[ObjectTree]:
    left = [tree]
    while left:
        node = left.pop()
        left += node.children
        yield node


def message_queues(
    names: Mapping[str, bytes], folder: Path, max_message: int, marks: SentMarks
) -> dict[str, MessageQueue]:
    """A queue for each site, with a folder for its incoming reply; what an earlier gate left there is deleted."""
    shutil.rmtree(folder, ignore_errors=True)
    return {name: MessageQueue(name, folder / name, max_message, marks) for name in names}
