"""What is used of Flower's internals, all of it: another version of Flower is this file's work.

`flwr.app`, `flwr.serverapp` and `flwr.clientapp` are Flower's public interface and are imported where they are needed.
Everything else is imported here and nowhere else. `tests/federate/test_flower.py` checks that the names are still
there, and that what they stand for still behaves as the gate and the server expect.
"""

from collections.abc import Callable
from typing import Any

from flwr.common.constant import (
    FLWR_INTERNAL_GRPC_CONTROL_API,
    FLWR_INTERNAL_GRPC_FLEET_API,
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.common.serde import recorddict_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListNodesResponse, ListRunsRequest
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
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.serverapp import Grid
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, NodeStatus
from flwr.supercore.date import now
from flwr.supercore.error import ApiErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    get_object_id,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, validate_object_content
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from flwr.supercore.run import RunNotRunningException

__all__ = [
    "CONTROL_LIST_NODES",
    "CONTROL_LIST_RUNS",
    "FLEET",
    "FLEET_HTTP_PUBLIC_KEY_HEADER",
    "FLEET_HTTP_SIGNATURE_HEADER",
    "NODE_ONLINE",
    "NOT_ACTIVATED",
    "OPENS_INTERFACES",
    "PROTOBUF_MEDIA_TYPE",
    "PROTOBUF_REQUEST_TYPES",
    "SUPERLINK_NODE_ID",
    "SYSTEM_TIME_TOLERANCE",
    "TIMESTAMP_HEADER",
    "TIMESTAMP_TOLERANCE",
    "ActivateNodeRequest",
    "ActivateNodeResponse",
    "ConfirmMessageReceivedRequest",
    "ConfirmMessageReceivedResponse",
    "DeactivateNodeRequest",
    "ListNodesRequest",
    "ListNodesResponse",
    "ListRunsRequest",
    "Node",
    "ObjectTree",
    "PullMessagesResponse",
    "PullObjectResponse",
    "PushMessagesRequest",
    "PushMessagesResponse",
    "PushObjectRequest",
    "PushObjectResponse",
    "Reconnect",
    "RunNotRunningException",
    "SendNodeHeartbeatRequest",
    "bytes_to_public_key",
    "discard_object",
    "get_object_body",
    "get_object_head_values_from_object_content",
    "get_object_id",
    "inflatable_class_registry",
    "now",
    "recorddict_to_proto",
    "supernode_command",
    "validate_object_content",
    "verify_signature",
]

FLEET = "/v1/fleet/"  # where SuperLink's interface for sites begins
CONTROL_LIST_NODES, CONTROL_LIST_RUNS = "/v1/control/list-nodes", "/v1/control/list-runs"
NODE_ONLINE = NodeStatus.ONLINE
NOT_ACTIVATED = int(ApiErrorCode.FLEET_NODE_ACTIVATION_FAILED)
# Environment variables that make SuperLink listen on further ports, on all addresses.
OPENS_INTERFACES = (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API)


def supernode_command() -> Callable[[], None]:
    """The function behind `flower-supernode`; nothing else needs its imports."""
    from flwr.supernode.cli import flower_supernode

    return flower_supernode


def discard_object(grid: Grid, object_id: str) -> None:
    """Delete a message's objects at SuperLink, as Flower does when the message has been received.

    Only Flower's own grid keeps objects; there is nothing to delete in another one.
    """
    client: Any = getattr(grid, "_runtime_client", None)
    if client is not None:
        # SuperLink takes the run from the server app's token.
        request = ConfirmMessageReceivedRequest(node=grid.node, message_object_id=object_id)
        client.ConfirmMessageReceived(request)
