"""A long federation of many light sites on the loopback interface: some fail in every round, and some are killed.

    python examples/soak.py --sites 100 --rounds 200 --failing 0.3 --workers 8 --minutes 60 --out FOLDER

A light site (light_site.py) has its own key and speaks Flower's protocol through the gate as a SuperNode does, but
answers without training: it adds a small number, which depends on site and round, to all that it got. So the model that
must come out can be computed from the server's log, and it is: no finished round may be lost or counted twice.

A site that fails does one of three things: its connections break before it has answered, and it returns a second later
(which must succeed within seconds); it answers with an error; or, rarely, it stays silent until the round is over.
Printed are the seconds of rounds, the seconds that returning took, and memory and disk of each process over time.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the model is tiny, and a GPU is not for a server and its children

import numpy as np
import psutil
from light_site import step

import fedgen
from fedgen.config import resolve
from fedgen.core.trees import named
from fedgen.demo.demo import write_federation
from fedgen.federate.deploy.folders import Folders, new_folder
from fedgen.federate.deploy.process_tree import kill, process_tree
from fedgen.federate.deploy.processes import Processes, processes_of
from fedgen.federate.deploy.superlink import register_keys
from fedgen.federate.journal import GATE_JOURNAL, read_journal, rotated
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings
from fedgen.runs.checkpoint import load_tree
from fedgen.simulator.setup import Setup, prepare

SIGNS = {"gate": "federate gate", "server app": "flwr-serverapp", "SuperLink": "gate.superlink"}
HURRY = 5.0  # seconds before a round's end: an answer that was sent whole by then must be part of the round


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


def sizes(processes: Processes, folders: Folders) -> dict[str, float]:
    """Memory (resident) and disk in MB."""
    found: Counter[str] = Counter()
    for process in process_tree([processes.running["superlink"].pid]):
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            kind = next((kind for kind, sign in SIGNS.items() if sign in line), "others")
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


@contextlib.contextmanager
def federation(folder: Path, setup: Setup, settings: ServerSettings) -> Iterator[tuple[Processes, int]]:
    """A running federation without its sites, and its port; where the folder has one already, it goes on."""
    about = folder / "port"
    if about.exists():
        folders, port = Folders(folder.resolve()), int(about.read_text())
    else:
        folders = new_folder(folder)
        port = write_federation(folders, setup, setup.data, settings, tls=True)  # type: ignore[arg-type]
    with processes_of(folders, port) as processes:
        processes.start_superlink()
        if not about.exists():
            register_keys(folders.server)
            about.write_text(str(port))
        yield processes, port


def start_sites(folders: Folders, port: int, sites: list[int], log: str, *options: str) -> "subprocess.Popen[bytes]":
    """A process of light sites, which ends when its standard input is closed."""
    command = [sys.executable, str(Path(__file__).with_name("light_site.py")), "--folder", str(folders.root)]
    where = ["--address", f"127.0.0.1:{port}", "--sites", *map(str, sites)]
    with (folders.root / "logs" / f"{log}.log").open("ab") as file:
        return subprocess.Popen([*command, *where, *options], stdin=subprocess.PIPE, stdout=file, stderr=file)


def stop_sites(started: "list[subprocess.Popen[bytes]]") -> None:
    """Ask them to end, and wait a while."""
    for process in started:
        with contextlib.suppress(OSError):
            process.stdin.close()  # type: ignore[union-attr]
    deadline = time.monotonic() + 20
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.1))
        kill(process_tree([process.pid]))
        process.wait()


def refusals(folders: Folders) -> dict[str, int]:
    """How often the gate and the server refused something, by the reason."""
    paths = [folders.server / GATE_JOURNAL, folders.server / "log.jsonl"]
    log = [event for path in paths for file in (rotated(path), path) for event in read_journal(file)]
    return dict(Counter(str(e.get("reason", "")) for e in log if e["event"] == "refused"))


def lost(done: list[dict[str, Any]], finished: list[list[float]]) -> list[dict[str, Any]]:
    """Answers [site, round, time] that were sent whole in time and are not part of the round."""
    rounds = {e["round"]: e for e in done}
    return [
        {"site": site, "round": number, "seconds before the end": round(rounds[number]["time"] - when, 1)}
        for site, number, when in finished
        if number in rounds
        and f"site-{site}" not in rounds[number]["sites"]
        and when < rounds[number]["time"] - HURRY
    ]  # fmt: skip


def soak(
    folder: Path, sites: int, rounds: int, failing: float, timeout: float, minutes: float, workers: int,
    say: Callable[[dict[str, Any]], None] = lambda sample: None,
) -> dict[str, Any]:  # fmt: skip
    """Run it and return what was measured; `say` is called with memory and disk after each round."""
    setup = setup_of(sites, rounds)
    settings = ServerSettings(
        sites=tuple(f"site-{n}" for n in range(sites)), min_sites=max(1, sites // 3), round_timeout=timeout,
        join_timeout=600.0, strikes=10**6, rest=1,
    )  # fmt: skip
    began, samples, light = time.monotonic(), [], []
    with federation(folder, setup, settings) as (processes, port):
        folders = processes.folders
        log, before = folders.server / "log.jsonl", len(list(folders.root.glob("did-*.json")))
        how = ["--failing", str(failing), "--silence", str(timeout), "--seed", str(before)]
        try:
            for number in range(workers):
                report = ["--report", str(folders.root / f"did-{before + number}.json")]
                light.append(start_sites(folders, port, list(range(number, sites, workers)), "sites", *how, *report))
            processes.submit("run")
            ended = False
            while not ended and time.monotonic() - began < 60 * minutes:
                time.sleep(1.0)
                events = read_journal(log)
                number = sum(e["event"] == "done" for e in events)
                if not samples or number > samples[-1]["rounds"]:
                    seconds = round(time.monotonic() - began, 1)
                    samples.append({"rounds": number, "seconds": seconds, **sizes(processes, folders)})
                    say(samples[-1])
                ended = bool(events) and events[-1]["event"] in ("finished", "ended")
        finally:
            stop_sites(light)
    done = [e for file in (rotated(log), log) for e in read_journal(file) if e["event"] == "done"]
    reports = [json.loads(path.read_text()) for path in folders.root.glob("did-*.json")]
    returns = sorted(seconds for report in reports for seconds in report["returns"])
    finished = [one for report in reports for one in report["finished"]]
    seconds = [e["seconds"] for e in done]
    found = {
        "sites": sites, "rounds done": len(done), "of": rounds, "failing": failing, "round_timeout": timeout,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "seconds of a round (median)": round(float(np.median(seconds)), 1) if done else None,
        "seconds of a round (tenths)": np.round(np.quantile(seconds, np.arange(11) / 10), 1).tolist() if done else None,
        "updates": sum(len(e["sites"]) for e in done),
        "what sites did": dict(sum((Counter(report["did"]) for report in reports), Counter())),
        "answers finished": len(finished), "finished answers lost": lost(done, finished),
        "refusals": refusals(folders), "returns": len(returns),
        "slowest return": round(returns[-1], 2) if returns else None,
        "sizes": [*samples[:: max(1, len(samples) // 20)], *samples[-1:]],
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


@contextlib.contextmanager
def ending_by(minutes: float) -> Iterator[None]:
    """Interrupts the block if it takes longer, as Ctrl-C does."""
    timer = threading.Timer(60 * minutes, lambda: os.kill(os.getpid(), 15))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Out:
    """A folder for progress.jsonl, a line for each sample, and result.json; without a folder nothing is written."""

    def __init__(self, folder: Path | None, name: str) -> None:
        self.folder, self.name = folder, name
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def progress(self, sample: dict[str, Any]) -> None:
        """Add a sample."""
        if self.folder:
            with (self.folder / f"{self.name}-progress.jsonl").open("a") as file:
                file.write(json.dumps(sample) + "\n")

    def result(self, found: Any) -> None:
        """Write the result."""
        if self.folder:
            (self.folder / f"{self.name}.json").write_text(json.dumps(found, indent=1))

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Write the traceback of what goes wrong, too."""
        try:
            yield
        except BaseException:
            self.result({"error": traceback.format_exc()})
            raise


def main() -> None:
    """Read the options, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--failing", type=float, default=0.3)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds of a round")
    parser.add_argument("--minutes", type=float, default=120.0, help="after which it is stopped")
    parser.add_argument("--workers", type=int, default=1, help="processes that the sites are divided among")
    parser.add_argument("--folder", type=Path, help="is kept, and the run in it is resumed; default: a temporary one")
    parser.add_argument("--out", type=Path, help="a folder for soak.json and soak-progress.jsonl")
    options = parser.parse_args()
    out = Out(options.out, "soak")
    with tempfile.TemporaryDirectory() as temporary, out.errors(), ending_by(options.minutes + 3):
        folder = options.folder or Path(temporary) / "federation"
        numbers = options.sites, options.rounds, options.failing, options.timeout, options.minutes, options.workers
        found = soak(folder, *numbers, out.progress)
    out.result(found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
