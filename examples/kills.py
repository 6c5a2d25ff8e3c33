"""Processes of a federation are killed at random, and the model that comes out is the undisturbed one, to the last bit.

    python examples/kills.py --kills 500

Sites are those of soak.py, each its own process. A kill (SIGKILL) hits a site, the server app, SuperLink or the
gate, and what was killed is started again, as systemd or an operator would. All sites are needed in each round, so that
the undisturbed model is known: it is computed here, without any process. The run goes on until all kills are done.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from soak import register, setup_of, step

from fedgen.core.contract import Round
from fedgen.core.streams import stream
from fedgen.core.trees import named, stack
from fedgen.demo.demo import write_federation
from fedgen.errors import FedgenError
from fedgen.federate.deploy.folders import Folders, new_folder
from fedgen.federate.deploy.process_tree import is_running, kill, process_tree
from fedgen.federate.deploy.processes import Processes, processes_of
from fedgen.federate.journal import read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings
from fedgen.runs.checkpoint import load_tree
from fedgen.runs.cohort import draw_cohort
from fedgen.simulator.setup import Setup

KINDS = {"site": 0.7, "server app": 0.1, "SuperLink": 0.1, "gate": 0.1}
PATIENCE = 300.0  # seconds for anything that must happen


def undisturbed(setup: Setup, rounds: int) -> Any:
    """The server's state after some rounds in which every site answered, without any process."""
    plan = Plan(setup.config, setup.task)
    algorithm, form = plan.configure(plan.hyper)[0], plan.forms.upload
    none: Any = None

    @jax.jit
    def update(hyper: Any, state: Any, uploads: Any, number: Any, sites: Any) -> Any:
        context = Round(number, sites, stream(plan.key, "server", number), none)
        with jax.default_matmul_precision("highest"):
            return plan.configure(hyper)[0].server_update(state, uploads, context)

    state = plan.server_init()
    for number in range(rounds):
        sent = named(jax.device_get(algorithm.broadcast(state, jnp.int32(number))))
        order = draw_cohort(plan.key, jnp.int32(number), setup.config.users, setup.config.users).tolist()
        uploads = []
        for site in order:
            arrays = [np.asarray(sent[name]) + np.float32(step(site, number)) for name in named(form)]
            uploads.append(jax.tree.unflatten(jax.tree.structure(form), arrays))
        state, _ = jax.device_get(update(plan.hyper, state, stack(uploads), np.int32(number), np.array(order)))
    return state


class Killer:
    """The processes of a federation, killed and started again."""

    def __init__(self, folders: Folders, processes: Processes, port: int, sites: int, seed: int) -> None:
        self.folders, self.processes, self.port = folders, processes, port
        self.random, self.killed = random.Random(seed), Counter[str]()
        self.sites = {number: self._start_site(number) for number in range(sites)}

    def _start_site(self, number: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, str(Path(__file__).with_name("soak.py")), "--site", str(number)]
        with (self.folders.root / "logs" / f"site-{number}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, "--folder", str(self.folders.root), "--address", f"127.0.0.1:{self.port}"],
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill_one(self) -> str:
        """Kill one process of a random kind, and start again what that ended."""
        (kind,) = self.random.choices(list(KINDS), list(KINDS.values()))
        if kind == "site":
            number = self.random.randrange(len(self.sites))
            self.sites[number].kill()
            self.sites[number].wait()
            self.sites[number] = self._start_site(number)
        else:
            found = self._server_process(kind)
            if found is None:
                return ""  # it is just being started
            tree = process_tree([self.processes.running["superlink"].pid])
            found.kill()
            if kind != "server app":  # SuperLink and gate end together
                self._wait_until_gone(tree)
                self.processes.running.pop("superlink").wait(PATIENCE)
                self.processes.start_superlink()
            else:
                self._wait_until_gone([found])
            self.processes.submit("run")
        self.killed[kind] += 1
        return kind

    def _server_process(self, kind: str) -> psutil.Process | None:
        signs = {"gate": "federate gate", "server app": "flwr-serverapp", "SuperLink": "gate.superlink"}
        for process in process_tree([self.processes.running["superlink"].pid]):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if next((name for name, sign in signs.items() if sign in line), "") == kind:
                return process
        return None

    def _wait_until_gone(self, gone: list[psutil.Process]) -> None:
        deadline = time.monotonic() + PATIENCE
        while any(map(is_running, gone)):
            if time.monotonic() > deadline:
                raise FedgenError(f"left running: {[process.cmdline() for process in gone if is_running(process)]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the sites."""
        for process in self.sites.values():
            kill(process_tree([process.pid]))
            process.wait()


def disturb(folder: Path, sites: int, rounds: int, kills: int, seed: int, minutes: float) -> dict[str, Any]:
    """Run, kill, and compare with the undisturbed model after the last finished round."""
    setup, folders = setup_of(sites, rounds), new_folder(folder)
    settings = ServerSettings(
        sites=tuple(f"site-{n}" for n in range(sites)), min_sites=sites, round_timeout=60.0, join_timeout=300.0,
        wait_timeout=300.0, attempts=100, strikes=10**6, rest=0,
    )  # fmt: skip
    port = write_federation(folders, setup, setup.data, settings, tls=True)  # type: ignore[arg-type]
    log, deadline = folders.server / "log.jsonl", time.monotonic() + 60 * minutes
    done: list[dict[str, Any]] = []
    finished = 0  # rounds that were done when the server's side was last killed: it must get one done in between
    with processes_of(folders, port) as processes:
        processes.start_superlink()
        register(folders)
        killer = Killer(folders, processes, port, sites, seed)
        try:
            processes.submit("run")
            while time.monotonic() < deadline:
                done = [e for e in read_journal(log) if e["event"] == "done"]
                if len(done) == rounds or (killer.killed.total() >= kills and len(done) > finished + 1):
                    break
                if killer.killed.total() < kills and len(done) > finished and killer.kill_one() != "site":
                    finished = len(done)
                time.sleep(killer.random.uniform(0.0, 4.0))
        finally:
            killer.stop()
    numbers = [e["round"] for e in done]
    plan = Plan(setup.config, setup.task)
    last = load_tree(folders.server / "runs/run/rounds" / f"{len(done)}.safetensors", plan.forms.server)
    wanted = undisturbed(setup, len(done))
    same = all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(wanted), strict=True))
    return {
        "minutes": round((time.monotonic() - deadline) / 60 + minutes, 1),
        "kills": dict(killer.killed), "rounds done": len(done), "each once": numbers == list(range(len(done))),
        "equal to the undisturbed model": same,
    }  # fmt: skip


def main() -> None:
    """Read the options, run, print; the exit code is 1 where the model differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10_000, help="the most rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="after which it is stopped")
    parser.add_argument("--folder", type=Path, help="a new folder, which is kept; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary) / "federation"
        found = disturb(folder, options.sites, options.rounds, options.kills, options.seed, options.minutes)
    print(json.dumps(found))
    sys.exit(not (found["each once"] and found["equal to the undisturbed model"]))


if __name__ == "__main__":
    main()
