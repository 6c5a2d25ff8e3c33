"""What a sweep learns from and with, as checksums, so that a folder of other data or another network is recognised."""

from dataclasses import replace
from typing import Any
from zlib import crc32

import jax
import numpy as np

from fedgen.config import RunConfig
from fedgen.data.dataset import Dataset
from fedgen.data.sources import DATASETS, own_path
from fedgen.grid.runner import Material
from fedgen.models.adapt import as_model
from fedgen.simulator.devices import in_float32
from fedgen.sweeps.request import Request

_CHUNK = 4096  # samples at a time, so that a memory-mapped dataset stays on disk


def identified(request: Request, config: RunConfig, material: Material) -> Request:
    """The request with the checksums of one's own data, and of a network that was given as an object."""
    data = checksum(material.dataset(config)) if _is_own(request, config) else ""
    network = ""
    if material.model is not None:
        network = shapes(material.model, material.dataset(config))
    return replace(request, data=data, network=network)


def checksum(dataset: Dataset) -> str:
    """The CRC-32 of a dataset's samples and labels, and of its natural users where it has any."""
    total = 0
    users = [] if dataset.user_train is None else [dataset.user_train]
    for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test, *users):
        for start in range(0, len(array), _CHUNK):
            total = crc32(np.ascontiguousarray(array[start : start + _CHUNK]).tobytes(), total)
    return f"{total:08x}"


@in_float32
def shapes(network: Any, dataset: Dataset) -> str:
    """The CRC-32 of the names and shapes of a network's parameters and statistics."""
    sample = jax.ShapeDtypeStruct(dataset.x_train.shape[1:], dataset.x_train.dtype)
    made = jax.eval_shape(as_model(network, sample, dataset.classes).init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(made)
    text = "\n".join(f"{jax.tree_util.keystr(path)} {leaf.shape}" for path, leaf in leaves)
    return f"{crc32(text.encode()):08x}"


def _is_own(request: Request, config: RunConfig) -> bool:
    """Whether the data can be other than what its name says: all but the built-in datasets with their own users."""
    is_object_or_path = "dataset" in request.own or own_path(config.dataset) is not None
    return is_object_or_path or bool(config.user_file) or bool(DATASETS.origin(config.dataset))
