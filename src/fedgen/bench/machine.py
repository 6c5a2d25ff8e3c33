"""The machine: what it is, and how fast it multiplies matrices."""

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from fedgen.models.dispatch import kernels_run_here
from fedgen.runs.summary import device
from fedgen.simulator.devices import available_cores
from fedgen.simulator.memory import machine_memory

COMPARED = ("torch", "flwr", "ray", "pfl")  # packages of the peers, whose versions are reported


def describe() -> dict[str, Any]:
    """What the figures were measured on."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else (float("nan"),)
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "memory_gb": round(machine_memory() / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in COMPARED if (version := _version(name))},
        "device": dict(device()),
        "kernels": "ours and XLA's" if kernels_run_here() else "XLA's",  # that small layers are trained by
        "load_before": round(load[0], 2),  # of other processes; above 0 the absolute times are too long
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


class MatrixPeak:
    """Float32 multiply-adds per second of all devices together, the best that XLA and NumPy's BLAS reach."""

    def __init__(self) -> None:
        accelerator = jax.default_backend() != "cpu"
        size, self._times = (8192, 4) if accelerator else (768, 4)
        devices = jax.devices()
        mesh = Mesh(np.array(devices), ("devices",))
        self._flops = 2.0 * size**3 * self._times * len(devices)

        def products(a: jax.Array) -> jax.Array:
            for _ in range(self._times):
                a = jnp.matmul(a, a, precision="highest") / size
            return a

        spec = PartitionSpec("devices")
        one_each = jax.shard_map(lambda a: products(a[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
        self._program = jax.jit(one_each)
        # Each device gets its own; made on the host, since one device may not hold all.
        ones = np.ones((len(devices), size, size), np.float32)
        self._matrices = jax.device_put(ones, NamedSharding(mesh, spec))
        self._host = np.ones((1024, 1024), np.float32)
        jax.block_until_ready(self._program(self._matrices))
        self._use_host = not accelerator

    def measure(self) -> float:
        """Seconds per GFLOP (the smaller of the two libraries')."""
        start = time.perf_counter()
        jax.block_until_ready(self._program(self._matrices))
        best = (time.perf_counter() - start) / (self._flops / 1e9)
        if self._use_host:
            start = time.perf_counter()
            _ = self._host @ self._host
            best = min(best, (time.perf_counter() - start) / (2 * 1024**3 / 1e9))
        return best


def cnn_round_flops(side: int, channels: tuple[int, ...], latent: int, classes: int, samples: int) -> float:
    """The multiply-adds (as 2 operations) that training the paper's CNN on so many samples needs at least.

    Each layer multiplies three times: forward, for the gradient of its weights and for that of its input, which
    the first layer does not need. BatchNorm, activations and the optimiser are not counted.
    """
    products, inputs, first = 0, 1, 0
    for width in channels:
        side = (side + 1) // 2
        layer = side * side * 9 * inputs * width
        first = first or layer
        products, inputs = products + layer, width
    products += side * side * inputs * latent + latent * classes
    return 2.0 * samples * (3 * products - first)
