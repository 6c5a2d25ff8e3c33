"""The idx format of MNIST and EMNIST: a magic number, the dimensions, then unsigned bytes."""

import gzip
import re
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedgen.data.locate import find
from fedgen.data.parts import Parts
from fedgen.errors import FedgenError

_UNSIGNED_BYTE = 8
_IDX = re.compile(r"(?P<prefix>.*)-images-idx(?P<dimensions>[34])-ubyte(\.gz)?")


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """The array of an idx file; it must have this many dimensions. A plain (not gzipped) file is memory-mapped."""
    try:
        content = _content(path)
    except (OSError, EOFError, zlib.error) as error:
        raise FedgenError(f"{path} cannot be read as an idx file: {error}") from error
    header = 4 + 4 * dimensions
    start = content[:header].tobytes()
    magic = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if len(start) < header or start[:4] != magic:
        raise FedgenError(
            f"{path} is not an idx file of {dimensions}-dimensional unsigned bytes: it starts with"
            f" {start[:4].hex() or 'nothing'}, not {magic.hex()}"
        )
    shape = struct.unpack(f">{dimensions}I", start[4:])
    expected = int(np.prod(shape, dtype=object))
    if len(content) - header != expected:
        raise FedgenError(
            f"{path} says it holds {'x'.join(map(str, shape))} bytes, but {len(content) - header} follow its header"
        )
    return content[header:].reshape(shape)


def _content(path: Path) -> NDArray[np.uint8]:
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"\x1f\x8b":
        return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)
    return np.memmap(path, np.uint8, "r") if start else np.empty(0, np.uint8)


def read_labelled(
    folder: Path, prefix: str, classes: int, *, first: int = 0
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images [sample, height, width] and labels from 0 of a pair of official files; their labels start at `first`."""
    images_file = find(folder, f"{prefix}-images-idx3-ubyte")
    labels_file = find(folder, f"{prefix}-labels-idx1-ubyte")
    images, labels = read_idx(images_file, 3), read_idx(labels_file, 1)
    check_pair(images_file, len(images), labels_file, len(labels))
    wrong = labels[(labels < first) | (labels >= first + classes)]
    if len(wrong):
        raise FedgenError(f"{labels_file} has label {wrong[0]}; its labels must be {first} to {first + classes - 1}")
    return images, labels - np.uint8(first)


def check_pair(images_file: Path, images: int, labels_file: Path, labels: int) -> None:
    """Refuse images and labels of different number, or none at all."""
    if images != labels:
        raise FedgenError(f"{images_file} holds {images} images, but {labels_file} holds {labels} labels")
    if not images:
        raise FedgenError(f"{images_file} holds no images")


def is_idx(folder: Path) -> bool:
    """Whether a folder has images as idx files."""
    return any(_IDX.fullmatch(file.name) for file in folder.iterdir())


def read_idx_parts(folder: Path) -> Parts:
    """The pair of files for training, and the pair for testing, of a folder."""
    return Parts(*_pair(folder, ("train",)), *_pair(folder, ("test", "t10k")))


def _pair(folder: Path, words: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
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
