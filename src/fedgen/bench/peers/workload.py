"""What every contender trains on: the samples, each round's mini-batches and the first model, as NumPy arrays."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Workload(NamedTuple):
    """FedAvg, every draw made beforehand."""

    x: NDArray[np.uint8]  # [sample, row, column, channel]
    y: NDArray[np.int64]
    rows: NDArray[np.int64]  # [round, user of the cohort, step, sample of the batch]
    lr: NDArray[np.float64]  # one number
    model: dict[str, NDArray[Any]]  # PyTorch's names and shapes
    network: str = "paper-cnn"  # of `torch_networks`


def write_workload(path: Path, workload: Workload) -> None:
    """Into an .npz file, for the other processes."""
    arrays = {f"model/{name}": value for name, value in workload.model.items()}
    arrays |= {"x": workload.x, "y": workload.y, "rows": workload.rows, "lr": workload.lr}
    arrays["network"] = np.array(workload.network)
    np.savez(path, allow_pickle=False, **arrays)


def read_workload(path: str) -> Workload:
    """From such a file."""
    with np.load(path) as file:
        model = {name.removeprefix("model/"): file[name] for name in file.files if name.startswith("model/")}
        return Workload(file["x"], file["y"], file["rows"], file["lr"], model, str(file["network"]))
