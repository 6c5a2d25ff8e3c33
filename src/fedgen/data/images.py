"""Image files decoded once into one array on disk, which is memory-mapped from then on."""

import hashlib
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

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

Mode = Literal["L", "RGB", "I;16"]  # grey, colours, grey with 16 bits
_CHANNELS = {"L": 1, "RGB": 3, "I;16": 1}
_DEEP = "16 bits"  # whether an image's file has that many for each value
_DARK = 128  # colours of 16 bits whose upper bytes are all below this do not use all of them
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
) -> NDArray[Any]:
    """The images as [sample, height, width, channel], of 8 or 16 bits, from the cache where they are in it.

    `form` gives the height, width and mode that all of them get, and depends on the images and on `wanted`
    alone: it is not asked where the cache has the answer.
    """
    cached = cache_folder() / "images" / f"{_key(images, names, wanted)}.npy"
    if not cached.exists():
        height, width, mode = form()
        shape = (len(names), height, width, _CHANNELS[mode])
        bar = sys.stderr.isatty() and len(names) >= _BAR_FROM
        with replacing(cached) as temporary:
            array = open_memmap(temporary, "w+", np.uint16 if mode == "I;16" else np.uint8, shape)
            cut = False
            numbered = track(enumerate(names), title, len(names), console=Console(stderr=True), disable=not bar)
            for row, name in numbered:
                with _opened(images, name) as image:
                    cut = cut or (mode == "RGB" and image.info[_DEEP])  # Pillow keeps the upper 8
                    pixels = _pixels(image, mode, (width, height), f"image {name} of {images.place}")
                array[row] = pixels.reshape(shape[1:])
            if cut and array.max() < _DARK:
                raise FedgenError(
                    f"{images.place} has colours of 16 bits that do not use all of them, and only the upper 8 can be"
                    " read; store the images with 8 bits for each colour"
                )
            array.flush()
            del array
    return open_memmap(cached, "r")


def decode_one(images: Images, name: str, height: int, width: int, mode: Mode) -> NDArray[Any]:
    """One image as [height, width, channel], resized where it has another size."""
    with _opened(images, name) as image:
        return pixels_of(image, height, width, mode, f"image {name} of {images.place}")


def pixels_of(image: Image.Image, height: int, width: int, mode: Mode, what: str) -> NDArray[Any]:
    """An opened image as [height, width, channel], resized where it has another size; of no other depth."""
    deep = image.mode.startswith("I;16")
    if image.mode not in ("I", "F") and deep != (mode == "I;16"):
        wanted, found = (16, 8) if mode == "I;16" else (8, 16)
        raise FedgenError(
            f"{what} has {found} bits for each value, and the images of this run have {wanted}, whose scale is another;"
            f" store it with {wanted} bits, as the run's"
        )
    return _pixels(image, mode, (width, height), what).reshape(height, width, _CHANNELS[mode])


def dimensions(images: Images, name: str) -> tuple[int, int, Mode]:
    """An image's height and width, and whether it has colours, or 16 bits."""
    with _opened(images, name, whole=False) as image:
        deep: Mode = "I;16" if image.mode.startswith("I;16") else "RGB"
        return image.height, image.width, "L" if image.mode in ("1", "L") else deep


def _pixels(image: Image.Image, mode: Mode, size: tuple[int, int], what: str) -> NDArray[Any]:
    """The image's values in this mode and size; 16 bits stay 16."""
    if image.mode in ("I", "F"):
        raise FedgenError(
            f"{what} has values of 32 bits, of which nobody can tell the range; store images with 8 or 16 bits"
        )
    if mode != "I;16":
        return np.asarray(image.convert(mode).resize(size))
    values = np.asarray(image).astype(np.uint16)
    if image.size == size:
        return values
    resized = Image.fromarray(values.astype(np.float32)).resize(size)
    return np.clip(np.rint(np.asarray(resized)), 0, np.iinfo(np.uint16).max).astype(np.uint16)


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
        image.info[_DEEP] = ";16" in str(image.tile)  # how the file has its values, known before they are read only
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
