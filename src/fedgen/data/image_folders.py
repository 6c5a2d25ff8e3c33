"""Folders of images, one for each class; perhaps within a folder for training and one for testing."""

from pathlib import Path

import numpy as np

from fedgen.data.images import Images, Mode, decode, dimensions, in_folder
from fedgen.data.parts import TEST_WORDS, Parts, divided
from fedgen.errors import FedgenError

IMAGE_ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}

Labelled = list[tuple[str, str]]  # an image's path in the folder, and its class


def read_image_folders(folder: Path, size: int | None, *, whole: bool) -> Parts:
    """Images in CLASS, divided here; or in train/CLASS, and in test/CLASS or val/CLASS."""
    tests = [word for word in TEST_WORDS if (folder / word).is_dir()]
    notes: tuple[str, ...] = ()
    if (folder / "train").is_dir() and tests:
        classes = _class_names(folder / "train", whole)
        extra = sorted(set(_class_names(folder / tests[0], False)) - set(classes))
        if extra and whole:
            raise FedgenError(f"{folder / tests[0] / extra[0]} is a class that {folder / 'train'} does not have")
        train, test = _labelled(folder, "train"), _labelled(folder, tests[0])
        classes = sorted({*classes, *extra})
        if len(tests) > 1:
            notes = (f"{folder}: models are tested on {tests[0]}; {', '.join(tests[1:])} is not used",)
    else:
        classes = _class_names(folder, whole)
        found = _labelled(folder, "")
        rows, held = divided(np.array([name for _, name in found]), str(folder), whole=whole)
        train, test = [found[row] for row in rows], [found[row] for row in held]
    y = np.array([classes.index(name) for _, name in (*train, *test)], np.int32)
    files = [file for file, _ in (*train, *test)]
    x = decoded(in_folder(folder), files, size, f"decoding {folder.name}")
    cut = len(train)
    return Parts(x[:cut], y[:cut], x[cut:], y[cut:], None, tuple(classes), notes)


def has_images(folder: Path) -> bool:
    """Whether a folder has images in folders, or in folders of `train`."""
    places = [entry for place in (folder, folder / "train") if place.is_dir() for entry in place.iterdir()]
    return any(file.suffix.lower() in IMAGE_ENDINGS for place in places if place.is_dir() for file in place.iterdir())


def decoded(images: Images, names: list[str], size: int | None, title: str) -> np.ndarray:
    """All these images in the form that they have in common, or resized to squares of this size."""
    return decode(images, names, f"size {size}, bits as stored", lambda: _common_form(images, names, size), title)


def _class_names(folder: Path, whole: bool) -> list[str]:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if len(names) < (2 if whole else 1):
        raise FedgenError(
            f"{folder} has {len(names)} folders of images; a dataset has a folder for each class, and at least two"
        )
    return names


def _labelled(folder: Path, part: str) -> Labelled:
    """The images of each class by their paths in the folder, with their class."""
    found: Labelled = []
    for name in _class_names(folder / part, False):
        place = folder / part / name
        files = sorted(entry.name for entry in place.iterdir() if entry.suffix.lower() in IMAGE_ENDINGS)
        if not files:
            raise FedgenError(f"class folder {place} holds no images")
        found += [(str(Path(part, name, file)), name) for file in files]
    return found


def _common_form(images: Images, names: list[str], size: int | None) -> tuple[int, int, Mode]:
    """The height, width and mode that all images get; without a wanted size they must have the same."""
    forms = [dimensions(images, name) for name in names]
    mode = _common_mode(images, names, [form[2] for form in forms])
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


def _common_mode(images: Images, names: list[str], modes: list[Mode]) -> Mode:
    """Colours where any image has them; images of 16 bits only among themselves."""
    if "I;16" not in modes:
        return "RGB" if "RGB" in modes else "L"
    other = next((name for name, mode in zip(names, modes, strict=True) if mode != "I;16"), None)
    if other is not None:
        deep = names[modes.index("I;16")]
        raise FedgenError(
            f"{images.place / deep} is grey with 16 bits and {other} is not; store all images with 8 bits, or all so"
        )
    return "I;16"
