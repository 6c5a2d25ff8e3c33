"""A message from the server to a site and the site's answer, as they pass the gate."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

NODE = 7


class Letter:
    """A site's answer with these arrays, cut up as Flower does it."""

    def __init__(self, arrays: dict[str, np.ndarray], question: Message | None = None) -> None:
        self.question = question or asked()
        content = RecordDict(
            {
                "upload": ArrayRecord({name: Array(array) for name, array in arrays.items()}),
                "about": ConfigRecord({"round": 3}),
                "metrics": MetricRecord({"loss": 1.0}),
            }
        )
        TaskIdentity.node_id = NODE
        try:
            answer = named(Message(content, reply_to=self.question))
        finally:
            TaskIdentity.node_id = 1
        self.contents = {name: part.deflate() for name, part in get_all_nested_objects(answer).items()}
        self.tree, self.question_tree = get_object_tree(answer), get_object_tree(self.question)
        self.proto = message_to_proto(remove_content_from_message(answer))

    @property
    def request(self) -> PushMessagesRequest:
        return PushMessagesRequest(
            node=Node(node_id=NODE), messages_list=[self.proto], message_object_trees=[self.tree]
        )

    @property
    def announcement(self) -> bytes:
        return self.request.SerializeToString()

    def pushes(self, opened: PushMessagesResponse) -> list[bytes]:
        return [
            PushObjectRequest(
                node=Node(node_id=NODE), run_id=1, object_id=name, object_content=content, session_id=opened.session_id
            ).SerializeToString()
            for name, content in self.contents.items()
        ]


def asked(ticket: str = "feed") -> Message:
    content = RecordDict(
        {"broadcast": ArrayRecord({"a": Array(np.zeros(3))}), "about": ConfigRecord({"ticket": ticket})}
    )
    return named(Message(content, NODE, "train", group_id="3"))


def named(message: Message) -> Message:
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def pulled(question: Message) -> PullMessagesResponse:
    """How SuperLink hands it out."""
    return PullMessagesResponse(
        messages_list=[message_to_proto(remove_content_from_message(question))],
        message_object_trees=[get_object_tree(question)],
    )


def objects(tree: ObjectTree) -> set[str]:
    return {tree.object_id}.union(*map(objects, tree.children))


def confirm(message_id: str) -> bytes:
    return ConfirmMessageReceivedRequest(message_object_id=message_id).SerializeToString()
