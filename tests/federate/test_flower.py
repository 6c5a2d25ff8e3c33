"""What FedGen expects of Flower beyond its public interface; where the next Flower differs, these tests say in what."""

import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.retry import http_retry
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers
from flwr.supernode import fleet_http_connection, start_client_internal

import fedgen
from fedgen.federate import flower
from fedgen.federate.gate.rules import TARGETS

PUBLIC = {"app", "serverapp", "clientapp", "simulation"}


def test_no_other_file_uses_flowers_internals() -> None:
    """But an example that takes a SuperNode's place; both are what the module's docstring says."""
    root = Path(fedgen.__file__).parent
    examples = Path(__file__).parents[2] / "examples"
    using = {path.name for path in (*root.rglob("*.py"), *examples.glob("*.py")) if internals(path)}
    assert using == {Path(flower.__file__).name, "light_site.py"}
    assert "examples/light_site.py" in str(flower.__doc__)
    simulating = {path.name for path in root.rglob("*.py") if "flwr.simulation" in imported(path)}
    assert simulating == {"flower_simulation.py"}
    assert "`fedgen.bench.peers`" in str(flower.__doc__)


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def internals(path: Path) -> set[str]:
    """What a file imports of Flower that is not its public interface."""
    parts = {name: [*name.split("."), ""] for name in imported(path)}
    return {name for name, (package, part, *_) in parts.items() if package == "flwr" and part not in PUBLIC}


@pytest.mark.parametrize("name", flower.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(flower, name) is not None


FIELDS = {
    "ActivateNodeRequest": {"public_key", "heartbeat_interval"},
    "ActivateNodeResponse": {"node_id"},
    "ConfirmMessageReceivedRequest": {"node", "run_id", "message_object_id"},
    "DeactivateNodeRequest": {"node_id"},
    "ListNodesResponse": {"nodes_info"},
    "ObjectTree": {"object_id", "children"},
    "PullMessagesResponse": {"messages_list", "message_object_trees"},
    "PushMessagesRequest": {"node", "messages_list", "message_object_trees"},
    "PushMessagesResponse": {"reconnect", "results", "objects_to_push", "session_id"},
    "PushObjectRequest": {"node", "run_id", "object_id", "object_content", "session_id"},
    "PushObjectResponse": {"stored"},
    "NodeInfo": {"node_id", "name", "public_key", "status", "online_until", "heartbeat_interval", "last_activated_at"},
    "RegisterNodeRequest": {"public_key", "name"},
    "UnregisterNodeRequest": {"node_id"},
    "SendNodeHeartbeatRequest": {"node", "heartbeat_interval"},
}


@pytest.mark.parametrize("name", FIELDS)
def test_the_messages_have_the_fields_that_are_read_and_written(name: str) -> None:
    assert {field.name for field in getattr(flower, name).DESCRIPTOR.fields} >= FIELDS[name]


def test_the_metadata_of_a_message_has_what_the_gate_reads() -> None:
    proto = flower.PushMessagesRequest().messages_list.add().metadata
    read = {"run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "message_type"}
    assert {field.name for field in proto.DESCRIPTOR.fields} >= read | {"created_at", "ttl"}


def test_superlink_answers_at_the_paths_that_are_used() -> None:
    paths = {path for method, path in flower.PROTOBUF_REQUEST_TYPES if method == "POST"}
    control = {
        flower.CONTROL_LIST_NODES: flower.ListNodesRequest,
        flower.CONTROL_LIST_RUNS: flower.ListRunsRequest,
        flower.CONTROL_REGISTER_NODE: flower.RegisterNodeRequest,
        flower.CONTROL_UNREGISTER_NODE: flower.UnregisterNodeRequest,
    }
    assert paths >= {*TARGETS, *control}
    for path, request in control.items():
        assert flower.PROTOBUF_REQUEST_TYPES["POST", path] is request


def test_an_object_is_read_as_flower_wrote_it() -> None:
    content = RecordDict({"a": ArrayRecord({"w": Array(np.arange(3.0))}), "b": ConfigRecord({"round": 1})})
    found = get_all_nested_objects(Message(content, 7, "train"))
    kinds = set()
    for name, part in found.items():
        raw = part.deflate()
        assert flower.get_object_id(raw) == name
        flower.validate_object_content(raw)
        kind, children, size = flower.get_object_head_values_from_object_content(raw)
        body = flower.get_object_body(raw, flower.inflatable_class_registry[kind])
        assert (len(body), set(children) <= set(found)) == (size, True)
        kinds.add(kind)
    assert kinds == {"Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "ConfigRecord"}


def test_a_signature_is_of_the_time_alone() -> None:
    """So the gate can deactivate a node for the site that asks to be activated, with the site's own headers."""
    source = inspect.getsource(node_auth.authenticate_node)
    assert 'timestamp.encode("ascii")' in source
    assert "get_node_id_by_public_key(public_key) != node_id" in source


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Alembic, which Flower uses
def test_an_online_node_is_not_activated_and_a_deactivated_one_is(tmp_path: Path) -> None:
    """Why a site that returns was refused, and what the gate does about it."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    base = str(tmp_path / "superlink.sqlite")
    state = LinkStateFactory(base, NoOpFederationManager(), ObjectStoreFactory(base)).state()
    node = state.create_node("aid", "name", b"key", 30)
    assert state.activate_node(node, 30)
    assert not state.activate_node(node, 30), "until two of its heartbeats have been missed"
    assert state.deactivate_node(node)
    assert state.activate_node(node, 30)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Alembic, which Flower uses
def test_an_activation_without_an_interval_tells_whether_a_key_is_known_and_activates_nothing(tmp_path: Path) -> None:
    """By which the doctor at a site asks."""
    from flwr.server.superlink.linkstate import LinkStateFactory
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.superlink.federation import NoOpFederationManager

    base = str(tmp_path / "superlink.sqlite")
    state = LinkStateFactory(base, NoOpFederationManager(), ObjectStoreFactory(base)).state()
    nodes = {key: state.create_node("aid", "name", key, 30) for key in (b"registered", b"online", b"removed")}
    assert state.activate_node(nodes[b"online"], 30)
    state.delete_node("aid", nodes[b"removed"])

    def about() -> list[object]:
        return [(n.node_id, n.status, n.online_until) for n in state.get_node_info(node_ids=list(nodes.values()))]

    before = about()
    for key, code in (
        (b"registered", flower.INVALID_INTERVAL),
        (b"online", flower.INVALID_INTERVAL),
        (b"removed", flower.NOT_ACTIVATED),
        (b"never seen", flower.NOT_ACTIVATED),
    ):
        with pytest.raises(FlowerError) as refused:
            fleet_handlers.activate_node(flower.ActivateNodeRequest(public_key=key, heartbeat_interval=0.0), state)
        assert refused.value.code == code, key
    assert about() == before


def test_a_supernode_has_one_message_at_a_time() -> None:
    """It fetches a message, waits for its reply and sends that before it asks again: asking again, it has lost it."""
    source = inspect.getsource(start_client_internal.start_client_internal)
    loop = source[source.index("while True:") :]
    assert loop.index("_pull_and_store_message(") < loop.index("_push_messages(")
    assert "while not (reply_messages" in inspect.getsource(start_client_internal._push_messages)
    assert "make_simple_http_retry_invoker" in inspect.getsource(fleet_http_connection.http_request_response)


def test_a_supernode_asks_for_a_run_when_it_has_a_message_of_it_and_gives_that_up_after_403() -> None:
    """Why the gate answers who asks for another run with 403, also after a restart, when it has forgotten messages."""
    source = inspect.getsource(start_client_internal._pull_and_store_message)
    order = ["receive()", "run_id = message.metadata.run_id", "get_run(run_id)", "get_fab(run_info.fab_hash, run_id)"]
    places = [source.index(step) for step in [*order, "except RunNotRunningException:"]]
    assert places == sorted(places)
    retries = inspect.getsource(http_retry)
    assert "raise RunNotRunningException" in retries[retries.index("httpx.codes.FORBIDDEN") :]
    assert {502, 503, 504} == http_retry._RETRYABLE_STATUS_CODES, "after which it tries again"
    assert "exc.response.status_code in (502, 503, 504)" in inspect.getsource(fleet_http_connection)


def test_confirming_a_message_deletes_its_objects_and_pulling_a_reply_its_rows() -> None:
    """What the server calls so that superlink.sqlite does not grow."""
    assert "object_store.delete(request.message_object_id)" in inspect.getsource(
        runtime_handlers.confirm_message_received
    )
    assert "store.delete(request.message_object_id)" in inspect.getsource(fleet_handlers.confirm_message_received)
    assert "state.delete_messages(" in inspect.getsource(runtime_handlers.pull_messages)
    grid = HttpGrid(insecure=True, token="token")
    assert grid.node.node_id == flower.SUPERLINK_NODE_ID
    assert callable(grid._runtime_client.ConfirmMessageReceived)


def test_the_variables_are_those_that_superlink_looks_at() -> None:
    source = inspect.getsource(SuperLinkLifespan.startup)
    looked_at = {name for name in source.replace("(", " ").replace(")", " ").split() if name.startswith("FLWR_")}
    assert looked_at == set(flower.OPENS_INTERFACES)


def test_the_headers_that_identify_a_site_pass_the_gate() -> None:
    assert flower.TIMESTAMP_HEADER.startswith("flwr-")
    assert flower.FLEET_HTTP_PUBLIC_KEY_HEADER.startswith("flwr-")
    assert flower.FLEET_HTTP_SIGNATURE_HEADER.startswith("flwr-")
