"""Processes of a federation are killed at random, and the model that comes out is the undisturbed one, to the last bit.

    python examples/kills.py --kills 500 --sites 5 --minutes 60 --out FOLDER

Sites are light_site.py, each its own process. A kill (SIGKILL) hits a site, the server app, SuperLink or the
gate, and what was killed is started again, as systemd or an operator would. All sites are needed in each round, so that
the undisturbed model is known: it is computed here, without any process. The run goes on until all kills are done.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
import psutil
from light_site import step
from soak import SIGNS, Out, ending_by, federation, refusals, setup_of, sizes, start_sites, stop_sites

from fedgen.core.contract import Round
from fedgen.core.streams import stream
from fedgen.core.trees import named, stack
from fedgen.errors import FedgenError
from fedgen.federate.deploy.process_tree import is_running, process_tree
from fedgen.federate.deploy.processes import Processes
from fedgen.federate.journal import read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings
from fedgen.runs.checkpoint import load_tree
from fedgen.runs.cohort import draw_cohort
from fedgen.simulator.setup import Setup

KINDS = {"site": 0.4, "server app": 0.2, "SuperLink": 0.2, "gate": 0.2}  # where another than a site may be killed
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

    def __init__(self, processes: Processes, port: int, sites: int, seed: int) -> None:
        self.processes, self.port = processes, port
        self._kept = processes.folders.root / "killed.json"  # so far, where the run goes on in its folder
        self.killed = Counter[str](json.loads(self._kept.read_text()) if self._kept.exists() else {})
        self.random = random.Random(f"{seed} {self.killed.total()}")
        self.sites = {number: self._start_site(number) for number in range(sites)}

    def _start_site(self, number: int) -> Any:
        return start_sites(self.processes.folders, self.port, [number], f"site-{number}")

    def kill_one(self, *, only_sites: bool) -> str:
        """Kill one process of a random kind, and start again what that ended."""
        (kind,) = ["site"] if only_sites else self.random.choices(list(KINDS), list(KINDS.values()))
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
        self._kept.write_text(json.dumps(self.killed))
        return kind

    def _server_process(self, kind: str) -> psutil.Process | None:
        for process in process_tree([self.processes.running["superlink"].pid]):
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if next((name for name, sign in SIGNS.items() if sign in line), "") == kind:
                return process
        return None

    def _wait_until_gone(self, gone: list[psutil.Process]) -> None:
        deadline = time.monotonic() + PATIENCE
        while any(map(is_running, gone)):
            if time.monotonic() > deadline:
                raise FedgenError(f"left running: {[process.cmdline() for process in gone if is_running(process)]}")
            time.sleep(0.1)


def disturb(
    folder: Path, sites: int, rounds: int, kills: int, seed: int, minutes: float, pause: float,
    say: Callable[[dict[str, Any]], None] = lambda sample: None,
) -> dict[str, Any]:  # fmt: skip
    """Run, kill, and compare with the undisturbed model after the last finished round; `say` hears of each kill."""
    setup = setup_of(sites, rounds)
    settings = ServerSettings(
        sites=tuple(f"site-{n}" for n in range(sites)), min_sites=sites, round_timeout=60.0, join_timeout=300.0,
        wait_timeout=300.0, attempts=100, strikes=10**6, rest=0,
    )  # fmt: skip
    began, done, samples = time.monotonic(), [], []
    # The server's side is killed only when a round was done since the last time: otherwise none would ever be done.
    finished, in_a_row = 0, 0
    with federation(folder, setup, settings) as (processes, port):
        folders = processes.folders
        log, killer = folders.server / "log.jsonl", Killer(processes, port, sites, seed)
        try:
            processes.submit("run")
            while time.monotonic() - began < 60 * minutes:
                done = [e for e in read_journal(log) if e["event"] == "done"]
                enough = killer.killed.total() >= kills
                if len(done) == rounds or (enough and len(done) > finished + 1):
                    break
                only_sites = len(done) <= finished
                in_a_row = in_a_row + 1 if only_sites else 0
                if not enough and done and in_a_row <= 2 * sites:
                    kind = killer.kill_one(only_sites=only_sites)
                    finished = finished if kind in ("", "site") else len(done)
                    about = {"seconds": round(time.monotonic() - began, 1), "rounds": len(done), "killed": kind}
                    samples.append({**about, "kills": killer.killed.total(), **sizes(processes, folders)})
                    say(samples[-1])
                time.sleep(killer.random.uniform(0.0, pause))
        finally:
            stop_sites(list(killer.sites.values()))
    done = [e for e in read_journal(log) if e["event"] == "done"]
    numbers = [e["round"] for e in done]
    plan = Plan(setup.config, setup.task)
    last = load_tree(folders.server / "runs/run/rounds" / f"{len(done)}.safetensors", plan.forms.server)
    wanted = undisturbed(setup, len(done))
    same = all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(wanted), strict=True))
    return {
        "minutes": round((time.monotonic() - began) / 60, 1), "sites": sites,
        "kills": dict(killer.killed), "of": kills,
        "rounds done": len(done), "each once": numbers == list(range(len(done))),
        "equal to the undisturbed model": same, "refusals": refusals(folders),
        "sizes": samples[:: max(1, len(samples) // 20)],
    }  # fmt: skip


def main() -> None:
    """Read the options, run, print; the exit code is 1 where the model differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10_000, help="the most rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="after which it is stopped")
    parser.add_argument("--folder", type=Path, help="is kept, and the run in it is resumed; default: a temporary one")
    parser.add_argument("--pause", type=float, default=4.0, help="the most seconds between two kills")
    parser.add_argument("--out", type=Path, help="a folder for kills.json and kills-progress.jsonl")
    options = parser.parse_args()
    out = Out(options.out, "kills")
    with tempfile.TemporaryDirectory() as temporary, out.errors(), ending_by(options.minutes + 3):
        folder = options.folder or Path(temporary) / "federation"
        numbers = options.sites, options.rounds, options.kills, options.seed, options.minutes, options.pause
        found = disturb(folder, *numbers, out.progress)
    out.result(found)
    print(json.dumps(found))
    sys.exit(not (found["each once"] and found["equal to the undisturbed model"]))


if __name__ == "__main__":
    main()
