"""A site's own samples. Unlike a whole dataset, they may lack labels, or a test set."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import as_int32
from fedgen.data.npz import read_npz
from fedgen.data.sources import load
from fedgen.errors import FedgenError
from fedgen.federate.settings import SiteSettings, TaskSettings
from fedgen.registry import importable


class SiteData(NamedTuple):
    """Samples and labels to train on, and to test on (perhaps none)."""

    x: NDArray[Any]
    y: NDArray[np.int32]
    x_test: NDArray[Any]
    y_test: NDArray[np.int32]


def load_site_data(settings: SiteSettings, task: TaskSettings, folder: Path) -> SiteData:
    """Load the data that `site.toml` names, and check it against the shape and type that all sites have in common."""
    path = folder / settings.data  # an absolute path is taken as it is
    shape = settings.sample or task.sample
    if path.suffix == ".npz":
        arrays = read_npz(path, ("x_train", "y_train"), ("x_test", "y_test"))
        x, y = arrays["x_train"], arrays["y_train"]
        x_test = arrays.get("x_test", x[:0])
        y_test = arrays.get("y_test", y[:0])
    else:
        name = str(path) if path.exists() else settings.data
        with importable(folder):
            dataset = load(name, **settings.data_options)
        x, y, x_test, y_test = dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test
    train = checked_samples(x, y, shape, task, f"{path}: training")
    test = checked_samples(x_test, y_test, shape, task, f"{path}: test")
    if not len(train[0]):
        raise FedgenError(f"{path} has no training samples")
    return SiteData(*train, *test)


def checked_samples(
    x: NDArray[Any], y: NDArray[Any], shape: tuple[int, ...], task: TaskSettings, what: str
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Samples and labels, after checking them against the task."""
    x = checked_shape(x, shape, task, what)
    labels = np.asarray(y)
    if labels.shape != (len(x),) or not np.issubdtype(labels.dtype, np.integer):
        raise FedgenError(f"{what} labels must be {len(x)} whole numbers, one for each sample")
    if len(labels) and (labels.min() < 0 or labels.max() >= task.classes):
        raise FedgenError(
            f"{what} labels are {labels.min()} to {labels.max()}; the federation has 0 to {task.classes - 1}"
        )
    return x, labels.astype(np.int32)


def checked_shape(x: NDArray[Any], shape: tuple[int, ...], task: TaskSettings, what: str) -> NDArray[Any]:
    """Samples of the required shape and type; a missing channel axis is added.

    Other floats become float32, and other whole numbers int32, where that is the type.
    """
    x = np.asarray(x)
    if x.shape[1:] == shape[:-1] and shape[-1] == 1:
        x = x[..., None]
    if x.shape[1:] != shape:
        raise FedgenError(f"{what} samples are of shape {x.shape[1:]}, not {shape}")
    if task.dtype == "float32" and np.issubdtype(x.dtype, np.floating):
        x = x.astype(np.float32, copy=False)
    if task.dtype == "int32" and np.issubdtype(x.dtype, np.integer):
        x = as_int32(x, what)
    if x.dtype != task.dtype:
        raise FedgenError(f"{what} samples are of type {x.dtype}; the federation's are {task.dtype}")
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise FedgenError(f"{what} samples have values that are NaN or infinite; leave them out")
    return x
