"""The user's own data: an .npz file, a folder of idx files, or a folder of images with a folder for each class."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Count
from fedgen.data.dataset import Dataset, Scale, from_arrays
from fedgen.data.idx import check_pair, read_idx
from fedgen.data.images import Images, Mode, decode, dimensions, in_folder
from fedgen.data.npz import read_npz
from fedgen.errors import FedgenError

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}
_IDX = re.compile(r"(?P<prefix>.*)-images-idx(?P<dimensions>[34])-ubyte(\.gz)?")
_TEST = 0.2  # of each class, where the folder does not say which images are for testing
_SPLIT_SEED = 0  # the split belongs to the dataset: it is the same in every run


def own(path: Path, *, size: Count | None = None, scale: Scale = "signed") -> Dataset:
    """One's own data: an .npz file, a folder of idx files, or a class-per-folder image directory."""
    if not path.exists():
        raise FedgenError(f"dataset {path} does not exist; give a dataset's name, a folder or an .npz file")
    if path.is_file():
        if path.suffix != ".npz":
            raise FedgenError(f"dataset {path} is neither a folder nor an .npz file")
        arrays = read_npz(path, _ARRAYS, ("user_train",))
        users = arrays.get("user_train")
        return _complete(path, [arrays[name] for name in _ARRAYS], users, scale)
    if any(_IDX.fullmatch(file.name) for file in path.iterdir()):
        return _complete(path, [*_idx_part(path, ("train",)), *_idx_part(path, ("test", "t10k"))], None, scale)
    return _complete(path, _image_folders(path, size), None, scale)


def _complete(path: Path, parts: list[NDArray[Any]], users: NDArray[Any] | None, scale: Scale) -> Dataset:
    dataset = from_arrays(*parts, name=str(path), user_train=users, scale=scale)
    present = np.unique(dataset.y_train)
    if len(present) < dataset.classes:
        empty = np.flatnonzero(present != np.arange(len(present)))[0]
        raise FedgenError(
            f"{path}: label {empty} has no training samples; labels must be 0 to {dataset.classes - 1} without gaps"
        )
    return dataset


def _idx_part(folder: Path, words: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The images and labels of the one pair of files whose name has one of the words."""
    matches = [_IDX.fullmatch(file.name) for file in sorted(folder.iterdir())]
    fitting = [match for match in matches if match and any(word in match["prefix"] for word in words)]
    if len(fitting) != 1:
        raise FedgenError(
            f"{folder} has {len(fitting)} files named *{words[0]}*-images-idx3-ubyte (or .gz); exactly one is due"
        )
    match = fitting[0]
    images_file = folder / match.string
    labels_file = folder / match.string.replace(f"-images-idx{match['dimensions']}-", "-labels-idx1-")
    images, labels = read_idx(images_file, int(match["dimensions"])), read_idx(labels_file, 1)
    check_pair(images_file, len(images), labels_file, len(labels))
    return images if images.ndim == 4 else images[..., None], labels


def _image_folders(folder: Path, size: int | None) -> list[NDArray[Any]]:
    """x_train, y_train, x_test, y_test of images in train/CLASS and test/CLASS, or in CLASS and then divided here."""
    images = in_folder(folder)
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    if divided:
        classes = _class_names(folder / "train")
        extra = set(_class_names(folder / "test")) - set(classes)
        if extra:
            raise FedgenError(f"{folder / 'test' / min(extra)} is a class that {folder / 'train'} does not have")
        train = _labelled(folder, "train", classes)
        test = _labelled(folder, "test", [name for name in classes if (folder / "test" / name).is_dir()], classes)
    else:
        train, test = _divided(folder, _class_names(folder))
    names = [name for name, _ in (*train, *test)]
    x = decode(images, names, f"size {size}", lambda: _common_form(images, names, size), f"decoding {folder.name}")
    y = np.array([label for _, label in (*train, *test)], np.int32)
    cut = len(train)
    return [x[:cut], y[:cut], x[cut:], y[cut:]]


def _class_names(folder: Path) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < 2:
        raise FedgenError(
            f"{folder} has {len(names)} folders of images; a dataset has a folder for each class, and at least two"
        )
    return names


def _labelled(folder: Path, part: str, names: list[str], classes: list[str] | None = None) -> list[tuple[str, int]]:
    """The images of each class by their paths in the folder, with their labels."""
    numbers = {name: label for label, name in enumerate(classes or names)}
    found = []
    for name in names:
        place = folder / part / name
        files = sorted(entry.name for entry in place.iterdir() if entry.suffix.lower() in IMAGE_ENDINGS)
        if not files:
            raise FedgenError(f"class folder {place} holds no images")
        found += [(str(Path(part, name, file)), numbers[name]) for file in files]
    return found


def _divided(folder: Path, names: list[str]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    rng = np.random.default_rng(_SPLIT_SEED)
    train: list[tuple[str, int]] = []
    test: list[tuple[str, int]] = []
    for name in names:
        found = _labelled(folder, "", [name], names)
        if len(found) == 1:
            raise FedgenError(f"class folder {folder / name} holds one image; one to train and one to test on are due")
        held = set(rng.permutation(len(found))[: max(1, round(_TEST * len(found)))].tolist())
        for number, item in enumerate(found):
            (test if number in held else train).append(item)
    return train, test


def _common_form(images: Images, names: list[str], size: int | None) -> tuple[int, int, Mode]:
    """The height, width and mode that all images get; without a wanted size they must have the same."""
    forms = [dimensions(images, name) for name in names]
    mode: Mode = "RGB" if any(form[2] == "RGB" for form in forms) else "L"
    if size is not None:
        return size, size, mode
    height, width, _ = forms[0]
    for name, form in zip(names, forms, strict=True):
        if form[:2] != (height, width):
            raise FedgenError(
                f"{images.place / name} is {form[0]}x{form[1]}, but {names[0]} {height}x{width};"
                " make them alike, or have all resized with --set dataset.size=N"
            )
    return height, width, mode
