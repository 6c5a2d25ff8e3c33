"""The parts of the benchmark; the failure of one is reported, and the others go on."""

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from fedgen.bench.child import Peer, command, missing
from fedgen.bench.machine import MatrixPeak, cnn_round_flops, describe
from fedgen.bench.peers.workload import write_workload
from fedgen.bench.scaling import CURVES, curve, noise
from fedgen.bench.simulator import SimulatorBench, set_up, workload_of
from fedgen.bench.sweep import sweep
from fedgen.bench.targets import targets
from fedgen.bench.timing import Timing, as_json, take_turns
from fedgen.core.trees import count
from fedgen.simulator.devices import available_cores
from fedgen.simulator.run import run as simulate
from fedgen.version import __version__

SAME_LOSS = 1e-3  # relative: the same arithmetic in another order of sums
LOSS_ROUNDS = 3  # rounds whose losses are compared
# contender -> (its module, what must be installed, arguments after the workload)
PEERS: dict[str, tuple[str, tuple[str, ...], Callable[[], list[str]]]] = {
    "pytorch": ("torch_loop", ("torch",), lambda: ["1"]),
    "pytorch-2-processes": ("torch_loop", ("torch",), lambda: ["2"]),
    "pytorch-gpu": ("torch_loop", ("torch",), lambda: ["1", "cuda"]),
    "pfl": ("pfl_simulation", ("torch", "pfl"), list),
    "flower": ("flower_simulation", ("torch", "flwr", "ray"), lambda: [str(available_cores())]),
}


@dataclass
class Bench:
    """The state that the parts share, and their results."""

    quick: bool
    say: Callable[[str], None]
    folder: Path
    found: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # part or contender -> why
    failed: list[str] = field(default_factory=list)  # parts


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
            if name != "flower" and (peer := _start(bench, name, workload, losses, peers)):
                contenders[name] = peer.round
        bench.say("training: " + ", ".join(contenders))
        seconds = take_turns(contenders, repeats, bench.absent)
    with ExitStack() as peers:  # alone: its threads and processes are busy even while they wait
        if peer := _start(bench, "flower", workload, losses, peers):
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


def _start(bench: Bench, name: str, workload: Path, losses: dict[str, list[float]], stack: ExitStack) -> Peer | None:
    """A peer that runs and reaches our losses; any other is left out, with the reason."""
    module, needed, arguments = PEERS[name]
    if name == "pytorch-gpu" and not _torch_sees_a_gpu():
        if jax.default_backend() != "cpu":
            bench.absent[name] = "PyTorch has no GPU here"
        return None
    if absent := missing(*needed):
        bench.absent[name] = f"{absent} is not installed (pip install '.[bench]' in FedGen's folder)"
        return None
    bench.say(f"starting {name}")
    try:
        peer = stack.enter_context(closing(Peer(module, str(workload), *arguments())))
        losses[name] = peer.play(LOSS_ROUNDS)["losses"]
    except Exception as error:
        bench.absent[name] = f"failed: {error}"
        return None
    for ours, theirs in zip(losses["fedavg"], losses[name], strict=True):
        if abs(ours - theirs) > SAME_LOSS * abs(ours):
            bench.absent[name] = f"reaches other losses than ours ({theirs:.5f}, not {ours:.5f}), so it is not compared"
            return None
    return peer


def _torch_sees_a_gpu() -> bool:
    if jax.default_backend() == "cpu" or missing("torch"):
        return False
    import torch

    return torch.cuda.is_available()


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
    found = take_turns(contenders, 3 if bench.quick else 9, bench.absent)
    bench.found["seeds"] = {
        "at_once": len(at_once), "rounds": {name: Timing.of(values) for name, values in found.items()}
    }  # fmt: skip
    number = 20 if bench.quick and jax.default_backend() == "cpu" else 200
    bench.say(f"{number} rounds of fedgen, 3 seeds")
    setup = set_up("fedgen", seeds=3, rounds=number)
    begin = time.perf_counter()
    summary = simulate(setup)
    compiling = sum(row["seconds_compile"] for row in summary["results"])
    bench.found["seeds"]["whole_run"] = {
        "rounds": number, "seconds": time.perf_counter() - begin - compiling, "seconds_compile": compiling
    }  # fmt: skip


def resnet(bench: Bench) -> None:
    """A network of 2.8 million parameters on CIFAR-size images."""
    on_cpu = jax.default_backend() == "cpu"
    clients, steps = (2, 2) if on_cpu else (10, 20)
    bench.say("resnet")
    setup = set_up("fedavg", noise(32, 3), model="resnet", partition="iid", users=20, active=clients, local_steps=steps)
    ours = SimulatorBench(setup, "fedavg", rounds=1)
    ours.round()
    timing = Timing.of([ours.round() for _ in range(2 if bench.quick else 5)])
    bench.found["resnet"] = {
        "parameters": count(jax.eval_shape(setup.task.model.init, jax.random.key(0))[0]),
        "clients": clients,
        "steps": steps,
        "round": timing,
        "seconds_per_client_step": timing.seconds / (clients * steps),
    }


def _scaling(name: str) -> Callable[[Bench], None]:
    def part(bench: Bench) -> None:
        bench.found.setdefault("scaling", {})[name] = curve(name, bench.quick, bench.say)

    part.__doc__ = CURVES[name].__doc__
    return part


PARTS: dict[str, Callable[[Bench], None]] = {
    "rounds": rounds,
    "start": start,
    "memory": memory,
    "seeds": seeds,
    "resnet": resnet,
    "sweep": lambda bench: bench.found.update(sweep=sweep(bench.folder, bench.quick, bench.say)),
    **{name: _scaling(name) for name in CURVES},
}


def run_bench(parts: Sequence[str], quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything that was measured, ready for JSON."""
    machine = describe()
    with tempfile.TemporaryDirectory(prefix="fedgen-bench-") as folder:
        bench = Bench(quick, say, Path(folder))
        for name in parts:
            try:
                PARTS[name](bench)
            except Exception as error:
                bench.absent[name] = f"failed: {type(error).__name__}: {error}"
                bench.failed.append(name)
    found = as_json(bench.found)
    return {
        "version": __version__,
        "machine": machine,
        "quick": quick,
        **found,
        "targets": targets(found, machine["device"]["platform"]),
        "absent": bench.absent,
        "failed": bench.failed,
    }
