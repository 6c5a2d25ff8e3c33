"""A SuperNode whose main thread has ended is a process that has ended, so that start.sh can start it anew."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, RegisterNodeFleetResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from fedgen.federate.deploy.folders import Folders
from fedgen.federate.deploy.processes import free_port
from fedgen.federate.deploy.scripts import PORT_VARIABLE, Endpoints, write_scripts
from fedgen.federate.gate.rules import HEARTBEAT, PULL_MESSAGE

# What Flower does: its main thread ends, one way or another, while another thread goes on.
_CALL = """
import sys, threading
from fedgen.federate.site.supernode import run_and_exit

def command():
    threading.Thread(target=threading.Event().wait).start()
    print("said", end="")
    {end}

run_and_exit(command)
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("pass", 1, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no such key')", 1, "no such key"),
        ("raise RuntimeError('500 Internal Server Error')", 1, "RuntimeError: 500 Internal Server Error"),
        ("raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_the_end_of_the_main_thread_ends_the_process(end: str, code: int, said: str) -> None:
    command = [sys.executable, "-c", _CALL.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stdout) == (code, "said")
    assert said in done.stderr


def test_a_supernode_starts_without_jax() -> None:
    """It runs all the time beside the processes that train, and would hold memory for nothing."""
    code = "import sys, fedgen.federate.site.supernode; sys.exit('jax' in sys.modules or 'optax' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], check=False, timeout=600).returncode == 0


class _Failing(BaseHTTPRequestHandler):
    """A SuperLink that takes a site in, and fails, as the server's `status` says, when the site asks for messages."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        response = _RESPONSES.get(self.path)
        content = b"" if response is None else response.SerializeToString()
        self.send_response(self.server.status if response is None else 200)  # type: ignore[attr-defined]
        self.send_header("content-type", PROTOBUF_MEDIA_TYPE)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.server.asked.append(self.path)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass


_RESPONSES: dict[str, Any] = {
    "/v1/fleet/register-node": RegisterNodeFleetResponse(node_id=1),
    "/v1/fleet/activate-node": ActivateNodeResponse(node_id=1),
    HEARTBEAT: SendNodeHeartbeatResponse(success=True),
}


@pytest.mark.parametrize(("status", "code", "said"), [(500, 1, "500 Internal Server Error"), (401, 0, "")])
def test_start_sh_starts_flowers_supernode_anew_after_an_error(
    status: int, code: int, said: str, tmp_path: Path
) -> None:
    """Flower's own command would stay for ever after one of 500, and interrupts itself after one of 401."""
    folders = Folders(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Failing) as server:
        server.asked, server.status = [], status  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_scripts(folders, ["north"], Endpoints("", 0, f"127.0.0.1:{server.server_port}"))
        more = {"FEDGEN_TRIES": "2", "FEDGEN_PAUSE": "0", PORT_VARIABLE: str(free_port())}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["/bin/sh", folders.site("north") / "start.sh"], env={**os.environ, "PATH": path, **more},
            capture_output=True, text=True, check=False, timeout=1200,
        )  # fmt: skip
        server.shutdown()
        assert server.asked.count(PULL_MESSAGE) == 2, done.stderr  # type: ignore[attr-defined]
    assert done.returncode == 1
    assert said in done.stderr
    assert f"SuperNode ended with code {code}; trying again" in done.stdout
    assert "not connected after 2 tries" in done.stdout
