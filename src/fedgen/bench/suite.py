"""The parts of the benchmark; the failure of one is reported, and the others go on."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax

from fedgen.bench.child import command
from fedgen.bench.contenders import LOSS_ROUNDS, PEERS, Bench, start_peer
from fedgen.bench.machine import MatrixPeak, cnn_round_flops, describe
from fedgen.bench.networks import brought, pfl_cifar10, residual
from fedgen.bench.peers.workload import write_workload
from fedgen.bench.scaling import CURVES, curve
from fedgen.bench.simulator import SimulatorBench, set_up, workload_of
from fedgen.bench.sweep import sweep
from fedgen.bench.targets import targets
from fedgen.bench.timing import Timing, as_json, take_turns
from fedgen.errors import FedgenError
from fedgen.simulator.devices import check_devices, use_machine_well
from fedgen.simulator.run import run as simulate
from fedgen.version import __version__

PATIENCE = 1800.0  # seconds that a part may take


def rounds(bench: Bench) -> None:
    """A round of FedAvg and FedGen, an evaluation, the peers and the matrix peak, taking turns."""
    bench.say("compiling")
    setup = set_up("fedavg")
    fedavg, fedgen, peak = SimulatorBench(setup, "fedavg"), SimulatorBench(set_up("fedgen"), "fedgen"), MatrixPeak()
    workload = bench.folder / "workload.npz"
    write_workload(workload, workload_of(setup, LOSS_ROUNDS + 2))
    losses = {"fedavg": fedavg.losses(LOSS_ROUNDS)}
    for warm in (fedgen.round, fedgen.evaluation, fedavg.round, fedavg.evaluation):
        warm()
    contenders: dict[str, Callable[[], float]] = {
        "peak": peak.measure,
        "fedavg": fedavg.round,
        "fedgen": fedgen.round,
        "evaluation": fedavg.evaluation,
    }
    repeats = 3 if bench.quick else 15
    with ExitStack() as peers:
        for name in PEERS:
            if name not in ("flower", "pfl-gpu") and (peer := start_peer(bench, name, workload, losses, peers)):
                contenders[name] = peer.round
        bench.say("training: " + ", ".join(contenders))
        seconds = take_turns(contenders, repeats, bench.absent)
    if lost := next((name for name in ("fedavg", "peak") if name not in seconds), None):
        raise FedgenError(f"{lost} {bench.absent[lost]}")
    with ExitStack() as peers:  # alone: its threads and processes are busy even while they wait
        if peer := start_peer(bench, "flower", workload, losses, peers):
            bench.say("training: fedavg, flower")
            beside = take_turns({"fedavg": fedavg.round, "flower": peer.round}, repeats, bench.absent)
            if "flower" in beside:
                bench.found["beside_flower"] = {name: Timing.of(values) for name, values in beside.items()}
                # as if measured beside the others: its ratio to the FedAvg rounds measured beside it
                scale = Timing.of(seconds["fedavg"]).seconds / Timing.of(beside["fedavg"]).seconds
                seconds["flower"] = [scale * value for value in beside["flower"]]
    found = {name: Timing.of(values) for name, values in seconds.items()}
    peak_flops = 1e9 / found["peak"].seconds
    config = setup.config
    samples = config.active * config.local_steps * config.batch_size
    flops = cnn_round_flops(28, (6, 16), 32, 10, samples)
    del found["peak"]
    bench.found["rounds"] = found
    bench.found["roofline"] = {
        "peak_gflops": peak_flops / 1e9,
        "round_gflop": flops / 1e9,
        "seconds": flops / peak_flops,
    }
    ours = found["fedavg"].seconds
    bench.found["ratios"] = {name: timing.seconds / ours for name, timing in found.items() if name != "fedavg"}
    bench.found["ratios"]["roofline"] = flops / peak_flops / ours
    bench.found["losses"] = losses


def start(bench: Bench) -> None:
    """`fedgen run` from the shell until its first round, and the time of compiling: without and with the cache."""
    arguments = ["--rounds", "1", "--eval-every", "1"]
    cache = bench.folder / "cache"
    found: dict[str, Any] = {"compiling": {}}
    for name in ("cold", "cached"):
        bench.say(f"fedgen run, {name}")
        measured = command(arguments, bench.folder / name, cache)
        found[name], found["compiling"][name] = measured["first_round"], measured["compiling"]
    bench.found["start"] = found


def memory(bench: Bench) -> None:
    """The peak memory of a default run (fewer rounds: it does not grow with them)."""
    bench.say("fedgen run, memory")
    arguments = ["--rounds", "2" if bench.quick else "20"]
    measured = command(arguments, bench.folder / "memory", bench.folder / "no-cache")  # compiling takes the most
    if measured["peak_bytes"] is None:
        bench.absent["memory"] = "this system does not tell a process's peak memory"
    else:
        bench.found["memory_mb"] = measured["peak_bytes"] / 1e6


def seeds(bench: Bench) -> None:
    """Three seeds: a round of FedAvg and of FedGen, and a complete run of FedGen after compiling."""
    at_once = (0, 1, 2) if jax.default_backend() != "cpu" else (0,)
    contenders = {}
    for algorithm in ("fedavg", "fedgen"):
        bench.say(f"{len(at_once)} seeds at once, {algorithm}")
        ours = SimulatorBench(set_up(algorithm, seeds=3), algorithm, at_once, rounds=20 if len(at_once) > 1 else 3)
        ours.round()
        contenders[algorithm] = ours.round
    bench.found["seeds"] = {
        "at_once": len(at_once), "rounds": bench.turns("seeds", contenders, 3 if bench.quick else 9)
    }  # fmt: skip
    bench.keep()
    number = 20 if bench.quick and jax.default_backend() == "cpu" else 200
    bench.say(f"{number} rounds of fedgen, 3 seeds")
    setup = set_up("fedgen", seeds=3, rounds=number)
    begin = time.perf_counter()
    summary = simulate(setup)
    compiling = sum(row["seconds_compile"] for row in summary["results"])
    bench.found["seeds"]["whole_run"] = {
        "rounds": number, "seconds": time.perf_counter() - begin - compiling, "seconds_compile": compiling
    }  # fmt: skip


def _sweep(bench: Bench) -> None:
    bench.found["sweep"] = sweep(bench.folder, bench.quick, bench.say)


PARTS: dict[str, Callable[[Bench], None]] = {
    "rounds": rounds,
    "start": start,
    "memory": memory,
    "seeds": seeds,
    "networks": brought,
    "resnet": residual,
    "pfl-cifar10": pfl_cifar10,
    "sweep": _sweep,
    **{name: partial(curve, name) for name in CURVES},
}


def run_bench(parts: Sequence[str], quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything that was measured, ready for JSON.

    Each part has its own process: what one leaves behind cannot slow down another, and a compiler that aborts
    takes no other result with it, and of its part only what is not measured yet.
    """
    with tempfile.TemporaryDirectory(prefix="fedgen-bench-") as folder:
        bench = Bench(quick, say, Path(folder))
        if failure := _measure_alone(_machine, bench):  # without devices nothing else can be measured
            raise FedgenError(f"this machine cannot be measured: {failure}")
        for name in parts:
            if failure := _measure_alone(PARTS[name], bench):
                bench.absent[name] = f"failed: {failure}"
                bench.failed.append(name)
    found = as_json(bench.found)
    machine = found.pop("machine")
    return {
        "version": __version__,
        "machine": machine,
        "quick": quick,
        **found,
        "targets": targets(found, machine["device"]["platform"]),
        "absent": bench.absent,
        "failed": bench.failed,
    }


def _machine(bench: Bench) -> None:
    bench.found["machine"] = describe()


def _measure_alone(part: Callable[[Bench], None], bench: Bench) -> str:
    """Measure a part in a new process, and add what it found; gives why it failed, if it did."""
    ours, theirs = (context := get_context("spawn")).Pipe()
    process = context.Process(target=_measure, args=(part, bench.quick, bench.folder, theirs))
    process.start()
    theirs.close()
    deadline = time.monotonic() + PATIENCE
    doing = ""
    try:
        while True:
            if not ours.poll(max(0.0, deadline - time.monotonic())):
                process.kill()
                process.join()
                return f"it took longer than {PATIENCE:g} s{doing}"
            kind, *message = ours.recv()
            if kind == "done":
                break
            if kind == "say":
                bench.say(message[0])
                doing = f" (at: {message[0]})"
            else:
                _add(bench, *message)
    except EOFError:
        process.join()
        code = process.exitcode or 0
        ended = f"signal {-code}" if code < 0 else f"code {code}"
        return f"its process ended with {ended}{doing}"
    process.join()
    *results, failure = message
    _add(bench, *results)
    return str(failure)


def _add(bench: Bench, found: Mapping[str, Any], absent: Mapping[str, str]) -> None:
    _merge(bench.found, found)
    bench.absent |= absent


def _measure(part: Callable[[Bench], None], quick: bool, folder: Path, connection: Any) -> None:
    bench = Bench(quick, lambda line: connection.send(("say", line)), folder)
    bench.keep = lambda: connection.send(("found", bench.found, bench.absent))
    failure = ""
    try:
        use_machine_well()
        check_devices()
        part(bench)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    connection.send(("done", bench.found, bench.absent, failure))


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value
