"""The project's performance targets, compared with measurements. Ratios, so that any machine can check them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

Found = Mapping[str, Any]


class Target(NamedTuple):
    """A bound on a measured value."""

    what: str
    value: Callable[[Found], float]
    bound: float
    at_most: bool
    unit: str


def _over(found: Found, a: str, b: str) -> float:
    return found["rounds"][a]["seconds"] / found["rounds"][b]["seconds"]


def _whole_run(found: Found) -> float:
    whole = found["seeds"]["whole_run"]
    if whole["rounds"] != 200:
        raise KeyError("a shorter run")
    return float(whole["seconds"])


def _sweep(found: Found) -> float:
    sweep = found["sweep"]
    if (sweep["runs"], sweep["rounds"]) != (480, 200):
        raise KeyError("a smaller sweep")
    return float(sweep["seconds"])


def _throughput(found: Found, runs: int, name: str) -> float:
    """How many times more rounds of runs are done per second when so many run at once."""
    curve = found["scaling"][name]
    seconds = {size: timing["seconds"] for size, timing in zip(curve["size"], curve["timing"], strict=True)}
    return runs * seconds[1.0] / seconds[float(runs)]


def _brought(found: Found) -> float:
    """The slowest way of bringing the paper's CNN, beside the built-in one."""
    rounds = found["networks"]
    return max(timing["seconds"] for timing in rounds.values()) / rounds["built in"]["seconds"]


def _peer(found: Found, part: str, peer: str, ours: str) -> float:
    rounds = found[part]["rounds" if part == "resnet" else "round"]
    return rounds[peer]["seconds"] / rounds[ours]["seconds"]


def _whole_pfl(found: Found) -> float:
    whole = found["pfl_cifar10"]
    if whole["rounds"] != 1500:
        raise KeyError("a shorter run")
    return float(whole["ours"]["tf32"]["seconds"])


CPU = [
    Target("a FedAvg round / its roofline", lambda f: 1 / f["ratios"]["roofline"], 3.5, True, "×"),
    Target("PyTorch loop / FedAvg round", lambda f: f["ratios"]["pytorch"], 5, False, "×"),
    Target("PyTorch in 2 processes / FedAvg round", lambda f: f["ratios"]["pytorch-2-processes"], 2.5, False, "×"),
    Target("Flower's simulation / FedAvg round", lambda f: f["ratios"]["flower"], 5, False, "×"),
    Target("pfl / FedAvg round", lambda f: f["ratios"]["pfl"], 5, False, "×"),
    Target("FedGen round / FedAvg round", lambda f: _over(f, "fedgen", "fedavg"), 1.4, True, "×"),
    Target("evaluation / FedAvg round", lambda f: _over(f, "evaluation", "fedavg"), 0.5, True, "×"),
    Target("the paper's CNN brought from outside / built in", _brought, 1.5, True, "×"),
    Target(
        "ResNet-18: PyTorch in 2 processes / ours",
        lambda f: _peer(f, "resnet", "pytorch-2-processes", "float32"),
        1,
        False,
        "×",
    ),
    Target("peak memory of a default run", lambda f: f["memory_mb"], 800, True, "MB"),
    Target("second start to its first round", lambda f: f["start"]["cached"], 10, True, "s"),
]
GPU = [
    Target("FedAvg round, 3 seeds", lambda f: 1e3 * f["seeds"]["rounds"]["fedavg"]["seconds"], 2.2, True, "ms"),
    Target("FedGen round, 3 seeds", lambda f: 1e3 * f["seeds"]["rounds"]["fedgen"]["seconds"], 5.5, True, "ms"),
    Target("200 rounds of FedGen, 3 seeds", _whole_run, 4, True, "s"),
    Target("the paper's CNN brought from outside / built in", _brought, 1.3, True, "×"),
    Target(
        "residual network: PyTorch loop / ours", lambda f: _peer(f, "resnet", "pytorch-gpu", "float32"), 2, False, "×"
    ),
    Target(
        "residual network: PyTorch loop / ours in TF32",
        lambda f: _peer(f, "resnet", "pytorch-gpu", "tf32"),
        4.5,
        False,
        "×",
    ),
    Target(
        "residual network: PyTorch loop / ours in bfloat16",
        lambda f: _peer(f, "resnet", "pytorch-gpu", "bfloat16"),
        7,
        False,
        "×",
    ),
    Target("pfl's CNN: PyTorch loop / ours", lambda f: _peer(f, "pfl_cifar10", "pytorch-gpu", "ours"), 25, False, "×"),
    Target(
        "pfl's CNN: PyTorch loop / ours in TF32",
        lambda f: _peer(f, "pfl_cifar10", "pytorch-gpu", "ours, tf32"),
        30,
        False,
        "×",
    ),
    Target("pfl's CIFAR-10 benchmark, whole, in TF32", _whole_pfl, 25, True, "s"),
    Target(
        "pfl / ours on its CIFAR-10 benchmark", lambda f: _peer(f, "pfl_cifar10", "pfl-gpu", "ours"), 20, False, "×"
    ),
    Target("480 runs of 200 rounds in one sweep", _sweep, 120, True, "s"),
    Target("throughput of 32 runs of FedAvg / of one", lambda f: _throughput(f, 32, "runs"), 8, False, "×"),
    Target("throughput of 32 runs of FedGen / of one", lambda f: _throughput(f, 32, "runs-of-fedgen"), 8, False, "×"),
]


def targets(found: Found, platform: str) -> list[dict[str, Any]]:
    """The targets of this kind of device for which there are measurements."""
    rows = []
    for target in CPU if platform == "cpu" else GPU:
        try:
            value = target.value(found)
        except KeyError:  # not measured this time
            continue
        met = value <= target.bound if target.at_most else value >= target.bound
        sign = "≤" if target.at_most else "≥"
        rows.append(
            {"what": target.what, "value": value, "target": f"{sign} {target.bound:g} {target.unit}", "met": met}
        )
    return rows
