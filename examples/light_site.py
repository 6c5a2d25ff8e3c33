"""Sites that answer without training and fail now and then, for the federations of soak.py and kills.py.

Each has its own key and speaks Flower's protocol through the gate, as a SuperNode does. It adds a small number, which
depends on site and round, to all that it got.
"""

import argparse
import json
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

POLL, BEAT = 3.0, 20.0  # seconds between a site's requests for messages (as a SuperNode's), and between heartbeats
_MAKING = threading.Lock()  # Flower has one identity for a process, and here each site is a thread


def step(site: int, number: int) -> float:
    """What a site adds to the model in a round: no site so much that its update would be shortened (`max_update`)."""
    return float(np.float32(1e-4 * (1 + site / 1000) / (number + 1)))


class LightSite(threading.Thread):
    """One site, which answers without training and fails now and then."""

    def __init__(self, folder: Path, address: str, number: int, *, failing: float, silence: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.number, self.failing, self.silence = number, failing, silence
        self.random = random.Random(f"{seed} {number}")
        self.did: Counter[str] = Counter()
        self.returns: list[float] = []  # seconds from the first attempt to come back until it was taken back
        self.finished: list[tuple[int, float]] = []  # rounds whose answer was sent whole, and when
        self.stopping = threading.Event()
        key: Any = load_ssh_private_key((folder / f"sites/site-{number}/site.key").read_bytes(), None)
        self._signer = NodeAuthHttpInterceptor(key, key.public_key())
        self._public = public_key_to_bytes(key.public_key())
        self._address, self._authority = address, str(folder / "authority/ca.crt")
        self._seen: set[str] = set()  # messages whose fate is decided: one that is offered again is answered

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with self._client() as client:
                    self._work(client, self._activate(client))
            except (httpx.HTTPError, ConnectionResetError):
                self.stopping.wait(1.0)  # and back again

    def _client(self) -> FleetHttpClient:
        return FleetHttpClient.from_server_address(self._address, False, self._authority, interceptors=[self._signer])

    def _activate(self, client: FleetHttpClient) -> Node:
        began = time.monotonic()
        while True:
            try:
                request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=30)
                node = Node(node_id=client.ActivateNode(request).node_id)
            except httpx.HTTPStatusError:
                self.did["refused"] += 1
                if self.stopping.wait(1.0):
                    raise
                continue
            if self.did["broke off"]:
                self.returns.append(time.monotonic() - began)
            return node

    def _work(self, client: FleetHttpClient, node: Node) -> None:
        beat = time.monotonic()
        while not self.stopping.is_set():
            if time.monotonic() - beat > BEAT:
                beat = time.monotonic()
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=30))
            pulled = client.PullMessages(PullMessagesRequest(node=node))
            if not pulled.messages_list:
                self.stopping.wait(POLL * self.random.uniform(0.9, 1.1))
                continue
            question, tree = message_from_proto(pulled.messages_list[0]), pulled.message_object_trees[0]
            fate = self._fate(question.metadata.message_id)
            if fate == "silent":
                self.stopping.wait(self.silence)
                continue
            if fate == "broke off":
                raise ConnectionResetError
            run = question.metadata.run_id
            objects = [part.object_id for part in iterate_object_tree(tree)]
            try:
                contents = {name: self._object(client, node, run, name) for name in objects}
            except LookupError:
                self.did["gone"] += 1  # the server has given the message up, or got the answer to it meanwhile
                continue
            name = question.metadata.message_id
            client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name))
            number = self._reply(client, node, name, contents, failed=fate == "error")
            if number is not None:
                self.finished.append((number, time.time()))
            self.did[f"{fate} ({question.metadata.message_type})"] += 1

    def _object(self, client: FleetHttpClient, node: Node, run: int, name: str) -> bytes:
        """An object of a message; Flower announces the message first, so that it may take a moment."""
        while True:
            pulled = client.PullObject(PullObjectRequest(node=node, run_id=run, object_id=name))
            if not pulled.object_found:
                raise LookupError(name)
            if pulled.object_available:
                return pulled.object_content
            self.stopping.wait(1.0)

    def _fate(self, message: str) -> str:
        draw = self.random.random()
        if message in self._seen or draw >= self.failing:
            return "answered"
        self._seen = {message}
        fate = "silent" if draw < self.failing / 300 else "broke off" if draw < self.failing / 2 else "error"
        self.did[fate] += fate != "error"
        return fate

    def _reply(
        self, client: FleetHttpClient, node: Node, name: str, contents: dict[str, bytes], *, failed: bool
    ) -> int | None:
        """Answer a message; returns the round whose training this finished."""
        question: Any = inflate_object_from_contents(name, contents)
        question.metadata.__dict__["_message_id"] = name
        with _MAKING:
            TaskIdentity.task_id, TaskIdentity.run_id = 1, question.metadata.run_id
            TaskIdentity.node_id = node.node_id
            what = Error(1, "the site failed, as it was set to") if failed else self._answer(question)
            reply = Message(what, reply_to=question)  # type: ignore[arg-type]
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = {part: one.deflate() for part, one in get_all_nested_objects(reply).items()}
            tree, proto = get_object_tree(reply), message_to_proto(remove_content_from_message(reply))
        opened = client.PushMessages(PushMessagesRequest(node=node, messages_list=[proto], message_object_trees=[tree]))
        for part in opened.objects_to_push:
            client.PushObject(
                PushObjectRequest(
                    node=node, run_id=question.metadata.run_id, object_id=part, object_content=parts[part],
                    session_id=opened.session_id,
                )
            )  # fmt: skip
        trained = not failed and question.metadata.message_type == "train"
        return int(question.content["about"]["round"]) if trained else None

    def _answer(self, question: Message) -> RecordDict:
        about: Any = question.content["about"]
        if question.metadata.message_type != "train":
            return RecordDict({"about": about, "metrics": MetricRecord({})})
        add = np.float32(step(self.number, about["round"]))
        got: Any = question.content["broadcast"]
        upload = {key: Array(array.numpy() + add) for key, array in got.items()}
        return RecordDict(
            {"upload": ArrayRecord(upload), "about": ConfigRecord(dict(about)), "metrics": MetricRecord({"loss": 1.0})}
        )


def report(sites: list[LightSite]) -> dict[str, Any]:
    """What these sites did."""
    return {
        "did": dict(sum((site.did for site in sites), Counter())),
        "returns": [round(seconds, 3) for site in sites for seconds in site.returns],
        "finished": [[site.number, *one] for site in sites for one in list(site.finished)],
    }


def write(path: Path | None, sites: list[LightSite]) -> None:
    """Write the report, whole."""
    if path:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(report(sites)))
        new.replace(path)


def main() -> None:
    """Be these sites until standard input is closed, which also happens when the process that started this dies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the federation's")
    parser.add_argument("--address", required=True, help="where its server is")
    parser.add_argument("--sites", type=int, nargs="+", required=True, help="the numbers of the sites")
    parser.add_argument("--failing", type=float, default=0.0, help="the share of messages that a site fails at")
    parser.add_argument("--silence", type=float, default=30.0, help="seconds that a silent site is silent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", type=Path, help="where to write what they did, now and then and at the end")
    options = parser.parse_args()
    how = {"failing": options.failing, "silence": options.silence, "seed": options.seed}
    sites = [LightSite(options.folder, options.address, number, **how) for number in options.sites]
    for site in sites:
        site.start()
    closed = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), closed.set()), daemon=True).start()
    while not closed.wait(5.0):
        write(options.report, sites)
    for site in sites:
        site.stopping.set()
    deadline = time.monotonic() + 10
    for site in sites:
        site.join(max(deadline - time.monotonic(), 0))
    write(options.report, sites)
    os._exit(0)  # a thread may still wait for an answer


if __name__ == "__main__":
    main()
