"""The server's side fails, and strangers knock: a finished round is never lost, and nobody else gets in."""

import os
import signal
import ssl
import subprocess
import tomllib
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest
from real import PATIENCE, running, server_events, training, until, write

from fedgen.demo.compare import differences
from fedgen.federate.deploy.folders import Folders, new_folder, write_keys, write_server, write_site
from fedgen.federate.deploy.keys import make_site_keys
from fedgen.federate.deploy.processes import Processes
from fedgen.federate.deploy.scripts import Endpoints, write_scripts
from fedgen.federate.journal import GATE_JOURNAL, read_journal
from fedgen.federate.schema import ServerSettings, SiteSettings, read_settings
from helpers import small_data, small_setup


@pytest.mark.slow
@pytest.mark.waits
@pytest.mark.optimised
def test_resume_after_kills_of_server_and_superlink_with_strangers_at_the_door(tmp_path: Path) -> None:
    setup = small_setup("fedgen", users=2, active=2, share="predictor", rounds=4, eval_every=4)
    folders, port = write(
        tmp_path / "federation", setup, small_data(),
        min_sites=2, round_timeout=600.0, join_timeout=1.0, wait_timeout=5.0,
    )  # fmt: skip
    for number in range(2):
        own = {"model": "own:build", "model_options": {"hidden": 12, "latent": 6}}
        write_site(folders, SiteSettings(name=f"site-{number}", number=number, data="data.npz", **own))
        (folders.site(f"site-{number}") / "own.py").write_text(EXTRACTOR)
    with running(folders, port) as processes, running(strangers(tmp_path, folders, port), port) as others:
        processes.start_superlink()
        processes.register()
        assert_only_sites_get_through(processes, port)
        for name in ("plaintext", "unregistered", "foreign"):
            others.start_site(name)

        # One of two sites: the server says so, waits, and ends with a checkpoint.
        processes.start_site("site-0")
        processes.submit("run")
        ended = until(lambda: server_events(processes), event="ended")
        assert "of the 2 sites that are needed" in ended["reason"]
        assert "can be resumed" in ended["reason"]
        assert until(lambda: server_events(processes), event="waiting")["needed"] == 2
        assert (folders.server / "runs/run/checkpoint.safetensors").exists()

        # Both are there: the run goes on. The server app is killed in round 1 and SuperLink in round 2.
        settings = read_settings(folders.server / "server.toml", ServerSettings)
        write_server(folders, settings.model_copy(update={"join_timeout": 600.0, "wait_timeout": 600.0}))
        processes.start_site("site-1")
        processes.submit("run")
        # Both sites train by then: a site that is just fetching its message would be busy with it for another minute.
        in_round(processes, 1)
        os.kill([e for e in server_events(processes) if e["event"] == "resumed"][-1]["pid"], signal.SIGKILL)
        release(folders)
        processes.submit("run")
        until(lambda: server_events(processes), event="resumed", round=1)
        in_round(processes, 2)
        processes.kill("superlink")
        release(folders)
        processes.start_superlink()
        processes.submit("run")
        until(lambda: server_events(processes), event="finished", round=4)
        events = server_events(processes)
        assert_refused(others)

    assert [e["round"] for e in events if e["event"] == "done"] == [0, 1, 2, 3], "no round was lost or done twice"
    assert {e["site"] for e in events if e["event"] == "joined"} == {"site-0", "site-1"}
    found = differences(setup, folders.server / "runs/run")
    assert len(found) == 4
    assert max(row.difference for row in found) <= 1e-5, "as if nothing had happened"
    assert_no_secrets(folders)


# The federation's own model, which waits while a file says so.
EXTRACTOR = """
import time
from pathlib import Path

from fedgen.models import MODELS


def build(sample, classes, **options):
    model = MODELS["mlp"](sample, classes, **options)

    def extract(params, statistics, x, train):
        # Shapes are checked with two samples before anything is trained.
        while train and len(x) > 2 and Path(__file__).with_name("wait").exists():
            time.sleep(0.1)
        return model.extract(params, statistics, x, train)

    return model._replace(extract=extract)
"""


def in_round(processes: Processes, number: int) -> None:
    """Wait until both sites train in this round, and hold them there."""
    until(lambda: server_events(processes), event="done", round=number - 1)
    for name in ("site-0", "site-1"):
        (processes.folders.site(name) / "wait").touch()
    for name in ("site-0", "site-1"):
        training(processes, name, number)


def release(folders: Folders) -> None:
    for name in ("site-0", "site-1"):
        (folders.site(name) / "wait").unlink()


def strangers(tmp_path: Path, folders: Folders, port: int) -> Folders:
    """Three that should not get in: without TLS, with a key that nobody registered, trusting another authority."""
    theirs = new_folder(tmp_path / "strangers")
    names = ["plaintext", "unregistered", "foreign"]
    write_keys(theirs, names, ["127.0.0.1"])
    address = f"127.0.0.1:{port}"
    write_scripts(theirs, ["plaintext"], Endpoints("", port, address))
    write_scripts(theirs, ["unregistered", "foreign"], Endpoints(address, port, address))
    for number, name in enumerate(names):
        write_site(theirs, SiteSettings(name=name, number=number, data="data.npz"))
        script = theirs.site(name) / "start.sh"
        impatient = script.read_text().replace('"$@"', "--max-retries 1").replace("FEDGEN_TRIES:-80", "FEDGEN_TRIES:-1")
        script.write_text(impatient)
    (theirs.site("unregistered") / "ca.crt").write_bytes((folders.authority / "ca.crt").read_bytes())
    return theirs


def assert_only_sites_get_through(processes: Processes, port: int) -> None:
    """With nothing but ca.crt: what SuperLink itself lets anyone do, and the gate does not."""
    server = processes.folders.server
    behind = tomllib.loads((server / "flower/config.toml").read_text())["superlink"]["federation"]["address"]
    trusted = ssl.create_default_context(cafile=server / "ca.crt")
    _, public = make_site_keys()
    key = load_ssh_public_key(public).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    requests = {
        "list-nodes": ListNodesRequest(),
        "register-node": RegisterNodeRequest(public_key=key, name="intruder"),
        "list-runs": ListRunsRequest(),
    }
    with httpx.Client(verify=trusted, trust_env=False, timeout=PATIENCE) as client:
        for name, request in requests.items():
            for address, status in ((f"127.0.0.1:{port}", 403), (behind, 200)):
                answer = client.post(
                    f"https://{address}/v1/control/{name}",
                    content=request.SerializeToString(),
                    headers={"content-type": "application/protobuf", "accept": "application/protobuf"},
                )
                assert answer.status_code == status, f"{name} at {address}: {answer.text}"
        nodes = client.post(
            f"https://{behind}/v1/control/list-nodes",
            content=b"",
            headers={"content-type": "application/protobuf", "accept": "application/protobuf"},
        )
    assert b"intruder" in nodes.content, "SuperLink would have taken it"
    refused = [e["reason"] for e in read_journal(server / GATE_JOURNAL) if e["event"] == "refused"]
    assert refused == [f"POST /v1/control/{name}" for name in requests]


def assert_refused(others: Processes) -> None:
    said = {}
    for name in ("plaintext", "unregistered", "foreign"):
        process = others.running[name]
        try:
            assert process.wait(timeout=PATIENCE) != 0, name
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} was not refused: {others.log(name).read_text()[-500:]}") from None
        said[name] = others.log(name).read_text()
    assert "CERTIFICATE_VERIFY_FAILED" in said["foreign"]
    assert "refused by the gate: the key is not registered" in said["unregistered"].replace("\n", " ")
    assert "Failed to initialize the connection" in said["plaintext"]


def assert_no_secrets(folders: Folders) -> None:
    """Private keys are their owner's only, and in no log, journal, app folder, run folder or bundle."""
    keys = [folders.authority / "ca.key", folders.server / "server.key", *folders.root.glob("sites/*/site.key")]
    assert len(keys) == 4
    for key in keys:
        assert key.stat().st_mode & 0o777 == 0o600, key
        lines = [line for line in key.read_bytes().splitlines() if line and not line.startswith(b"-")]
        public = (folders.app, folders.root / "logs", folders.server / "runs", folders.server / "flower")
        files = [file for folder in public for file in folder.rglob("*") if file.is_file()]
        journals = sorted(folders.root.rglob("*.jsonl"))
        assert {"server/gate.jsonl", "server/log.jsonl", "sites/site-1/log.jsonl"} <= {
            str(path.relative_to(folders.root)) for path in journals
        }
        for file in [*files, *journals]:
            assert not any(line in file.read_bytes() for line in lines), f"{key.name} is in {file}"
