"""What the package uses of Flower's internals, all of it: another version of Flower is this file's work.

`flwr.app`, `flwr.serverapp`, `flwr.clientapp` and, for a comparison of speed (`fedgen.bench.peers`), `flwr.simulation`
are Flower's public interface and are imported where they are needed. Everything else that the package needs is imported
here. Outside the package, `examples/light_site.py`, which takes a SuperNode's place, and tests import internals, too.
`tests/federate/test_flower.py` checks that the names are still
there, and that what they stand for still behaves as the gate and the server expect.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, cast

from flwr.app import Message
from flwr.common.constant import (
    FLWR_INTERNAL_GRPC_CONTROL_API,
    FLWR_INTERNAL_GRPC_FLEET_API,
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    HEARTBEAT_PATIENCE,
    MESSAGE_TTL_TOLERANCE,
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.common.serde import recorddict_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListNodesResponse,
    ListRunsRequest,
    RegisterNodeRequest,
    RegisterNodeResponse,
    UnregisterNodeRequest,
    UnregisterNodeResponse,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    Reconnect,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, NodeStatus
from flwr.supercore.date import now
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflatable_class_registry,
    inflate_object_from_contents,
    pull_objects,
    validate_object_content,
)
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, sign_message, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.run import RunNotRunningException
from google.protobuf.message import DecodeError

__all__ = [
    "CHUNK_SIZE",
    "CONTROL_LIST_NODES",
    "CONTROL_LIST_RUNS",
    "CONTROL_REGISTER_NODE",
    "CONTROL_UNREGISTER_NODE",
    "FLEET",
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "HEARTBEAT_PATIENCE",
    "INVALID_INTERVAL",
    "MESSAGE_TTL_TOLERANCE",
    "NODE_ONLINE",
    "NOT_ACTIVATED",
    "OPENS_INTERFACES",
    "PROTOBUF_MEDIA_TYPE",
    "PROTOBUF_REQUEST_TYPES",
    "RUNTIME",
    "SUPERLINK_NODE_ID",
    "SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE",
    "UNPACKING_ERRORS",
    "ActivateNodeRequest",
    "ActivateNodeResponse",
    "Arrival",
    "ConfirmMessageReceivedRequest",
    "ConfirmMessageReceivedResponse",
    "DeactivateNodeRequest",
    "ListNodesRequest",
    "ListNodesResponse",
    "ListRunsRequest",
    "Node",
    "NodeInfo",
    "NodeStatus",
    "ObjectPullError",
    "ObjectTree",
    "PullMessagesResponse",
    "PullObjectResponse",
    "PushMessagesRequest",
    "PushMessagesResponse",
    "PushObjectRequest",
    "PushObjectResponse",
    "Reconnect",
    "RegisterNodeRequest",
    "RegisterNodeResponse",
    "RunNotRunningException",
    "SendNodeHeartbeatRequest",
    "SuperLinkParts",
    "UnregisterNodeRequest",
    "UnregisterNodeResponse",
    "arrivals",
    "bytes_to_public_key",
    "discard_object",
    "get_object_body",
    "get_object_head_values_from_object_content",
    "get_object_id",
    "inflatable_class_registry",
    "now",
    "recorddict_to_proto",
    "sign_message",
    "superlink_answers",
    "superlink_command",
    "supernode_command",
    "validate_object_content",
    "verify_signature",
]

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"  # where SuperLink's interfaces for sites and for apps begin
CONTROL_LIST_NODES, CONTROL_LIST_RUNS = "/v1/control/list-nodes", "/v1/control/list-runs"
CONTROL_REGISTER_NODE, CONTROL_UNREGISTER_NODE = "/v1/control/register-node", "/v1/control/unregister-node"
NODE_ONLINE = NodeStatus.ONLINE
# What Flower raises of a message that is malformed, and of nothing else; memory that is short, say, is none of these.
UNPACKING_ERRORS = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, DecodeError,
    UnexpectedObjectContentError,
)  # fmt: skip
NOT_ACTIVATED = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
INVALID_INTERVAL = int(ApiErrorCode.FLEET_INVALID_HEARTBEAT_INTERVAL)
CHUNK_SIZE = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes of an array in one object; the last one may have fewer
# Environment variables that make SuperLink listen on further ports, on all addresses.
OPENS_INTERFACES = (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API)


def supernode_command() -> Callable[[], None]:
    """The function behind `flower-supernode`; nothing else needs its imports."""
    from flwr.supernode.cli import flower_supernode

    return flower_supernode


class SuperLinkParts(NamedTuple):
    """What of SuperLink may be replaced before it starts, for what it does with each request."""

    ends: Callable[..., str | None]  # whether a run has ended: None while it goes on
    count_bytes: Callable[..., None]  # adds to the bytes that a run has sent and received
    layers: Callable[[], list[Any]]  # what each request passes through, outermost first


def superlink_command(replaced: Callable[[SuperLinkParts], SuperLinkParts]) -> Callable[[], None]:
    """The function behind `flower-superlink`, with some parts replaced."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.superlink import main
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers

    parts = replaced(SuperLinkParts(fleet_handlers.check_abort, SqlLinkState.store_traffic, main._get_middleware))
    fleet_handlers.check_abort = parts.ends
    SqlLinkState.store_traffic = parts.count_bytes
    main._get_middleware = parts.layers
    return flower_superlink


def superlink_answers() -> dict[str, Callable[[Any, bytes], bytes]]:
    """SuperLink's answers to the requests that messages are made of: by path, a function of the request and its body.

    Each makes the checks that SuperLink makes, with its functions, and raises where one fails.
    """
    from flwr.supercore.constant import TASK_TOKEN_HEADER
    from flwr.supercore.dependencies.task import authenticate_task
    from flwr.supercore.dependencies.version import VersionDependency
    from flwr.superlink.dependencies.linkstate import get_linkstate
    from flwr.superlink.routers.fleet import node_auth
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers

    @functools.lru_cache(4096)
    def verified(public_key: bytes, message: bytes, signature: bytes) -> bool:
        return verify_signature(bytes_to_public_key(public_key), message, signature)

    # The gate forwards a site's reply in several requests with one signature, which takes longer than most of the rest.
    node_auth.bytes_to_public_key, node_auth.verify_signature = bytes, verified
    check_version = VersionDependency(component_name="SuperLink", connection_name="Caller <-> SuperLink Runtime API")

    def of_site(path: str, handle: Callable[[Any, Any], Any]) -> Callable[[Any, bytes], bytes]:
        def answer(http: Any, body: bytes) -> bytes:
            http.state.protobuf_request = request = PROTOBUF_REQUEST_TYPES["POST", path].FromString(body)
            node_auth.authenticate_node(http)
            return cast(bytes, handle(request, get_linkstate(http)).SerializeToString())

        return answer

    def of_app(path: str, handle: Callable[[Any, Any, Any], Any]) -> Callable[[Any, bytes], bytes]:
        def answer(http: Any, body: bytes) -> bytes:
            check_version(http)
            state: Any = get_linkstate(http)
            task = authenticate_task(http, http.headers.get(TASK_TOKEN_HEADER), state)
            request = PROTOBUF_REQUEST_TYPES["POST", path].FromString(body)
            return cast(bytes, handle(request, state, task).SerializeToString())

        return answer

    fleet = {
        "pull-messages": lambda request, state: fleet_handlers.pull_messages(request, state, state.object_store),
        "push-messages": fleet_handlers.push_messages,
        "pull-object": fleet_handlers.pull_object,
        "push-object": fleet_handlers.push_object,
        "confirm-message-received": lambda request, state: fleet_handlers.confirm_message_received(
            request, state, state.object_store
        ),
        "send-node-heartbeat": fleet_handlers.send_node_heartbeat,
    }
    runtime = {
        "pull-messages": runtime_handlers.pull_messages,
        "push-messages": runtime_handlers.push_messages,
        "pull-object": runtime_handlers.pull_object,
        "push-object": runtime_handlers.push_object,
        "confirm-message-received": runtime_handlers.confirm_message_received,
        "get-nodes": runtime_handlers.get_nodes,
    }
    found = {path: of_site(path, handle) for name, handle in fleet.items() for path in [FLEET + name]}
    return found | {path: of_app(path, handle) for name, handle in runtime.items() for path in [RUNTIME + name]}


class Arrival(NamedTuple):
    """A reply that SuperLink has announced: it may still be incomplete, or nothing that can be read."""

    question: str  # the id of the message that it replies to
    reply: str  # its own id
    fetch: Callable[[], Message]  # waits until it is complete


def arrivals(grid: Grid, questions: Collection[str]) -> list[Arrival] | None:
    """The replies to any of these messages that are there, by one request; None where this is not Flower's own grid.

    Each is announced once. Flower's own function fetches them, too, but all together: one that is not complete, or
    cannot be read, would keep the others back.
    """
    client: Any = getattr(grid, "_runtime_client", None)
    if client is None:
        return None
    if not questions:
        return []
    node = cast(Any, grid).node

    def pulled(object_id: str) -> bytes:
        found = client.PullObject(PullObjectRequest(node=node, object_id=object_id))
        if not found.object_found:
            raise ObjectPullError(object_id, "it is not there")
        if not found.object_available:
            raise ObjectUnavailableError(object_id)  # `pull_objects` tries again
        return bytes(found.object_content)

    def fetcher(reply: str, objects: list[str]) -> Callable[[], Message]:
        def fetch() -> Message:
            try:
                contents = pull_objects(objects, pulled)
            finally:  # also of one that cannot be fetched: it is not announced again
                discard_object(grid, reply)
            message = cast(Message, inflate_object_from_contents(reply, contents))
            message.metadata.__dict__["_message_id"] = reply
            return message

        return fetch

    found = client.PullMessages(PullAppMessagesRequest(message_ids=questions))
    announced = zip(found.messages_list, found.message_object_trees, strict=True)
    return [
        Arrival(
            message.metadata.reply_to_message_id,
            message.metadata.message_id,
            fetcher(message.metadata.message_id, [part.object_id for part in iterate_object_tree(tree)]),
        )
        for message, tree in announced
    ]


def discard_object(grid: Grid, object_id: str) -> None:
    """Delete a message's objects at SuperLink, as Flower does when the message has been received.

    Only Flower's own grid keeps objects; there is nothing to delete in another one.
    """
    client: Any = getattr(grid, "_runtime_client", None)
    if client is not None:
        # SuperLink takes the run from the server app's token.
        request = ConfirmMessageReceivedRequest(node=grid.node, message_object_id=object_id)
        client.ConfirmMessageReceived(request)
