"""Small files in the official formats, made on the fly."""

import gzip
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedgen.errors import FedgenError


def error_of(act: Callable[[], object]) -> str | None:
    """Our own error that an act raises, or None; any other error comes through."""
    try:
        act()
    except FedgenError as error:
        return str(error)
    return None


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write_idx(path: Path, array: Any) -> Path:
    content = idx_bytes(np.asarray(array))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_pair(folder: Path, prefix: str, images: Any, labels: Any, ending: str = ".gz") -> None:
    write_idx(folder / f"{prefix}-images-idx3-ubyte{ending}", images)
    write_idx(folder / f"{prefix}-labels-idx1-ubyte{ending}", labels)


def image_bytes(shade: int, size: tuple[int, int] = (90, 100), kind: str = "JPEG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    colour: Any = (shade, 255 - shade, 10) if mode == "RGB" else shade
    Image.new(mode, size, colour).save(file, kind, quality=100, subsampling=0)
    return file.getvalue()


def write_celeba(folder: Path) -> Path:
    """CelebA's official layout: 6 celebrities with 10 images each and one with 3; every second image smiles."""
    folder.mkdir(parents=True)
    people = [person for person in range(6) for _ in range(10)] + [6] * 3
    names = [f"{number + 1:06d}.jpg" for number in range(len(people))]
    rows = [f"{name} {-1 if i % 3 else 1:2d} {-1 if i % 2 else 1:2d}" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(names)), "Male Smiling ", *rows]) + "\n")
    (folder / "identity_CelebA.txt").write_text("".join(f"{n} {100 + p}\n" for n, p in zip(names, people, strict=True)))
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(f"img_align_celeba/{name}", image_bytes(4 * number))
    return folder


def write_class_folders(folder: Path, counts: dict[str, int], size: tuple[int, int] = (9, 8), mode: str = "L") -> Path:
    for number, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for image in range(count):
            content = image_bytes(50 * number + image, size, "PNG", mode)
            (folder / name / f"{image}.png").write_bytes(content)
    return folder
