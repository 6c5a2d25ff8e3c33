"""A long federation of many light sites on the loopback interface: some fail in every round, and some are killed.

    python examples/soak.py --sites 100 --rounds 200 --failing 0.3

A light site has its own key and speaks Flower's protocol through the gate as a SuperNode does, but answers without
training: it adds a small number, which depends on site and round, to all that it got. So the model that must come out
can be computed from the server's log, and it is: no finished round may be lost or counted twice.

A site that fails does one of three things: its connections break before it has answered, and it returns a second later
(which must succeed within seconds); it answers with an error; or, rarely, it stays silent until the round is over.
Printed are the seconds of rounds, the seconds that returning took, and memory and disk of each process over time.
"""

import argparse
import contextlib
import json
import random
import tempfile
import threading
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import RegisterNodeRequest
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

import fedgen
from fedgen.config import resolve
from fedgen.core.trees import named
from fedgen.demo.demo import write_federation
from fedgen.federate.deploy.folders import Folders, new_folder
from fedgen.federate.deploy.keys import public_keys
from fedgen.federate.deploy.process_tree import process_tree
from fedgen.federate.deploy.processes import Processes, processes_of
from fedgen.federate.journal import read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings
from fedgen.runs.checkpoint import load_tree
from fedgen.simulator.setup import Setup, prepare

POLL, BEAT = 3.0, 20.0  # seconds between a site's requests for messages (as a SuperNode's), and between heartbeats
_MAKING = threading.Lock()  # Flower has one identity for a process, and here each site is a thread


def step(site: int, number: int) -> float:
    """What a site adds to the model in a round: no site so much that its update would be shortened (`max_update`)."""
    return float(np.float32(1e-4 * (1 + site / 1000) / (number + 1)))


class LightSite(threading.Thread):
    """One site, which answers without training and fails now and then."""

    def __init__(self, folders: Folders, address: str, number: int, failing: float, silence: float) -> None:
        super().__init__(daemon=True)
        self.number, self.failing, self.silence = number, failing, silence
        self.random = random.Random(number)
        self.did: Counter[str] = Counter()
        self.returns: list[float] = []  # seconds from the first attempt to come back until it was taken back
        self.stopping = threading.Event()
        key: Any = load_ssh_private_key(folders.site_key(f"site-{number}").read_bytes(), None)
        self._signer = NodeAuthHttpInterceptor(key, key.public_key())
        self._public = public_key_to_bytes(key.public_key())
        self._address, self._authority = address, str(folders.authority / "ca.crt")
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
            self._reply(client, node, name, contents, failed=fate == "error")
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
    ) -> None:
        question: Any = inflate_object_from_contents(name, contents)
        question.metadata.__dict__["_message_id"] = name
        with _MAKING:
            TaskIdentity.task_id, TaskIdentity.run_id = 1, question.metadata.run_id
            TaskIdentity.node_id = node.node_id
            what = Error(1, "the site failed, as it was told") if failed else self._answer(question)
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


def setup_of(sites: int, rounds: int) -> Setup:
    """Federated averaging of a predictor with two arrays."""
    random_ = np.random.default_rng(0)
    x = random_.integers(0, 255, (max(20 * sites, 200), 4, 4, 1), np.uint8)
    y = np.arange(len(x)) % 4
    data = fedgen.from_arrays(x, y, x[:40], y[:40], name="noise")
    settings = {
        "dataset": "noise", "algorithms": ["fedavg"], "share": "predictor", "model": "mlp", "users": sites,
        "active": sites, "rounds": rounds, "local_steps": 1, "batch_size": 4, "eval_every": rounds, "alpha": 100.0,
        "model.hidden": 8, "model.latent": 4, "partition.min_samples": 1,
    }  # fmt: skip
    return prepare(resolve(settings, own={"dataset"}), data)


def register(folders: Folders) -> None:
    """Register all keys in one process; register.sh starts one for each."""
    connection = tomllib.loads((folders.server / "flower/config.toml").read_text())["superlink"]["federation"]
    head = {"content-type": "application/protobuf", "accept": "application/protobuf"}
    with httpx.Client(verify=str(folders.authority / "ca.crt"), trust_env=False, timeout=60) as client:
        for name, key in public_keys(folders.server / "keys").items():
            request = RegisterNodeRequest(public_key=key, name=name).SerializeToString()
            url = f"https://{connection['address']}/v1/control/register-node"
            client.post(url, content=request, headers=head).raise_for_status()


def sizes(processes: Processes, folders: Folders) -> dict[str, float]:
    """Memory (resident) and disk in MB."""
    found: Counter[str] = Counter()
    signs = {"gate": "federate gate", "server app": "flwr-serverapp", "SuperLink": "gate.superlink"}
    for process in process_tree([processes.running["superlink"].pid]):
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            kind = next((kind for kind, sign in signs.items() if sign in line), "others")
            found[kind] += process.memory_info().rss / 1e6
            found[f"{kind}, seconds of CPU"] += sum(process.cpu_times()[:2])
    for file in ("superlink.sqlite", "superlink.sqlite-wal", "gate.jsonl", "log.jsonl", "refusals.sqlite"):
        path = folders.server / file
        found[file] = path.stat().st_size / 1e6 if path.exists() else 0.0
    return {key: round(value, 2) for key, value in found.items()}


def expected(done: list[dict[str, Any]], start: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The model after the rounds that the server's log says are done, computed by hand."""
    assert [e["round"] for e in done] == list(range(len(done))), "a round was lost, or done twice"
    moved = sum(float(np.mean([step(int(name[5:]), e["round"]) for name in e["sites"]])) for e in done)
    return {name: array + moved for name, array in start.items()}


def soak(folder: Path, sites: int, rounds: int, failing: float, timeout: float, minutes: float) -> dict[str, Any]:
    """Run it and return what was measured."""
    setup, folders = setup_of(sites, rounds), new_folder(folder)
    settings = ServerSettings(
        sites=tuple(f"site-{n}" for n in range(sites)), min_sites=max(1, sites // 3), round_timeout=timeout,
        join_timeout=600.0, strikes=10**6, rest=1,
    )  # fmt: skip
    port = write_federation(folders, setup, setup.data, settings, tls=True)  # type: ignore[arg-type]
    light = [LightSite(folders, f"127.0.0.1:{port}", n, failing, timeout) for n in range(sites)]
    samples: list[dict[str, float]] = []
    log, deadline = folders.server / "log.jsonl", time.monotonic() + 60 * minutes
    with processes_of(folders, port) as processes:
        processes.start_superlink()
        register(folders)
        for site in light:
            site.start()
        processes.submit("run")
        ended = False
        while not ended and time.monotonic() < deadline:
            time.sleep(1.0)
            events = read_journal(log)
            number = sum(e["event"] == "done" for e in events)
            if not samples or number > samples[-1]["rounds"]:
                samples.append({"rounds": number, **sizes(processes, folders)})
            ended = bool(events) and events[-1]["event"] in ("finished", "ended")
        for site in light:
            site.stopping.set()
        for site in light:
            site.join(30)
    events = read_journal(log)
    done = [e for e in events if e["event"] == "done"]
    did = sum((site.did for site in light), Counter())
    returns = sorted(seconds for site in light for seconds in site.returns)
    found = {
        "sites": sites, "rounds done": len(done), "of": rounds, "failing": failing,
        "seconds of a round (median)": round(float(np.median([e["seconds"] for e in done])), 1) if done else None,
        "updates": sum(len(e["sites"]) for e in done), "what sites did": dict(did),
        "returns": len(returns), "slowest return": round(returns[-1], 2) if returns else None,
        "sizes": [*samples[:: max(1, len(samples) // 8)], *samples[-1:]],
    }  # fmt: skip
    if done:
        found["largest error"] = largest_error(setup, folders, done)
    return found


def largest_error(setup: Setup, folders: Folders, done: list[dict[str, Any]]) -> float:
    """How far the model after these rounds is from what must come out."""
    plan = Plan(setup.config, setup.task)
    algorithm = plan.configure(plan.hyper)[0]
    start = named(algorithm.broadcast(plan.server_init(), np.int32(0)))
    final = load_tree(folders.server / "runs/run/rounds" / f"{len(done)}.safetensors", plan.forms.server)
    got = named(algorithm.broadcast(final, np.int32(0)))
    wanted = expected(done, {name: np.asarray(array, np.float64) for name, array in start.items()})
    return max(float(np.abs(np.asarray(got[name]) - wanted[name]).max()) for name in wanted)


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--failing", type=float, default=0.3)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds of a round")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which it is stopped")
    parser.add_argument("--folder", type=Path, help="a new folder, which is kept; default: a temporary one")
    parser.add_argument("--site", type=int, help="be only this one site of the federation in FOLDER (kills.py does it)")
    parser.add_argument("--address", help="where that federation's server is")
    options = parser.parse_args()
    if options.site is not None:
        LightSite(Folders(options.folder), options.address, options.site, 0.0, 0.0).run()
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "federation"
        found = soak(folder, options.sites, options.rounds, options.failing, options.timeout, options.minutes)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
