"""Image files decoded once into one array on disk, which is memory-mapped from then on."""

import hashlib
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track

from fedgen.data.archives import open_zip
from fedgen.data.locate import MissingFileError
from fedgen.errors import FedgenError
from fedgen.files import cache_folder, replacing

Mode = Literal["L", "RGB"]
_BAR_FROM = 500  # images; fewer are there before a bar would be read


class Images(NamedTuple):
    """Image files by name, in a folder or in a zip."""

    place: Path
    read: Callable[[str], bytes]
    stamp: Callable[[str], str]  # changes when the file does


def in_folder(folder: Path) -> Images:
    """The images of a folder."""

    def stamp(name: str) -> str:
        status = (folder / name).stat()
        return f"{status.st_size} {status.st_mtime_ns}"

    return Images(folder, lambda name: (folder / name).read_bytes(), stamp)


def in_zip(path: Path) -> Images:
    """The images of a zip file, by their names without folders."""
    archive = open_zip(path)
    members = {info.filename.rsplit("/", 1)[-1]: info for info in archive.infolist() if not info.is_dir()}

    def stamp(name: str) -> str:
        return f"{members[name].file_size} {members[name].CRC}"

    return Images(path, lambda name: archive.read(members[name]), stamp)


def decode(
    images: Images, names: Sequence[str], wanted: str, form: Callable[[], tuple[int, int, Mode]], title: str
) -> NDArray[np.uint8]:
    """The images as [sample, height, width, channel], from the cache where they are in it.

    `form` gives the height, width and mode that all of them get, and depends on the images and on `wanted`
    alone: it is not asked where the cache has the answer.
    """
    cached = cache_folder() / "images" / f"{_key(images, names, wanted)}.npy"
    if not cached.exists():
        height, width, mode = form()
        shape = (len(names), height, width, len(mode))
        bar = sys.stderr.isatty() and len(names) >= _BAR_FROM
        with replacing(cached) as temporary:
            array = open_memmap(temporary, "w+", np.uint8, shape)
            numbered = track(enumerate(names), title, len(names), console=Console(stderr=True), disable=not bar)
            for row, name in numbered:
                array[row] = decoded(images, name, height, width, mode)
            array.flush()
            del array
    return open_memmap(cached, "r")


def decoded(images: Images, name: str, height: int, width: int, mode: Mode) -> NDArray[np.uint8]:
    """One image as [height, width, channel], resized where it has another size."""
    with _opened(images, name) as image:
        converted = _eight_bits(image, images, name).convert(mode).resize((width, height))
    return np.asarray(converted).reshape(height, width, len(mode))


def dimensions(images: Images, name: str) -> tuple[int, int, Mode]:
    """An image's height and width, and whether it has colours."""
    with _opened(images, name, whole=False) as image:
        return image.height, image.width, "L" if image.mode in ("1", "L") or image.mode.startswith("I;16") else "RGB"


def _eight_bits(image: Image.Image, images: Images, name: str) -> Image.Image:
    """The image with a byte for each value; Pillow itself would cut larger values off instead of scaling them."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise FedgenError(
            f"image {name} of {images.place} has values of 32 bits, of which nobody can tell the range;"
            " store images with 8 or 16 bits"
        )
    return image


def _opened(images: Images, name: str, *, whole: bool = True) -> Image.Image:
    try:
        content = images.read(name)
    except KeyError:
        raise MissingFileError(f"{images.place} has no image {name}") from None
    except FileNotFoundError:
        raise MissingFileError(f"{images.place / name} is not there") from None
    except Exception as error:
        raise FedgenError(f"image {name} of {images.place} cannot be read: {error}") from error
    try:
        image = Image.open(io.BytesIO(content))
        if whole:
            image.load()
    except Exception as error:  # the decoders raise whatever a damaged file makes them
        raise FedgenError(f"image {name} of {images.place} does not decode: {error}") from error
    return image


def _key(images: Images, names: Sequence[str], wanted: str) -> str:
    """A checksum of what the decoded array depends on."""
    # The stamps of a folder's files are their sizes and times, which files of another folder may share.
    place = images.place.resolve() if images.place.is_dir() else images.place.name
    digest = hashlib.sha256(f"{place} {wanted}\n".encode())
    for name in names:
        try:
            digest.update(f"{name} {images.stamp(name)}\n".encode())
        except (KeyError, FileNotFoundError):
            raise MissingFileError(f"{images.place} has no image {name}") from None
        except OSError as error:
            raise FedgenError(f"image {name} of {images.place} cannot be read: {error.strerror}") from error
    return digest.hexdigest()[:32]
