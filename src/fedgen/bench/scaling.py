"""How the time of a round grows: with users, cohort, runs at once, local steps and the size of the images."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fedgen.bench.contenders import Bench
from fedgen.bench.networks import cifar_images, of_torch
from fedgen.bench.simulator import SimulatorBench, set_up
from fedgen.bench.timing import Timing, exponent
from fedgen.data.dataset import Dataset, from_arrays
from fedgen.errors import FedgenError

Point = tuple[int, Callable[[], SimulatorBench]]


def users(quick: bool) -> Iterator[Point]:
    """Users, of whom 10 are active."""
    for n in (20, 1000) if quick else (20, 100, 1000, 10_000):
        yield n, lambda n=n: SimulatorBench(set_up("fedavg", users=n, partition="iid"), "fedavg")  # type: ignore[misc]


def cohort(quick: bool) -> Iterator[Point]:
    """Active users, of 1,000."""
    for n in (10, 40) if quick else (10, 32, 100, 320, 1000):
        rounds = 3 if n <= 32 else 1
        yield (
            n,
            lambda n=n, rounds=rounds: SimulatorBench(  # type: ignore[misc]
                set_up("fedavg", users=1000, active=n, partition="iid"), "fedavg", rounds=rounds
            ),
        )


def runs(quick: bool) -> Iterator[Point]:
    """Runs at once, each with 10 active users: one round of all of them."""
    return _runs_of("fedavg", (1, 4) if quick else (1, 2, 4, 8, 16, 32))


def runs_of_fedgen(quick: bool) -> Iterator[Point]:
    """Runs of FedGen at once, likewise."""
    return _runs_of("fedgen", (1, 4) if quick else (1, 32))


def _runs_of(algorithm: str, numbers: Sequence[int]) -> Iterator[Point]:
    on_gpu = jax.default_backend() != "cpu"  # there, so many rounds in a call that the host's part is small
    for n in numbers:
        yield (
            n,
            lambda n=n: SimulatorBench(  # type: ignore[misc]
                set_up(algorithm, seeds=n), algorithm, tuple(range(n)), rounds=20 if on_gpu else 3 if n <= 4 else 1
            ),
        )


def steps(quick: bool) -> Iterator[Point]:
    """Local steps."""
    for n in (20, 40) if quick else (20, 50, 100, 200):
        yield n, lambda n=n: SimulatorBench(set_up("fedavg", local_steps=n), "fedavg", rounds=3 if n <= 50 else 1)  # type: ignore[misc]


def images(quick: bool) -> Iterator[Point]:
    """Pixels of an image, the same network but for its last layer."""
    for side in (14, 28) if quick else (14, 28, 56, 112):
        yield (
            side * side,
            lambda side=side: SimulatorBench(  # type: ignore[misc]
                set_up("fedavg", noise(side), model__channels=[6, 16], model__pool=False), "fedavg", rounds=1
            ),
        )


def resnet_clients(quick: bool) -> Iterator[Point]:
    """Active users with the built-in residual network, two steps each."""
    return _clients(quick, lambda: {"model": "resnet"})


def resnet18_clients(quick: bool) -> Iterator[Point]:
    """Active users with PyTorch's ResNet-18, two steps each."""
    return _clients(quick, lambda: {"network": of_torch("resnet18")})


def _clients(quick: bool, network: Callable[[], dict[str, Any]]) -> Iterator[Point]:
    data, which = cifar_images(8000), network()
    on_cpu = jax.default_backend() == "cpu"
    common = {"partition": "iid", "users": 100, "local_steps": 2, **which}
    for n in ((1, 2) if quick else (1, 2, 4)) if on_cpu else (10, 50, 100):
        yield (
            n,
            lambda n=n: SimulatorBench(set_up("fedavg", data, active=n, **common), "fedavg", rounds=1),  # type: ignore[misc]
        )


def noise(side: int, channels: int = 1) -> Dataset:
    """Images of noise: only their size matters here."""
    rng = np.random.default_rng(0)
    samples, tests = 4000, 100
    x = rng.integers(0, 256, (samples + tests, side, side, channels), dtype=np.uint8)
    y = np.arange(samples + tests) % 10
    return from_arrays(x[:samples], y[:samples], x[samples:], y[samples:], name="noise")


CURVES: dict[str, Callable[[bool], Iterator[Point]]] = {
    "users": users,
    "cohort": cohort,
    "runs": runs,
    "runs-of-fedgen": runs_of_fedgen,
    "steps": steps,
    "images": images,
    "resnet-clients": resnet_clients,
    "resnet18-clients": resnet18_clients,
}


def curve(name: str, bench: Bench) -> None:
    """Seconds of a round over the sizes, and the fitted exponent; each size is kept as soon as it is measured."""
    sizes: list[float] = []
    timings: list[Timing] = []
    for size, start in CURVES[name](bench.quick):
        bench.say(f"{name} {size}")
        timing = bench.attempt(f"{name} {size}", lambda start=start: _timing(start(), bench.quick))  # type: ignore[misc]
        if timing is None:
            continue
        sizes.append(float(size))
        timings.append(timing)
        bench.found.setdefault("scaling", {})[name] = {
            "title": (CURVES[name].__doc__ or "").splitlines()[0].rstrip("."),
            "size": sizes,
            "timing": timings,
            "exponent": exponent(sizes, [one.seconds for one in timings]) if len(sizes) > 1 else None,
        }
        bench.keep()
    if not sizes:
        raise FedgenError("none of its sizes could be measured")


def _timing(contender: SimulatorBench, quick: bool) -> Timing:
    contender.round()  # warm-up
    return Timing.of([contender.round() for _ in range(2 if quick else 5)])
