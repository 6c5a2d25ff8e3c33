"""A site's own samples. Unlike a whole dataset, they may lack labels, or a test set."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import as_int32, channels_last, largest_of
from fedgen.data.labels import labels_of, number_words, renumbered
from fedgen.data.parts import Parts
from fedgen.data.sources import load, own_path
from fedgen.data.sources.own import Reading, own, read_parts
from fedgen.errors import FedgenError, unknown
from fedgen.federate.schema import SiteSettings, TaskSettings
from fedgen.registry import importable, options_of


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
    parts = _read(settings, path, folder)
    loaded = []
    for what, x, y in (("training", parts.x_train, parts.y_train), ("test", parts.x_test, parts.y_test)):
        if parts.class_names:
            y = renumbered(
                y, parts.class_names, task.names, str(path),
                "rename it, or add it to class_names in task.toml, which all sites share (`fedgen federate init"
                " --classes cat,dog,emu`)",
            )  # fmt: skip
        if x.shape[1:] != shape:
            x = channels_last(np.asarray(x), settings.channels, f"{path}: {what}")
        loaded.append(checked_samples(x, y, shape, task, f"{path}: {what}"))
    if not len(loaded[0][0]):
        raise FedgenError(f"{path} has no training samples")
    return SiteData(*loaded[0], *loaded[1])


def _read(settings: SiteSettings, path: Path, folder: Path) -> Parts:
    """The site's samples, with the labels and class names that they have there; or those of a dataset by its name."""
    if path.exists() or own_path(settings.data) is not None:
        known = [name for name in options_of(own) if name != "scale"]  # which the federation has
        if odd := sorted(set(settings.data_options) - set(known)):
            raise unknown("option in data_options", odd[0], known)
        return read_parts(path, Reading(settings.label), whole=False, **settings.data_options)
    with importable(folder):
        data = load(settings.data, **settings.data_options)
    return Parts(data.x_train, data.y_train, data.x_test, data.y_test)


def checked_samples(
    x: NDArray[Any], y: NDArray[Any], shape: tuple[int, ...], task: TaskSettings, what: str
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Samples and labels, after checking them against the task."""
    x = checked_shape(x, shape, task, what)
    labels = labels_of(y)
    if labels.dtype.kind == "U":
        (labels,), names = number_words([labels], what)
        labels = renumbered(labels, names, task.names, what, "name the classes as the federation does")
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
    white = task.form.max_value
    if x.dtype.kind == "u" and (largest := largest_of(x)) > white:
        raise FedgenError(f"{what} samples have values up to {largest:,}; the federation's max_value is {white:,}")
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise FedgenError(f"{what} samples have values that are NaN or infinite; leave them out")
    return x
