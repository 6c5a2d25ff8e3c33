"""Networks that are not built in: what they cost beside the built-in one, beside PyTorch, and on pfl's benchmark."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import jax
import numpy as np

import fedgen
from fedgen.bench.child import missing
from fedgen.bench.contenders import LOSS_ROUNDS, Bench, start_peer
from fedgen.bench.peers.workload import write_workload
from fedgen.bench.simulator import SimulatorBench, set_up, workload_of
from fedgen.core.contract import Model
from fedgen.core.trees import count
from fedgen.data.dataset import Dataset, from_arrays
from fedgen.data.sources import load
from fedgen.errors import FedgenError
from fedgen.simulator.run import run
from fedgen.simulator.setup import Setup

PRECISIONS = ("float32", "tf32", "bfloat16")
# pfl's CIFAR-10 benchmark: its rounds, and of how many users of 50 images which take part.
PFL = {"users": 1000, "active": 50, "local_epochs": 1, "batch_size": 10, "lr": 0.1, "rounds": 1500, "eval_every": 10}


def brought(bench: Bench) -> None:
    """The paper's CNN, built in, and as it is written with Flax, Equinox and PyTorch."""
    contenders = {"built in": _warm(lambda: set_up("fedavg"), 3).round}
    for name, build in (("flax", _flax_cnn), ("equinox", _equinox_cnn), ("torch", _torch_cnn)):
        if absent := missing(name):
            bench.absent[f"networks of {name}"] = f"{absent} is not installed"
            continue
        bench.say(f"the paper's CNN, {name}")
        _join(bench, f"networks of {name}", contenders, name, lambda build=build: set_up("fedavg", network=build()), 3)  # type: ignore[misc]
    bench.found["networks"] = bench.turns("networks", contenders, 3 if bench.quick else 9)


def residual(bench: Bench) -> None:
    """A residual network on CIFAR-size images beside a PyTorch loop: on a CPU ResNet-18, on a GPU all precisions."""
    on_cpu = jax.default_backend() == "cpu"
    clients, steps, name = (2, 2, "resnet18") if on_cpu else (10, 20, "residual")
    data = cifar_images(2000)

    def setup(precision: str) -> Setup:
        return set_up(
            "fedavg", data, of_torch(name), partition="iid", users=20, active=clients, local_steps=steps,
            precision=precision,
        )  # fmt: skip

    first = setup("float32")
    bench.say(f"{name}, float32")
    ours = SimulatorBench(first, "fedavg", rounds=1)
    losses = {"fedavg": ours.losses(LOSS_ROUNDS)}
    workload = bench.folder / "residual.npz"
    write_workload(workload, workload_of(first, LOSS_ROUNDS + 2, name))
    contenders: dict[str, Callable[[], float]] = {"float32": ours.round}
    found: dict[str, Any] = {
        "network": name,
        "parameters": count(jax.eval_shape(first.task.model.init, jax.random.key(0))[0]),
        "clients": clients,
        "steps": steps,
        "losses": losses,
    }

    def measure() -> None:
        found["rounds"] = bench.turns("resnet", contenders, 2 if bench.quick else 3)
        for lost in contenders.keys() - found["rounds"]:
            del contenders[lost]
        bench.found["resnet"] = found
        bench.keep()

    peer_name = "pytorch-2-processes" if on_cpu else "pytorch-gpu"
    with ExitStack() as stack:
        # Small differences of sums grow through so many layers: that both learn is compared, not the digits.
        if peer := start_peer(bench, peer_name, workload, losses, stack, same_losses=False):
            contenders[peer_name] = peer.round
        measure()
        for precision in () if on_cpu else PRECISIONS[1:]:  # again with each: a compiler may abort at the next
            bench.say(f"{name}, {precision}")
            _join(bench, f"resnet, {precision}", contenders, precision, partial(setup, precision), 1)
            measure()


def pfl_cifar10(bench: Bench) -> None:
    """pfl's CIFAR-10 benchmark, whole, with evaluation; beside it rounds of pfl and of a PyTorch loop."""
    on_cpu = jax.default_backend() == "cpu"
    data, real = _cifar10()
    settings = {**PFL, "partition": "iid", "train_fraction": 1.0}
    settings["rounds"] = (2 if bench.quick else 10) if on_cpu else (100 if bench.quick else PFL["rounds"])
    found: dict[str, Any] = {"real": real, "rounds": settings["rounds"], "ours": {}}
    for precision in ("float32",) if on_cpu else ("float32", "tf32"):
        bench.say(f"pfl's CIFAR-10 benchmark, {precision}")
        setup = set_up("fedavg", data, of_torch("pfl-cnn"), precision=precision, **settings)
        start = time.perf_counter()
        summary = run(setup)
        seconds = time.perf_counter() - start
        compiling = sum(row["seconds_compile"] for row in summary["results"])
        accuracy = summary["results"][0]["accuracy"]
        found["ours"][precision] = {"seconds": seconds - compiling, "compiling": compiling, "accuracy": accuracy}
        bench.found["pfl_cifar10"] = found
        bench.keep()
    steps = {**settings, "local_steps": 5, "local_epochs": 0}  # 50 images are five mini-batches of 10
    ours = SimulatorBench(set_up("fedavg", data, of_torch("pfl-cnn"), **steps), "fedavg", rounds=1 if on_cpu else 20)
    losses = {"fedavg": ours.losses(LOSS_ROUNDS)}
    workload = bench.folder / "pfl.npz"
    write_workload(
        workload, workload_of(set_up("fedavg", data, of_torch("pfl-cnn"), **steps), LOSS_ROUNDS + 2, "pfl-cnn")
    )
    contenders: dict[str, Callable[[], float]] = {"ours": ours.round}
    if not on_cpu:
        faster = partial(set_up, "fedavg", data, of_torch("pfl-cnn"), precision="tf32", **steps)
        _join(bench, "pfl-cifar10, tf32", contenders, "ours, tf32", faster, 20)
    with ExitStack() as stack:
        for name in ("pytorch", "pfl") if on_cpu else ("pytorch-gpu", "pfl-gpu"):
            # Dropout draws otherwise there.
            if peer := start_peer(bench, name, workload, losses, stack, same_losses=False):
                contenders[name] = peer.round
        found["round"] = bench.turns("pfl-cifar10", contenders, 2 if bench.quick else 3)


def _warm(make: Callable[[], Setup], rounds: int) -> SimulatorBench:
    """FedAvg, compiled."""
    ours = SimulatorBench(make(), "fedavg", rounds=rounds)
    ours.round()
    return ours


def _join(
    bench: Bench,
    what: str,
    contenders: dict[str, Callable[[], float]],
    name: str,
    make: Callable[[], Setup],
    rounds: int,
) -> None:
    """One more contender, if it can be compiled and run."""
    if ours := bench.attempt(what, lambda: _warm(make, rounds)):
        contenders[name] = ours.round


def cifar_images(samples: int) -> Dataset:
    """Images of CIFAR-10's form that can be learned: noise around another mean image for each class."""
    rng = np.random.default_rng(0)
    means = rng.integers(64, 192, (10, 32, 32, 3))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, 10, n)
        x = means[y] + rng.normal(0, 40, (n, 32, 32, 3))
        return np.clip(x, 0, 255).astype(np.uint8), y

    return from_arrays(*draw(samples), *draw(max(100, samples // 5)), name="images of CIFAR-10's form")


def _cifar10() -> tuple[Dataset, bool]:
    """CIFAR-10 where its files are, else images of the same form; and which of the two."""
    try:
        return load("cifar10"), True
    except FedgenError:
        return cifar_images(50_000), False


def of_torch(name: str) -> Model:
    """A network of the PyTorch peers, brought by `fedgen.from_torch`."""
    if missing("torch"):
        raise FedgenError("torch is not installed (pip install '.[bench]' in FedGen's folder)")
    from fedgen.bench.peers.torch_networks import NETWORKS

    shape = (1, 28, 28) if name == "paper-cnn" else (3, 32, 32)
    return fedgen.from_torch(NETWORKS[name](), sample=shape)


def _torch_cnn() -> Model:
    return of_torch("paper-cnn")


def _flax_cnn() -> Model:
    import flax.linen as nn

    class Cnn(nn.Module):
        """The paper's CNN as one writes it with Flax."""

        @nn.compact
        def __call__(self, x: jax.Array, train: bool) -> jax.Array:
            for width in (6, 16):
                x = nn.Conv(width, (3, 3), strides=2, padding=1)(x)
                x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
            return nn.Dense(10, name="head")(nn.Dense(32)(x.reshape(len(x), -1)))

    return fedgen.from_flax(Cnn(), "head", sample=(28, 28, 1))


def _equinox_cnn() -> Model:
    import equinox as eqx

    def network(key: jax.Array) -> Any:
        keys = jax.random.split(key, 4)
        layers: list[Any] = [eqx.nn.Lambda(lambda x: x.transpose(2, 0, 1))]
        for key, (inputs, outputs) in zip(keys[:2], ((1, 6), (6, 16)), strict=True):
            layers += [
                eqx.nn.Conv2d(inputs, outputs, 3, 2, 1, key=key),
                eqx.nn.BatchNorm(outputs, axis_name="batch", momentum=0.9, mode="batch"),
                eqx.nn.Lambda(jax.nn.relu),
            ]
        layers += [eqx.nn.Lambda(jax.numpy.ravel), eqx.nn.Linear(784, 32, key=keys[2])]
        return eqx.nn.Sequential([*layers, eqx.nn.Linear(32, 10, key=keys[3])])

    return fedgen.from_equinox(network, sample=(28, 28, 1))
