"""A site's data: what it may lack, and what is refused."""

import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgen.errors import FedgenError
from fedgen.federate.schema import SiteSettings, TaskSettings, read_settings
from fedgen.federate.site.data import load_site_data

TASK = TaskSettings(classes=10, sample=(8, 8, 1))
X, Y = np.arange(5 * 64, dtype=np.uint8).reshape(5, 8, 8, 1), np.array([3, 3, 7, 3, 7])


def load(folder: Path, task: TaskSettings = TASK, data: str = "data.npz", **settings: Any) -> Any:
    return load_site_data(SiteSettings(name="a", number=0, data=data, **settings), task, folder)


def test_labels_and_test_samples_may_be_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=X, y_train=Y)
    data = load(tmp_path)
    assert (data.x == X).all()
    assert data.y.tolist() == Y.tolist()
    assert data.x_test.shape == (0, 8, 8, 1)
    assert len(data.y_test) == 0


def test_grey_images_need_no_channel_and_floats_may_be_double(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=X[..., 0] / 255.0, y_train=Y)
    data = load(tmp_path, TaskSettings(classes=10, sample=(8, 8, 1), dtype="float32"))
    assert data.x.dtype == np.float32
    np.testing.assert_allclose(data.x, X / 255.0, rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_words_of_a_text_may_be_of_any_whole_type(dtype: type, tmp_path: Path) -> None:
    words = np.arange(30, dtype=dtype).reshape(5, 6)
    np.savez(tmp_path / "data.npz", x_train=words, y_train=Y)
    task = TaskSettings(classes=10, sample=(6,), dtype="int32")
    data = load(tmp_path, task)
    assert data.x.dtype == np.int32
    assert np.array_equal(data.x, words)
    np.savez(tmp_path / "data.npz", x_train=words.astype(np.int64) + 2**40, y_train=Y)
    with pytest.raises(FedgenError, match="whole numbers beyond"):
        load(tmp_path, task)
    np.savez(tmp_path / "data.npz", x_train=words * 1.0, y_train=Y)
    with pytest.raises(FedgenError, match="of type float64; the federation's are int32"):
        load(tmp_path, task)


def test_a_folder_of_idx_files(tmp_path: Path) -> None:
    for part in ("train", "test"):
        images = struct.pack(">IIII", 2051, 10, 8, 8) + bytes(10 * 64)
        labels = struct.pack(">II", 2049, 10) + bytes(range(10))
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    data = load(tmp_path, data=".")
    assert data.x.shape == data.x_test.shape == (10, 8, 8, 1)


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x_train": X}, "no array 'y_train'"),
        ({"x_train": X[:, :7], "y_train": Y}, r"of shape \(7, 8, 1\), not \(8, 8, 1\)"),
        ({"x_train": X.astype(np.float32), "y_train": Y}, "of type float32; the federation's are uint8"),
        ({"x_train": X, "y_train": Y[:3]}, "5 whole numbers"),
        ({"x_train": X, "y_train": Y * 1.0}, "5 whole numbers"),
        ({"x_train": X, "y_train": Y + 5}, "labels are 8 to 12; the federation has 0 to 9"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "no training samples"),
    ],
)
def test_refused(arrays: dict[str, Any], reason: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(FedgenError, match=reason):
        load(tmp_path)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    x = X.astype(np.float32)
    x[0, 0] = np.nan
    np.savez(tmp_path / "data.npz", x_train=x, y_train=Y)
    with pytest.raises(FedgenError, match="NaN or infinite"):
        load(tmp_path, TaskSettings(classes=10, sample=(8, 8, 1), dtype="float32"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name = "a"\nnumber = 0\ndata = "d.npz"\ncolour = 1', "colour"),
        ('name = "a/b"\nnumber = 0\ndata = "d.npz"', "name"),
        ('name = "a"\nnumber = -1\ndata = "d.npz"', "number"),
        ('name = "a', "cannot be read"),
    ],
)
def test_mistakes_in_settings_name_the_file_and_the_line(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(FedgenError, match=reason) as error:
        read_settings(tmp_path / "site.toml", SiteSettings)
    assert str(tmp_path / "site.toml") in str(error.value)
