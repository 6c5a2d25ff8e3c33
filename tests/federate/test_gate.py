"""The gate lets through what sites need: no other path, no other spelling, no stranger, nothing too large."""

import contextlib
import datetime
import errno
import socket
import ssl
import threading
import time
from email.utils import parsedate_to_datetime
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse, PushMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import PullObjectRequest, PushObjectRequest, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.protobuf import translation
from gate_fixture import PATIENCE, Fixture
from gate_traffic import Letter, confirm, objects, pulled

from fedgen.errors import FedgenError
from fedgen.federate.gate import connections as gate_connections
from fedgen.federate.gate import gate as gate_module
from fedgen.federate.gate import http as gate_http
from fedgen.federate.gate.connections import network_of
from fedgen.federate.gate.gate import Address, listening
from fedgen.federate.gate.rules import (
    CONFIRM,
    DEACTIVATE,
    GET_FAB,
    GET_RUN,
    HEARTBEAT,
    PULL_MESSAGE,
    PULL_OBJECT,
    PUSH_MESSAGE,
    PUSH_OBJECT,
    TARGETS,
)
from fedgen.federate.gate.supervisor import parse_address
from fedgen.federate.journal import GATE_JOURNAL, Journal, read_journal


def test_its_targets_are_those_of_the_installed_flower() -> None:
    fleet = {path for _, path in translation.PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    # Sites do not register themselves where they have keys, and SuperLink refuses it there.
    assert fleet - {"/v1/fleet/register-node", "/v1/fleet/unregister-node"} == TARGETS


def test_what_a_site_asks_passes_as_a_new_request(gate: Fixture) -> None:
    with gate.client() as client:
        for number in range(3):
            more = {"x-forwarded-for": "10.0.0.1", "cookie": "a=b", "content-type": "application/protobuf"}
            beat = SendNodeHeartbeatRequest(heartbeat_interval=number).SerializeToString()
            answer = client.post(HEARTBEAT, content=beat, headers={**gate.headers(), **more})
            assert (answer.status_code, answer.text) == (200, "yes")
            assert answer.headers["flwr-note"] == "hello"
            assert "x-other" not in answer.headers
    assert len(gate.seen) == 3
    assert gate.seen[2].startswith(f"POST {HEARTBEAT} HTTP/1.1\r\n".encode())
    assert gate.seen[2].endswith(b"\r\n\r\n" + beat)
    assert b"cookie" not in gate.seen[2].lower()
    assert b"x-forwarded-for" not in gate.seen[2].lower()
    assert b"flwr-signature" in gate.seen[2]
    assert not gate.refused


TRICKS = [
    "/v1/control/list-runs",
    "/v1/control/register-node",
    "/v1/control/start-run",
    "/v1/runtime/get-nodes",
    "/v1/fleet/register-node",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "/v1/fleet/..;/control/list-runs",
    "/v1//fleet/get-run",
    "//v1/fleet/get-run",
    "/v1/fleet/get-run/",
    "/v1/fleet/get-run?x=1",
    "/v1/fleet/get-run#x",
    "/v1/fleet/get%2Drun",
    "/V1/FLEET/GET-RUN",
    "/v1/fleet\\get-run",
    "https://127.0.0.1/v1/fleet/get-run",
    "http://127.0.0.1/v1/control/list-runs",
    "/docs",
    "/",
    "*",
]


def test_no_other_path_and_no_other_spelling_passes(gate: Fixture) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    for target in TRICKS:
        answer = gate.raw(f"POST {target} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{signed}\r\n")
        assert answer.startswith(b"HTTP/1.1 403 "), target
    for method in ("GET", "PUT", "OPTIONS", "CONNECT", "post"):
        answer = gate.raw(f"{method} {HEARTBEAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n{signed}\r\n")
        assert answer.startswith(b"HTTP/1.1 403 "), method
    assert not gate.seen
    assert {e["status"] for e in gate.refused} == {403}
    assert gate.refused[0]["reason"] == "POST /v1/control/list-runs"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("content-length: 5\r\ntransfer-encoding: chunked", 400),
        ("transfer-encoding: chunked", 400),
        ("transfer-encoding: gzip, chunked", 501),
        ("content-length: 5\r\ncontent-length: 6", 400),
        ("content-length: +5", 400),
        ("content-length: 5\r\nflwr-timestamp: now", 400),
        ("content-length: 5\r\nhost: b", 400),
        ("content-length : 5", 400),
        (" content-length: 5", 411),
        ("content-length: 5\r\nx: a\rb", 400),
        ("", 411),
    ],
)
def test_a_body_of_doubtful_length_is_refused(lines: str, status: int, gate: Fixture) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    hidden = "0\r\n\r\nPOST /v1/control/list-runs HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
    head = f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}{lines}{chr(13) + chr(10) if lines else ''}\r\n"
    answer = gate.raw(head + hidden)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert answer.count(b"\r\n\r\n") == 1, "nothing after it was looked at"
    assert not gate.seen


def test_a_request_behind_another_one_is_held_against_the_rules_too(gate: Fixture) -> None:
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    first = f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}content-length: 0\r\n\r\n"
    answer = gate.raw(first + "POST /v1/control/list-runs HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 403 " in answer
    assert len(gate.seen) == 1


def test_only_sites_with_a_key_of_the_federation_get_to_superlink(gate: Fixture) -> None:
    wrong = {**gate.headers(), "flwr-signature": gate.headers("south")["flwr-signature"]}
    with gate.client() as client:
        for headers in ({}, gate.headers("stranger"), wrong, gate.headers(age=400), gate.headers(age=-60)):
            assert client.post(HEARTBEAT, content=b"", headers=headers).status_code == 412
    assert not gate.seen
    assert all(e["status"] == 412 and "site" not in e for e in gate.refused), "who it was is not known"


def test_what_is_too_large_is_refused_before_it_is_read_and_written_down_with_its_sender(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gate.post(HEARTBEAT, bytes(2_000_000)).status_code == 413
    assert gate.post(PUSH_OBJECT, bytes(7_000_000), "south").status_code == 413
    assert not gate.seen
    # A message that comes in many pieces: the one that makes it too large is refused, and so are those after it.
    letter = Letter({"weights": np.random.default_rng(0).integers(0, 255, 12_000_000, np.uint8)})
    gate.down = pulled(letter.question)
    assert gate.post(PULL_MESSAGE, b"").status_code == 200
    opened = gate.post(PUSH_MESSAGE, letter.announcement)
    pushes = letter.pushes(PushMessagesResponse.FromString(opened.content))
    statuses = [gate.post(PUSH_OBJECT, push).status_code for push in sorted(pushes, key=len, reverse=True)]
    assert statuses == [200, 413] + [413] * (len(pushes) - 2)
    assert {(e["site"], e["status"]) for e in gate.refused} == {("north", 413), ("south", 413)}
    assert "10,000,000 bytes (max_message)" in gate.refused[-1]["reason"]
    assert gate.came == [PULL_MESSAGE], "nothing of the message reached SuperLink"


def test_an_answer_reaches_superlink_when_all_of_it_is_there(gate: Fixture) -> None:
    """A site polls, fetches and replies, and learns nothing of what others sent; bytes are logged both ways."""
    letter = Letter({"weights": np.arange(1000.0), "bias": np.zeros(3)})
    gate.down = pulled(letter.question)
    question = pulled(letter.question).messages_list[0].metadata.message_id
    part = PullObjectRequest(object_id=next(iter(objects(letter.question_tree)))).SerializeToString()
    assert gate.post(PULL_OBJECT, part).status_code == 403, "it was not sent to this site yet"
    gate.post(PULL_MESSAGE, b"")
    assert gate.post(PULL_OBJECT, part, "south").status_code == 403, "it is another site's"
    assert gate.post(CONFIRM, confirm(question), "south").status_code == 403
    assert gate.post(PUSH_MESSAGE, letter.announcement, "south").status_code == 403
    assert gate.came == [PULL_MESSAGE]
    assert gate.post(PULL_OBJECT, part).status_code == 200
    for _ in range(2):  # it is written down once
        assert gate.post(CONFIRM, confirm(question)).status_code == 200
    del gate.seen[:]

    opened = PushMessagesResponse.FromString(gate.post(PUSH_MESSAGE, letter.announcement).content)
    assert sorted(opened.objects_to_push) == sorted(objects(letter.tree)), "all, whatever SuperLink has already"
    *first, last = letter.pushes(opened)
    for push in [*first, first[0]]:
        assert PushObjectResponse.FromString(gate.post(PUSH_OBJECT, push).content).stored
    assert not gate.seen
    for _ in range(2):  # a site that did not hear the answer says it again
        assert PushObjectResponse.FromString(gate.post(PUSH_OBJECT, last).content).stored
    assert gate.came == [PUSH_MESSAGE] + [PUSH_OBJECT] * (len(first) + 1) + [CONFIRM], "only now may SuperLink forget"
    passed = [PushObjectRequest.FromString(seen.partition(b"\r\n\r\n")[2]) for seen in gate.seen[1:-1]]
    assert {p.session_id for p in passed} == {"of SuperLink"}
    assert {p.object_id: p.object_content for p in passed} == letter.contents
    assert gate.post(PUSH_MESSAGE, letter.announcement).status_code == 403, "it is answered"
    assert not list(gate.folders.server.glob("incoming/*")), "nothing is left on disk"

    down, up = [e for e in read_journal(gate.folders.server / GATE_JOURNAL) if e["event"] == "message"]
    assert [(e["site"], e["way"], e["kind"], e["round"]) for e in (down, up)] == [
        ("north", "down", "train", "3"), ("north", "up", "train", "3"),
    ]  # fmt: skip
    content = sum(map(len, letter.contents.values()))
    content += len(first[0])  # which was sent twice
    assert content < up["bytes"] < content + 1500 * (len(letter.contents) + 2), "a head for each object, and no more"
    assert down["bytes"] < 3000
    assert up["bytes_up"] > up["bytes"], "with what it asked"
    assert up["bytes_down"] > down["bytes"]


def test_superlink_is_asked_for_the_apps_of_a_sites_own_runs_by_their_hashes(gate: Fixture) -> None:
    """It writes what it is asked for to its log, as it comes."""
    hash_, line = "5e" * 32, "\x1b[31m\n2026 INFO all is well " + "A" * 1000
    run, app = GetRunRequest(run_id=1).SerializeToString(), GetFabRequest(run_id=1, hash_str=hash_).SerializeToString()
    assert [gate.post(target, body).status_code for target, body in ((GET_RUN, run), (GET_FAB, app))] == [403, 403]
    gate.down = pulled(Letter({}).question)
    gate.post(PULL_MESSAGE, b"")
    assert [gate.post(target, body).status_code for target, body in ((GET_RUN, run), (GET_FAB, app))] == [200, 200]
    assert [gate.post(GET_RUN, run, "south").status_code] == [403], "which has no message of it"
    for name in (line, hash_.upper(), hash_ + "\n", hash_[1:], ""):
        odd = GetFabRequest(run_id=1, hash_str=name).SerializeToString()
        assert gate.post(GET_FAB, odd).status_code == 403, "after which a SuperNode asks for its next message"
    assert gate.post(GET_RUN, GetRunRequest(run_id=2).SerializeToString()).status_code == 403
    assert gate.came == [PULL_MESSAGE, GET_RUN, GET_FAB]


def test_no_field_and_no_header_passes_that_a_site_need_not_say(gate: Fixture) -> None:
    unknown = b"\xfa\x3e\x05hello"  # field 1007
    letter = Letter({})
    gate.down = pulled(letter.question)
    asking = PullMessagesRequest(node=Node(node_id=7), message_ids=["another's"])
    part = PullObjectRequest(object_id=letter.question.metadata.message_id, run_id=99)
    with gate.client() as client:
        for target, request in ((PULL_MESSAGE, asking), (PULL_OBJECT, part)):
            headers = {**gate.headers(), "flwr-component-name": "odd"}
            assert client.post(target, content=request.SerializeToString() + unknown, headers=headers).is_success
    bodies = [seen.partition(b"\r\n\r\n")[2] for seen in gate.seen]
    part.run_id = 1  # the message's own
    assert bodies == [PullMessagesRequest(node=Node(node_id=7)).SerializeToString(), part.SerializeToString()]
    assert not any(b"flwr-component-name" in seen for seen in gate.seen)


def test_a_site_does_not_fill_superlinks_log(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    minute = 7
    monkeypatch.setattr(gate_module, "_LINES", 3)
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: 60.0 * minute, time=time.time))
    statuses = [gate.post(DEACTIVATE, b"").status_code for _ in range(5)]
    assert statuses == [200] * 3 + [503] * 2, "after which a SuperNode waits and tries again"
    assert gate.post(DEACTIVATE, b"", "south").status_code == 200, "others are served"
    assert gate.post(HEARTBEAT, b"", "south").status_code == 200
    minute += 1
    gate.status = 404
    statuses = [gate.post(HEARTBEAT, b"", "south").status_code for _ in range(6)]
    assert statuses == [404] * 4 + [503] * 2, "it logs each failure, too"
    assert gate.post(DEACTIVATE, b"").status_code == 404
    assert gate.came.count(HEARTBEAT) == 1 + 4


def test_nor_by_an_answer_that_superlink_refuses(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_LINES", 3)
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: 60.0, time=time.time))
    letter = Letter({"weights": np.arange(10.0)})
    gate.down = pulled(letter.question)
    gate.post(PULL_MESSAGE, b"")
    *first, last = letter.pushes(PushMessagesResponse.FromString(gate.post(PUSH_MESSAGE, letter.announcement).content))
    assert {gate.post(PUSH_OBJECT, push).status_code for push in first} == {200}
    gate.status = 404
    assert [gate.post(PUSH_OBJECT, last).status_code for _ in range(6)] == [404] * 4 + [503] * 2


def test_an_answer_that_superlink_did_not_take_may_be_pushed_again(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = Letter({"weights": np.arange(10.0)})
    gate.down = pulled(letter.question)
    gate.post(PULL_MESSAGE, b"")
    *first, last = letter.pushes(PushMessagesResponse.FromString(gate.post(PUSH_MESSAGE, letter.announcement).content))
    for push in first:
        gate.post(PUSH_OBJECT, push)
    honest = gate.answer
    no = PushObjectResponse(stored=False).SerializeToString()
    monkeypatch.setattr(gate, "answer", lambda target, body: no if target == PUSH_OBJECT else honest(target, body))
    assert not PushObjectResponse.FromString(gate.post(PUSH_OBJECT, last).content).stored
    monkeypatch.setattr(gate, "answer", honest)
    assert PushObjectResponse.FromString(gate.post(PUSH_OBJECT, last).content).stored
    events = [e["event"] for e in read_journal(gate.folders.server / GATE_JOURNAL)]
    assert events == ["open", "message"], "which passed once"


def test_where_no_answer_can_be_kept_that_is_refused_and_written_down(gate: Fixture) -> None:
    letter = Letter({"weights": np.arange(10.0)})
    gate.down = pulled(letter.question)
    gate.post(PULL_MESSAGE, b"")
    gate.down = PullMessagesResponse()
    place = gate.folders.server / "incoming"
    place.write_text("in its place")
    try:
        answer = gate.post(PUSH_MESSAGE, letter.announcement)
    finally:
        place.unlink()
    assert answer.status_code == 507
    assert "cannot keep an answer" in answer.text
    ((site, status),) = [(e["site"], e["status"]) for e in gate.refused]
    assert (site, status) == ("north", 507)
    assert len(PullMessagesResponse.FromString(gate.post(PULL_MESSAGE, b"").content).messages_list) == 1
    opened = PushMessagesResponse.FromString(gate.post(PUSH_MESSAGE, letter.announcement).content)
    *first, last = letter.pushes(opened)
    assert {gate.post(PUSH_OBJECT, push).status_code for push in first} == {200}
    for part in place.glob("north/*"):
        part.unlink()
    assert [gate.post(PUSH_OBJECT, last).status_code for _ in range(2)] == [507] * 2, "it is not tried without end"
    assert gate.came.count(PUSH_MESSAGE) == 1


def test_superlink_is_not_asked_more_often_than_a_supernode_does(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    minute = 7
    monkeypatch.setattr(gate_module, "_ASKED", {HEARTBEAT: 3, PULL_MESSAGE: 2, PULL_OBJECT: 1})
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: 60.0 * minute, time=time.time))
    letter = Letter({})
    gate.down = pulled(letter.question)
    parts = [PullObjectRequest(object_id=name).SerializeToString() for name in objects(letter.question_tree)]
    whole = PullObjectRequest(object_id=letter.question_tree.object_id).SerializeToString()
    for target, body, most in ((HEARTBEAT, b"", 3), (PULL_MESSAGE, b"", 2), (PULL_OBJECT, whole, 1)):
        statuses = [gate.post(target, body).status_code for _ in range(5)]
        assert statuses == [200] * most + [503] * (5 - most), target
        assert gate.came.count(target) == most
    assert {e["status"] for e in gate.refused} == {503}, "after which a SuperNode waits and tries again"
    assert gate.post(HEARTBEAT, b"", "south").status_code == 200, "others are served"
    assert [gate.post(PULL_OBJECT, part).status_code for part in parts if part != whole] == [200] * (len(parts) - 1)
    minute += 1
    assert gate.post(HEARTBEAT, b"").status_code == 200


def test_the_limits_are_far_above_what_flower_asks() -> None:
    from flwr.common import constant

    pause = constant.HEARTBEAT_DEFAULT_INTERVAL - constant.HEARTBEAT_CALL_TIMEOUT
    pause *= constant.HEARTBEAT_BASE_MULTIPLIER + min(constant.HEARTBEAT_RANDOM_RANGE)
    assert gate_module._ASKED[HEARTBEAT] > 10 * 60 / pause
    assert gate_module._ASKED[PULL_MESSAGE] > 10 * 60 / 3


def test_on_all_addresses_the_gate_is_reached_by_ipv4_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listening(Address("::", 0)) as both:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, both.getsockname()[1]), timeout=PATIENCE):
                accepted, peer = both.accept()
                accepted.close()
            assert network_of(peer[0]) == network_of(host), "with the limits of its own network"
    with listening(Address("::1", 0)) as one:
        assert one.getsockname()[0] == "::1"
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(FedgenError, match="the gate cannot listen"),
    ):
        listening(Address("127.0.0.1", taken.getsockname()[1]))


def test_who_does_not_speak_tls_or_trusts_another_authority_hears_nothing(gate: Fixture) -> None:
    with socket.create_connection(("127.0.0.1", gate.port), timeout=PATIENCE) as plain:
        plain.sendall(f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n\r\n".encode())
        found = b""
        with contextlib.suppress(ConnectionError):
            found = plain.recv(4096)
        assert b"HTTP" not in found
    with pytest.raises(ssl.SSLCertVerificationError), socket.create_connection(("127.0.0.1", gate.port)) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
    assert not gate.seen


def test_the_slow_and_the_many_are_cut_off_and_others_served(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_connections, "PER_NETWORK", 5)
    signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers().items())
    with monkeypatch.context() as impatient:
        impatient.setattr(gate_http, "_BODY", 1.0)
        sites = gate.connect()
        sites.sendall(f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}content-length: 9\r\n\r\nshort".encode())
        assert_cut_off(sites)
        impatient.setattr(gate_module, "_FIRST_HEAD", 1.0)
        slow = [gate.connect() for _ in range(5)]
        with contextlib.suppress(ConnectionError, ssl.SSLError):  # it may have been cut off already
            slow[0].sendall(b"POST ")
        for connection in slow:
            assert_cut_off(connection)
    with gate.client() as client:
        assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 200


def assert_cut_off(connection: ssl.SSLSocket) -> None:
    connection.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        assert connection.recv(100) == b"", "cut off without an answer"
    connection.close()


def test_a_handshake_that_is_not_finished_ends_with_a_reset(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SuperNode takes an orderly end within the handshake for an error of TLS, and tries again after a reset."""
    monkeypatch.setattr(gate_connections, "PER_NETWORK", 2)
    silent = [socket.create_connection(("127.0.0.1", gate.port), timeout=PATIENCE) for _ in range(3)]
    with pytest.raises(ConnectionResetError):
        silent[0].recv(100)  # a third one has come, from the same address
    with gate.client() as client:
        assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 200
        with pytest.raises(ConnectionResetError):
            silent[1].recv(100)
    monkeypatch.setattr(gate_module, "_HANDSHAKE", 0.5)
    silent.append(socket.create_connection(("127.0.0.1", gate.port), timeout=PATIENCE))
    with pytest.raises(ConnectionResetError):
        silent[3].recv(100)
    for connection in silent:
        connection.close()


def test_a_site_can_connect_among_strangers_and_has_its_own_limit(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_connections, "UNAUTHENTICATED", 4)
    strangers = [gate.connect() for _ in range(4)]
    with gate.client() as one, gate.client() as other:
        for client, site in ((one, "north"), (other, "south")):
            assert client.post(HEARTBEAT, content=b"", headers=gate.headers(site)).status_code == 200
        assert one.post(HEARTBEAT, content=b"", headers=gate.headers("south")).status_code == 400, "it is north's"
    assert_cut_off(strangers[0])  # the oldest had to go
    for connection in strangers:
        connection.close()
    assert [(e["site"], e["status"]) for e in gate.refused] == [("south", 400)]


def test_a_site_with_too_many_connections_loses_the_one_that_was_silent_longest(
    gate: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_connections, "PER_SITE", 2)

    def beat(connection: ssl.SSLSocket, site: str) -> bytes:
        signed = "".join(f"{name}: {value}\r\n" for name, value in gate.headers(site).items())
        connection.sendall(f"POST {HEARTBEAT} HTTP/1.1\r\nhost: a\r\n{signed}content-length: 0\r\n\r\n".encode())
        found = connection.recv(4096)
        while not found.endswith(b"yes"):  # the content, which may come after the head
            found += connection.recv(4096) or b"yes"
        return found[:12]

    other, one, two, three = (gate.connect() for _ in range(4))
    for connection, site in ((other, "south"), (one, "north"), (two, "north"), (one, "north"), (three, "north")):
        assert beat(connection, site) == b"HTTP/1.1 200"
    assert_cut_off(two)
    for connection, site in ((other, "south"), (one, "north"), (three, "north")):
        assert beat(connection, site) == b"HTTP/1.1 200"
        connection.close()
    assert not gate.refused


def test_a_journal_that_cannot_be_written_ends_nothing(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()

    def full(*_: object, reason: str = "", **__: object) -> None:
        if "the gate failed" in reason:
            failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    letter = Letter({"weights": np.arange(10.0)})
    gate.down = pulled(letter.question)
    monkeypatch.setattr(Journal, "write", full)
    with gate.client() as client:
        assert client.post("/").status_code == 403
    assert gate.post(HEARTBEAT, b"\xff").status_code == 400
    assert gate.post(PULL_MESSAGE, b"").status_code == 200
    opened = PushMessagesResponse.FromString(gate.post(PUSH_MESSAGE, letter.announcement).content)
    assert {gate.post(PUSH_OBJECT, push).status_code for push in letter.pushes(opened)} == {200}
    with monkeypatch.context() as broken:
        broken.setattr(gate_module.HttpConnection, "next_event", lambda *_: 1 / 0)
        with pytest.raises(httpx.TransportError):
            gate.post(HEARTBEAT, b"")
    assert failed.wait(PATIENCE)
    assert gate.post(HEARTBEAT, b"").status_code == 200


def test_a_head_without_end_is_refused(gate: Fixture) -> None:
    assert gate.raw(f"POST {HEARTBEAT} HTTP/1.1\r\nx: {'a' * 40_000}").startswith(b"HTTP/1.1 431 ")


def test_very_many_refusals_do_not_fill_the_disk(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    minute = 7
    monkeypatch.setattr(gate_module, "_LINES", 3)
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: 60.0 * minute))
    with gate.client() as client:
        for _ in range(20):
            assert client.post("/").status_code == 403
        for _ in range(20):
            assert client.post(HEARTBEAT, content=b"\xff", headers=gate.headers()).status_code == 400
        assert client.post(HEARTBEAT, content=bytes(2_000_000), headers=gate.headers()).status_code == 413
    for of_a_site in (False, True):
        lines = [e for e in gate.refused if ("site" in e) == of_a_site and e["status"] != 413]
        assert len(lines) == 3
    assert gate.refused[-1]["status"] == 413, "what the server must know is not lost among them"
    minute += 1
    with gate.client() as client:
        assert client.post("/").status_code == 403
    assert len(gate.refused) == 3 + 3 + 1 + 1, "in the next minute there is room again"


def test_superlink_away_is_said_so_that_sites_try_again(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object, **__: object) -> None:
        raise httpx.ConnectError("nobody listens")

    monkeypatch.setattr(httpx.AsyncClient, "post", away)
    with gate.client() as client:
        assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 502


def test_a_failure_of_superlink_is_said_so_that_sites_try_again(gate: Fixture) -> None:
    """A SuperNode ends when what it asks for all the time is answered with another failure than these."""
    gate.status = 500
    for target, status in ((HEARTBEAT, 503), (PULL_MESSAGE, 503), (DEACTIVATE, 500)):
        assert gate.post(target, b"").status_code == status
    assert {e["reason"] for e in gate.refused} == {
        f"SuperLink answered {target} with 500" for target in (HEARTBEAT, PULL_MESSAGE)
    }
    gate.status = 404
    assert gate.post(HEARTBEAT, b"").status_code == 404


def test_an_address() -> None:
    assert parse_address("[::1]:80") == Address("::1", 80)
    for wrong in ("8000", ":8000", "host:", "host:0", "host:99999", "host:x"):
        with pytest.raises(Exception, match="is not an address"):
            parse_address(wrong)


def test_keys_are_taken_up_as_they_come_and_go(gate: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "_KEYS_EVERY", 0.0)
    keys = {name: gate.folders.public_key(name) for name in ("north", "south", "stranger")}
    saved = {name: keys[name].read_bytes() for name in ("north", "south")}

    def beat(site: str) -> int:
        return gate.post(HEARTBEAT, b"", site).status_code

    assert (beat("north"), beat("stranger")) == (200, 412)
    try:
        with gate.client() as client:
            assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 200
            keys["north"].unlink()
            keys["stranger"].write_bytes(gate.folders.site_key("stranger").with_suffix(".pub").read_bytes())
            # also on a connection that was the site's, and while another key cannot be read
            keys["south"].write_text("nonsense")
            assert client.post(HEARTBEAT, content=b"", headers=gate.headers()).status_code == 412
        assert beat("stranger") == 412, "the folder could not be read as a whole"
        keys["south"].write_bytes(saved["north"])  # as a key that was replaced
        assert [beat("stranger"), beat("south"), beat("north")] == [200, 412, 200]
    finally:
        keys["stranger"].unlink(missing_ok=True)
        for name, content in saved.items():
            keys[name].write_bytes(content)
    events = read_journal(gate.folders.server / GATE_JOURNAL)
    assert "south.pub cannot be read" in next(e["reason"] for e in events if e["event"] == "unreadable")
    changes = [(e["added"], e["removed"], e["replaced"]) for e in events if e["event"] == "keys"]
    assert changes == [([], ["north"], []), (["stranger"], [], ["south"])]


def test_the_date_is_said_with_every_answer(gate: Fixture) -> None:
    before = datetime.datetime.now(datetime.UTC)
    for target, status in ((HEARTBEAT, 200), ("/", 403)):
        answer = gate.post(target, b"")
        assert answer.status_code == status
        assert abs((parsedate_to_datetime(answer.headers["date"]) - before).total_seconds()) < PATIENCE
