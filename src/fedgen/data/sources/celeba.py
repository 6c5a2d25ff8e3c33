"""CelebA (Liu, Luo, Wang and Tang 2015; for research only): faces with attributes, by celebrity.

As in LEAF (Caldas et al. 2018): celebrities with fewer than 5 images are left out, and of each
celebrity's images 90 % are for training and the rest for testing.
"""

from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Count
from fedgen.data.archives import stays_inside
from fedgen.data.dataset import Dataset, from_arrays
from fedgen.data.download import Offer, Remote
from fedgen.data.images import Images, Mode, decode, in_folder, in_zip
from fedgen.data.locate import MissingFileError, find
from fedgen.errors import FedgenError, unknown

_FORM: tuple[int, int, Mode] = (84, 84, "RGB")
_TRAIN = 0.9
_SPLIT_SEED = 0  # the split belongs to the dataset: it is the same in every run
_CELEBRITIES_PER_USER = 10  # the paper's grouping


def _drive(identifier: str) -> str:
    return f"https://drive.usercontent.google.com/download?id={identifier}&export=download&confirm=t"


OFFER = Offer(
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
    [
        Remote(_drive("0B7EVK8r0v71pZjFTYXZWM3FlRnM"), "img_align_celeba.zip", "00d2c5bc6d35e252742224ab0c1e8fcb"),
        Remote(_drive("0B7EVK8r0v71pblRyaVFSWGxPY0U"), "list_attr_celeba.txt", "75e246fa4810816ffd6ee81facbd244c"),
        Remote(_drive("1_ee_0u7vcNLOfNLegJRHmolfH5ICW-XS"), "identity_CelebA.txt", "32bd1bd63d3c78cd57e08160ec5ed1e2"),
    ],
)


def celeba(folder: Path, *, attribute: str = "Smiling", min_images: Count = 5) -> Dataset:
    """Faces, 84x84 in colour, of natural users; dataset.attribute names the label (Smiling, as the paper)."""
    names, labels = read_attributes(find(folder, "list_attr_celeba.txt"), attribute)
    identities_file = find(folder, "identity_CelebA.txt")
    identities = read_identities(identities_file)
    unnamed = next((name for name in names if name not in identities), None)
    if unnamed is not None:
        raise FedgenError(f"{identities_file} does not say who is on {unnamed}")
    people = np.array([identities[name] for name in names])
    train, test = split_by_person(people, min_images)
    if not len(test):
        raise FedgenError(f"{identities_file}: no celebrity has {max(min_images, 2)} images or more")
    order = np.concatenate([train, test])  # so that both parts are slices of the decoded file
    x = decode(_images(folder), [names[row] for row in order], str(_FORM), lambda: _FORM, "decoding CelebA")
    y, cut = labels[order], len(train)
    return from_arrays(
        x[:cut], y[:cut], x[cut:], y[cut:],
        name="celeba", user_train=people[train], group=_CELEBRITIES_PER_USER, scale="unit",
        class_names=(f"not {attribute}", attribute),
    )  # fmt: skip


def read_attributes(path: Path, attribute: str) -> tuple[list[str], NDArray[np.int32]]:
    """The image names, and for each whether it has the attribute, of list_attr_celeba.txt."""
    lines = list(_lines(path))
    if len(lines) < 2 or len(lines[0][1]) != 1:
        raise FedgenError(f"{path} must start with the number of images and a line of attribute names")
    count, attributes = lines[0][1][0], lines[1][1]
    if attribute not in attributes:
        problem = unknown("attribute", attribute, attributes)
        raise FedgenError(f"{path}: {problem}")
    column = attributes.index(attribute) + 1
    values = {"-1": 0, "1": 1}
    labels: dict[str, int] = {}
    for number, row in lines[2:]:
        if len(row) != len(attributes) + 1 or row[column] not in values:
            raise FedgenError(f"{path}, line {number}: a name and {len(attributes)} values of 1 or -1 are due")
        _check_name(path, number, row[0], labels)
        labels[row[0]] = values[row[column]]
    if count != str(len(labels)):
        raise FedgenError(f"{path} says it lists {count} images, but lists {len(labels)}")
    return list(labels), np.fromiter(labels.values(), np.int32, len(labels))


def read_identities(path: Path) -> dict[str, str]:
    """The person on each image, of identity_CelebA.txt."""
    people: dict[str, str] = {}
    for number, row in _lines(path):
        if len(row) != 2:
            raise FedgenError(f"{path}, line {number}: an image's name and a celebrity's number are due")
        _check_name(path, number, row[0], people)
        people[row[0]] = row[1]
    return people


def split_by_person(people: NDArray[np.str_], min_images: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training and for testing: 90 % and the rest of each person's, of people with enough images."""
    _, person, counts = np.unique(people, return_inverse=True, return_counts=True)
    shuffled = np.random.default_rng(_SPLIT_SEED).permutation(len(people))
    by_person = shuffled[np.argsort(person[shuffled], kind="stable")]
    rank = np.arange(len(people)) - np.repeat(np.cumsum(counts) - counts, counts)  # among the person's own
    own = counts[person[by_person]]
    enough = own >= max(min_images, 2)
    trains = rank < np.maximum(1, np.floor(_TRAIN * own))
    return np.sort(by_person[enough & trains]), np.sort(by_person[enough & ~trains])


def _images(folder: Path) -> Images:
    if (folder / "img_align_celeba").is_dir():
        return in_folder(folder / "img_align_celeba")
    if (folder / "img_align_celeba.zip").is_file():
        return in_zip(folder / "img_align_celeba.zip")
    raise MissingFileError(f"{folder} has neither img_align_celeba/ nor img_align_celeba.zip")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line number and the words of each line that is not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FedgenError(f"{path} cannot be read as text: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.split():
            yield number, words


def _check_name(path: Path, number: int, name: str, before: Container[str]) -> None:
    if not stays_inside(name) or "/" in name or "\\" in name or "\0" in name:
        raise FedgenError(f"{path}, line {number}: '{name}' is not the name of an image in the image folder")
    if name in before:
        raise FedgenError(f"{path}, line {number}: {name} is listed twice")
