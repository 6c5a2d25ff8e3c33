"""What the data tests share: the real files where they are, and small ones in the official formats."""

import gzip
import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Each test has a cache of its own, and no data folder from outside."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("FEDGEN_DATA", raising=False)
    return cache


@pytest.fixture
def shared_data() -> Path:
    """The folder of real files: $FEDGEN_TEST_DATA, or shared/data beside the checkout."""
    given = os.environ.get("FEDGEN_TEST_DATA")
    places = [Path(given)] if given else [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
    for place in places:
        if place.is_dir():
            return place
    pytest.skip("the real data files are not here (set FEDGEN_TEST_DATA to their folder)")


def idx_bytes(array) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()


def write_idx(path: Path, array) -> Path:
    content = idx_bytes(np.asarray(array))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def jpeg(shade: int, size=(90, 100)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (shade, 255 - shade, 10)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def celeba_folder(tmp_path) -> Path:
    """CelebA's official layout: 6 celebrities with 10 images and one with 3; even images smile."""
    folder = tmp_path / "celeba"
    folder.mkdir()
    people = [person for person in range(6) for _ in range(10)] + [6] * 3
    names = [f"{number + 1:06d}.jpg" for number in range(len(people))]
    rows = [f"{name} {-1 if i % 3 else 1:2d} {-1 if i % 2 else 1:2d}" for i, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(names)), "Male Smiling ", *rows]) + "\n")
    (folder / "identity_CelebA.txt").write_text("".join(f"{n} {100 + p}\n" for n, p in zip(names, people, strict=True)))
    with zipfile.ZipFile(folder / "img_align_celeba.zip", "w") as archive:
        for number, name in enumerate(names):
            archive.writestr(f"img_align_celeba/{name}", jpeg(3 * number))
    return folder
