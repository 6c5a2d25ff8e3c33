"""From what a user has at hand (arrays, images, files) to samples as the run stored them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedgen.config import RunConfig
from fedgen.data.arrow_files import read_arrow_samples
from fedgen.data.csv_files import read_csv_samples
from fedgen.data.dataset import DataForm
from fedgen.data.image_folders import IMAGE_ENDINGS
from fedgen.data.images import Images, Mode, decode_one, in_folder, pixels_of
from fedgen.data.labels import labels_of
from fedgen.data.npz import read_npz
from fedgen.data.tables import Columns, dropped, shown_names
from fedgen.errors import FedgenError

_LABELS = ("label", "labels", "class", "target", "y")  # names of the column with the labels of a CSV file


class Inputs(NamedTuple):
    """Samples as stored, what each is called, and their labels where the files say them."""

    names: list[str]
    x: NDArray[Any]
    labels: list[Any] | None = None  # as written: text is a class's name or its number, a number is its number


def some_samples(form: DataForm, count: int) -> NDArray[Any]:
    """Samples at random, as the run stored its own, to try a network with."""
    rng, kept = np.random.default_rng(0), np.dtype(form.dtype)
    shape = (count, *form.sample)
    if kept.kind in "iu":  # of tokens, which may be few, the first two
        return rng.integers(0, form.max_value + 1 if kept.kind == "u" else 2, shape).astype(kept)
    return rng.normal(size=shape).astype(np.float32)


def samples_of(x: Any, form: DataForm) -> NDArray[Any]:
    """Samples as the run stored them, from an array of them, a single one, or images (files or PIL's)."""
    if isinstance(x, str | Path | Image.Image):
        x = [x]
    if isinstance(x, Sequence) and x and all(isinstance(one, str | Path | Image.Image) for one in x):
        return np.stack([_image(one, form) for one in x])
    return _typed(_shaped(np.asarray(x), form), form)


def read_inputs(paths: Sequence[Path], form: DataForm, label: str = "", columns: Columns = Columns()) -> Inputs:  # noqa: B008 (it is frozen)
    """The samples in these files and folders.

    In a table `label` names the column of labels; `columns` are those of the run's own table, left out if present.
    """
    parts = [_read(path, form, label, columns) for path in paths]
    labels = [one for part in parts for one in part.labels or ()]
    names = [name for part in parts for name in part.names]
    known = labels if labels and all(part.labels is not None for part in parts) else None
    return Inputs(names, np.concatenate([part.x for part in parts]), known)


def numbers_of(labels: Iterable[Any], form: DataForm) -> NDArray[np.int64]:
    """Labels as numbers, which count the classes from 0; text is a class's name or, where none is one, its number."""
    given = list(labels)
    names = {name: number for number, name in enumerate(form.class_names)}
    counts = {str(number): number for number in range(len(names))}
    texts = [one for one in given if isinstance(one, str)]
    by_name = any(one in names or _plain(one) in names for one in texts)
    found = []
    for label in given:
        known = names if by_name and isinstance(label, str) else counts
        number = known.get(label) if isinstance(label, str) else None
        number = known.get(_plain(label)) if number is None else number
        if number is None:
            shown = ", ".join(form.class_names[:10]) + (" …" if len(form.class_names) > 10 else "")
            raise FedgenError(f"there is no class '{label}'; the run's classes are {shown}")
        found.append(number)
    return np.array(found, np.int64)


def columns_of(config: RunConfig) -> Columns:
    """What the columns of a run's own table are, where it was one."""
    return Columns(config.label, config.user, dropped(config.of("dataset").get("drop")))


def _plain(label: Any) -> str:
    """A label as text; 3.0 in a table of numbers is 3."""
    try:
        number = float(label)
    except (TypeError, ValueError):
        return str(label)
    return str(int(number)) if number.is_integer() else str(label)


def _read(path: Path, form: DataForm, label: str, columns: Columns) -> Inputs:
    if not path.exists():
        raise FedgenError(
            f"{path} does not exist; give images, a folder of images, or an .npz, .npy, .csv or .parquet file"
        )
    if path.is_dir():
        return _folder(path, form)
    ending = path.suffix.lower()
    if ending in IMAGE_ENDINGS:
        return Inputs([str(path)], _image(path, form)[None])
    if ending in (".npz", ".npy"):
        return _arrays(path, form)
    if ending in (".csv", ".tsv", ".parquet", ".arrow"):
        return _table(path, form, label, columns)
    raise FedgenError(
        f"{path} is neither an image nor a folder, and no .npz, .npy, .csv, .tsv, .parquet or .arrow file"
    )


def _folder(path: Path, form: DataForm) -> Inputs:
    """All images of a folder and those below it; in a folder for each class, these are the labels."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_ENDINGS and file.is_file())
    if not files:
        raise FedgenError(f"{path} holds no images")
    x = np.stack([_image(file, form) for file in files])
    labels = [file.parent.name for file in files]
    known = all(label in form.class_names for label in labels)
    return Inputs([str(file) for file in files], x, labels if known else None)


def _arrays(path: Path, form: DataForm) -> Inputs:
    labels = None
    if path.suffix.lower() == ".npy":
        try:
            x = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise FedgenError(f"{path} cannot be read: {error}") from error
    else:
        arrays = read_npz(path, (), ("x", "y", "x_test", "y_test"))
        if not {"x", "x_test"} & arrays.keys():
            raise FedgenError(f"{path} has neither an array x nor x_test; save the samples as x (and labels as y)")
        x = arrays["x"] if "x" in arrays else arrays["x_test"]
        given = arrays.get("y" if "x" in arrays else "y_test")
        labels = None if given is None else labels_of(np.atleast_1d(given)).tolist()
    x = samples_of(x, form)
    if labels is not None and len(labels) != len(x):
        raise FedgenError(f"{path} has {len(x)} samples but {len(labels)} labels")
    return Inputs([f"{path}[{row}]" for row in range(len(x))], x, labels)


def _table(path: Path, form: DataForm, label: str, columns: Columns) -> Inputs:
    """A CSV, Parquet or Arrow file with a sample in each row: its numbers, or an image."""

    def choose(names: Sequence[str], named: bool) -> tuple[Sequence[str], str | None]:
        labels = _label_column(path, names if named else (), label, columns.label, form.features)
        return _features(path, names, {labels, columns.user, *columns.drop}, form, named), labels

    def choose_with_images(names: Sequence[str], images: Sequence[str]) -> tuple[Sequence[str], str | None]:
        left = [name for name in images if name not in columns.drop]
        if not left or _mode(form) is None:
            return choose(names, True)
        if len(left) > 1:
            raise FedgenError(f"{path} has several columns of images ({', '.join(left)}); leave in the one to predict")
        return left, _label_column(path, names, label, columns.label, left)

    x: NDArray[np.float64] | list[bytes]
    if path.suffix.lower() in (".csv", ".tsv"):
        x, labels = read_csv_samples(path, choose)
    else:
        x, labels = read_arrow_samples(path, choose_with_images)
    names = [f"{path}[{row}]" for row in range(len(x))]
    if isinstance(x, list):
        files = dict(zip(names, x, strict=True))
        images = Images(path, files.__getitem__, str)
        return Inputs(names, np.stack([_decoded(images, name, form) for name in names]), labels)
    x = x.reshape(-1, *form.sample)
    whole = np.dtype(form.dtype).kind in "iu" and np.all(x == np.round(x))
    samples = samples_of(x.astype(np.int64) if whole else x, form)
    return Inputs(names, samples, labels)


def _features(path: Path, names: Sequence[str], others: set[str | None], form: DataForm, named: bool) -> Sequence[str]:
    """The columns of a sample: by name where the run's names are known, else all but the `others`."""
    if named and form.features:
        missing = next((name for name in form.features if name not in names), None)
        if missing is not None:
            raise FedgenError(
                f"{path} has no column '{missing}', which the run's samples have; its columns are {shown_names(names)}"
            )
        return form.features
    left = [name for name in names if not named or name not in others]
    due = int(np.prod(form.sample))
    if len(left) != due:
        raise FedgenError(f"{path}: {len(left)} columns of numbers, and a sample of this run has {due}")
    return left


def _label_column(path: Path, names: Sequence[str], asked: str, of_run: str, features: Sequence[str]) -> str | None:
    """The column of labels: that asked for, else the run's, else one with a usual name, where there is one."""
    if asked:
        if asked not in names:
            raise FedgenError(f"{path} has no column '{asked}'; its columns are {shown_names(names) or 'unnamed'}")
        return asked
    if of_run in names:
        return of_run
    return next((name for name in names if name.lower() in _LABELS and name not in features), None)


def _image(image: str | Path | Image.Image, form: DataForm) -> NDArray[Any]:
    """An image as a sample: of the run's size, grey or in colour."""
    if not isinstance(image, Image.Image):
        path = Path(image)
        return _decoded(in_folder(path.parent), path.name, form)
    mode = _checked_mode(form)
    height, width = form.sample[:2]
    return pixels_of(image, height, width, mode, f"an image of mode {image.mode}").reshape(form.sample)


def _decoded(images: Images, name: str, form: DataForm) -> NDArray[Any]:
    mode = _checked_mode(form)
    height, width = form.sample[:2]
    return decode_one(images, name, height, width, mode).reshape(form.sample)


def _checked_mode(form: DataForm) -> Mode:
    mode = _mode(form)
    if mode is None:
        raise FedgenError(
            f"this run took samples of {form.dtype} and shape {form.sample}, not images; give arrays of that form"
        )
    return mode


def _mode(form: DataForm) -> Mode | None:
    """What the run's images are, where its samples are images."""
    channels = (*form.sample, 1)[2] if len(form.sample) in (2, 3) else 0
    modes: dict[tuple[str, int], Mode] = {("uint8", 1): "L", ("uint8", 3): "RGB", ("uint16", 1): "I;16"}
    return modes.get((form.dtype, channels))


def _shaped(x: NDArray[Any], form: DataForm) -> NDArray[Any]:
    """With a leading sample axis, and with the last axis of length 1 that grey images may lack."""
    sample = form.sample
    grey = sample[:-1] if len(sample) == 3 and sample[-1] == 1 else sample
    if x.shape in (sample, grey):
        x = x[None]
    if x.ndim < 1 or x.shape[1:] not in (sample, grey):
        raise FedgenError(f"samples of this run have shape {sample}; an array of {x.shape} is not [n, *{list(sample)}]")
    return x.reshape(-1, *sample)


def _typed(x: NDArray[Any], form: DataForm) -> NDArray[Any]:
    """Of the run's type, where that changes no value."""
    kept, given = np.dtype(form.dtype), x.dtype.kind
    if given not in "iuf":
        raise FedgenError(f"samples must be numbers, not {x.dtype}")
    if kept.kind == "f":
        if x.dtype == np.uint8:
            raise FedgenError("this run took numbers of float32, not bytes; give them as they were, .astype('float32')")
        return x.astype(kept)
    if kept == np.uint16 and x.dtype == np.uint8:
        raise FedgenError(
            "this run took samples of 16 bits, and these are bytes, whose scale is another; give them as they were,"
            " of uint16"
        )
    least, most = np.iinfo(kept).min, np.iinfo(kept).max
    if given == "f" or (x.size and (x.min() < least or x.max() > most)):
        found = f" from {x.min():g} to {x.max():g}" if x.size else ""
        raise FedgenError(
            f"this run took whole numbers, {least} to {most}, and scales them itself; these are {x.dtype}{found}"
        )
    return x.astype(kept)
