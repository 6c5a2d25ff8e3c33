"""Flower's grid without its processes: messages are serialised as Flower does and answered by sites in this process."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedgen.federate.apps import answer
from fedgen.federate.journal import Journal
from fedgen.federate.site.site import Site

Tamper = Callable[[int, Message, RecordDict], RecordDict | None]  # site, message, honest reply -> what is sent


class LocalGrid(Grid):
    """Sites 0, 1, ... as nodes 1000, 1001, ...; `tamper` may change what a site answers, or drop it."""

    def __init__(self, app: Path, folders: list[Path], tamper: Tamper | None = None) -> None:
        self.sites = [Site(folder, app) for folder in folders]
        self.names = [site.settings.name for site in self.sites]
        self.tamper = tamper
        self.absent: set[int] = set()
        self.sent: list[tuple[int, Message]] = []  # all that ever crossed the wire, both ways
        self.replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [node.node_id for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=1000 + n, name=name, last_activated_at="2026-01-01")
            for n, name in enumerate(self.names)
            if n not in self.absent
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            site = message.metadata.dst_node_id - 1000
            message.metadata.__dict__["_message_id"] = f"message-{len(self.sent)}"
            message.content = _through_the_wire(message.content)
            self.sent.append((site, message))
            ids.append(message.metadata.message_id)
            reply = self._answer(site, message)
            if reply is not None:
                self.sent.append((site, reply))
                self.replies[message.metadata.message_id] = reply
        return ids

    def _answer(self, site: int, message: Message) -> Message | None:
        one = self.sites[site]
        try:
            train = message.metadata.message_type == "train"
            content: RecordDict | None = answer(one, message, Journal(one.folder / "log.jsonl"), train=train)
            if self.tamper is not None:
                assert content is not None
                content = self.tamper(site, message, content)
        except Exception as error:
            return Message(Error(2, str(error)), reply_to=message)
        return None if content is None else Message(_through_the_wire(content), reply_to=message)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(i) for i in message_ids if i in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError


def _through_the_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))
