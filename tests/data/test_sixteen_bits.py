"""Samples of 16 bits are scaled by the range that they use, alike everywhere, and it is said."""

import io
import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedgen
from fedgen.config import resolve
from fedgen.data.dataset import Dataset
from fedgen.data.sources import load
from fedgen.data.sources.own import Reading
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.runs.task import PREPARE
from fedgen.simulator.run import run
from fedgen.simulator.setup import prepare
from helpers import SMALL, play


def write_tiffs(folder: Path, largest: int, kind: str = "tif") -> np.ndarray:
    """Ten images of 16 bits in two classes, whose values use the range evenly."""
    images = np.linspace(0, largest, 10 * 64).round().astype(np.uint16).reshape(10, 8, 8)
    for number, image in enumerate(images):
        place = folder / ("a" if number % 2 else "b")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.{kind}")
    return images


def inputs(data: Dataset) -> np.ndarray:
    """What a model gets of the training samples."""
    return np.asarray(PREPARE[data.scale](data.x_train, white=data.max_value))


@pytest.mark.parametrize("kind", ["tif", "png"])
def test_twelve_bits_in_files_of_sixteen(tmp_path: Path, kind: str) -> None:
    images = write_tiffs(tmp_path, 4000, kind)
    data = load(str(tmp_path))
    assert data.x_train.dtype == np.uint16
    assert data.max_value == 4095
    assert set(np.unique(data.x_train)) <= set(np.unique(images))
    assert len(np.unique(data.x_train)) == 8 * 64, "every level is kept: 8 images of 64 values"
    assert "values up to 4,000, so they are scaled by 4,095, the largest of 12 bits" in data.notes[0]
    assert np.allclose(inputs(data), data.x_train / 4095 * 2 - 1, atol=1e-6)


def test_all_sixteen_bits(tmp_path: Path) -> None:
    write_tiffs(tmp_path, 65535)
    assert load(str(tmp_path)).max_value == 65535


def test_the_range_can_be_said(tmp_path: Path) -> None:
    write_tiffs(tmp_path, 4000)
    data = load(str(tmp_path), reading=Reading(max_value=16383))
    assert (data.max_value, data.notes) == (16383, ())
    with pytest.raises(FedgenError, match="max_value must be less than or equal to 65535"):
        resolve({"dataset": str(tmp_path), "max_value": 70000})


def test_resizing_keeps_the_bits(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(np.full((10, 12), 4000 + number, np.uint16)).save(tmp_path / name / f"{number}.tif")
    data = load(str(tmp_path), size=16)
    assert data.x_train.shape[1:] == (16, 16, 1)
    assert {4000, 4001, 4002} >= set(np.unique(data.x_train)) > {4000}


def test_eight_and_sixteen_bits_do_not_mix(tmp_path: Path) -> None:
    write_tiffs(tmp_path, 4000)
    Image.new("L", (8, 8), 7).save(tmp_path / "a/z.png")
    with pytest.raises(FedgenError, match=r"tif is grey with 16 bits and .*z.png is not; store all images with 8"):
        load(str(tmp_path))


def deep_colours(largest: int) -> bytes:
    """A PNG with 16 bits for each colour, which Pillow can read but not write."""
    values = np.linspace(0, largest, 8 * 8 * 3).astype(">u2").reshape(8, 24)
    raw = b"".join(b"\0" + row.tobytes() for row in values)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("largest", [4095, 65535])
def test_colours_of_sixteen_bits_that_would_be_lost_are_refused(tmp_path: Path, largest: int) -> None:
    for number in range(6):
        place = tmp_path / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        (place / f"{number}.png").write_bytes(deep_colours(largest))
    assert Image.open(io.BytesIO(deep_colours(largest))).mode == "RGB"
    if largest == 65535:
        assert load(str(tmp_path)).x_train.max() == 255
        return
    with pytest.raises(FedgenError, match="colours of 16 bits that do not use all of them"):
        load(str(tmp_path))


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 1000, (20, 8, 8)).astype(">u2"), np.arange(20) % 2
    data = fedgen.from_arrays(x, y, x, y)
    assert (data.x_train.dtype, data.max_value) == (np.uint16, 1023)
    assert np.array_equal(data.x_train, x)
    assert fedgen.from_arrays(x % 100, y, x, y).max_value == 255, "at least 8 bits; the training samples count"
    assert fedgen.from_arrays(x, y, x, y, max_value=4095).max_value == 4095
    digits = fedgen.from_arrays((x % 17).astype(np.uint8), y, (x % 17).astype(np.uint8), y, max_value=16, scale="unit")
    assert inputs(digits).max() == 1
    with pytest.raises(FedgenError, match="max_value is for whole numbers of 8 or 16 bits"):
        fedgen.from_arrays(x / 7, y, x / 7, y, max_value=4095)
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert load(str(tmp_path / "mine.npz")).max_value == 1023


@pytest.mark.slow
def test_a_run_scales_by_it_says_it_and_keeps_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4000, (60, 8, 8, 1)).astype(np.uint16), np.arange(60) % 2
    data = fedgen.from_arrays(x, y, x, y, name="scans", class_names=["healthy", "ill"])
    layer = {"dataset": "scans", "algorithms": ["fedavg"], "rounds": 1, "partition": "iid", "users": 3, "active": 2}
    small = {key: value for key, value in SMALL.items() if not key.startswith("partition.")}
    config = resolve(small, layer, own={"dataset"})
    setup = prepare(config, data)
    assert "note: scans: samples of 16 bits have values up to" in capsys.readouterr().err
    # The same training on numbers that were scaled before.
    scaled = fedgen.from_arrays(*[x.astype(np.float32) / 4095 * 2 - 1, y] * 2, name="scans")
    folder = RunFolder.create(tmp_path / "run", config)
    summary = run(setup, folder=folder)
    loss, expected = (play(prepare(config, one), 1).loss for one in (data, scaled))
    assert loss == pytest.approx(expected, rel=1e-4)
    assert json.loads((tmp_path / "run/data.json").read_text()) == {
        "class_names": ["healthy", "ill"], "sample": [8, 8, 1], "dtype": "uint16", "scale": "signed", "max_value": 4095,
    }  # fmt: skip
    assert summary["class_names"] == ["healthy", "ill"]
    noisy = resolve(small, {**layer, "partition": "feature-noise", "partition.noise": 0.5}, own={"dataset"})
    assert np.asarray(prepare(noisy, data).data.x).max() == 4095, "noise ends at white"
