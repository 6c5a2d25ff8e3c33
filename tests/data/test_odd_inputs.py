"""Inputs that once gave a wrong result in silence, or a traceback."""

import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgen.config import resolve
from fedgen.data.dataset import from_arrays
from fedgen.data.federated import generator
from fedgen.data.npz import read_npz
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import load
from fedgen.errors import FedgenError
from fedgen.runs.division import divide_all, keep_partition
from fedgen.simulator.setup import prepare


def _images(folder: Path, values: list[int], dtype: type = np.uint8) -> Path:
    for number, value in enumerate(values):
        place = folder / ("a" if number % 2 else "b")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), value, dtype)).save(place / f"{number}.png")
        os.utime(place / f"{number}.png", (0, 0))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path: Path) -> None:
    values = [256 * v for v in (1, 20, 30, 100, 120, 130, 200, 210, 220, 250)]
    data = load(str(_images(tmp_path / "deep", values, np.uint16)))
    assert set(np.unique(data.x_train)) | set(np.unique(data.x_test)) == set(values)
    assert data.max_value == 65535


def test_folders_of_one_name_do_not_share_their_cache(tmp_path: Path) -> None:
    first, second = (
        load(str(_images(tmp_path / where / "faces", [start + i for i in range(10)])))
        for where, start in (("one", 0), ("two", 100))
    )
    assert first.x_train.max() < 100 <= second.x_train.min()


def _data(samples: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.random((samples, 8), np.float32), np.arange(samples) % 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, y: (x, np.zeros_like(y)), "nothing to tell apart"),
        (lambda x, y: (x, np.array(3)), "must be a list"),
        (lambda x, y: (x[:, :0], y), "hold nothing"),
    ],
)
def test_arrays_that_cannot_be_learned_from(change: object, message: str) -> None:
    x, y = _data()
    with pytest.raises(FedgenError, match=message):
        from_arrays(*change(x, y), x, y)


def test_samples_that_are_not_finite_are_said() -> None:
    x, y = _data()
    x[3, 2] = np.nan
    config = resolve({"dataset": "own", "model": "mlp", "users": 3, "active": 1, "train_fraction": 1.0,
                      "partition.min_samples": 1}, own={"dataset"})  # fmt: skip
    with pytest.raises(FedgenError, match="NaN or infinite"):
        prepare(config, from_arrays(x, y, *_data(), name="own"))


def test_a_torn_array_header_is_damage(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (60, 8), \n"
    torn = io.BytesIO(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with zipfile.ZipFile(tmp_path / "torn.npz", "w") as archive:
        archive.writestr("x_train.npy", torn.getvalue())
    with pytest.raises(FedgenError, match=r"torn\.npz"):
        read_npz(tmp_path / "torn.npz", ["x_train"])


@pytest.mark.parametrize("cap", [0.5, 0.99])
def test_a_cap_below_the_fair_share_is_refused(cap: float) -> None:
    with pytest.raises(FedgenError, match="cap must be"):
        PARTITIONERS["dirichlet"](np.arange(40) % 4, 4, generator(0, "t"), min_samples=1, cap=cap)


def test_alpha_beyond_floating_point_is_refused() -> None:
    for alpha in (1e-300, 1e308):
        with pytest.raises(FedgenError, match="alpha must be"):
            PARTITIONERS["dirichlet-user"](np.arange(40) % 4, 4, generator(0, "t"), alpha=alpha)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-user"])
def test_the_smaller_alpha_the_fewer_labels_also_for_the_last_users(name: str) -> None:
    labels = np.repeat(np.arange(10), 300)
    options = {"min_samples": 1} if name == "dirichlet" else {}  # who gets a minimum gets it from others' labels

    def held(alpha: float) -> float:
        users = [
            share
            for seed in range(10)
            for share in PARTITIONERS[name](labels, 20, generator(seed, "t"), alpha=alpha, **options)[10:18]
        ]
        return float(np.mean([len(np.unique(labels[share])) for share in users]))

    assert held(1e-4) <= held(0.01) + 0.3 < held(0.1) < held(1.0)
    assert held(1e-4) < 2.2


def _kept(tmp_path: Path, **settings: object) -> list[int]:
    file = tmp_path / "kept.json"
    layer = {"dataset": "own", "users": 3, "active": 1, "partition": "iid", "partition_file": str(file), **settings}
    config = resolve(layer, own={"dataset"})
    data = from_arrays(*_data(), *_data(), name="own")
    divisions = divide_all(config, data)
    keep_partition(config, data, divisions)
    return divisions[0].size.tolist()


def test_a_kept_partition_is_refused_under_any_other_setting(tmp_path: Path) -> None:
    assert _kept(tmp_path, train_fraction=0.5) == [10, 10, 10]
    assert _kept(tmp_path, train_fraction=0.5) == [10, 10, 10]
    with pytest.raises(FedgenError, match=r"train_fraction=0\.5, not 1\.0"):
        _kept(tmp_path, train_fraction=1.0)


@pytest.mark.parametrize("row", [5.9, "5", True])
def test_rows_that_are_no_whole_numbers_are_refused(tmp_path: Path, row: object) -> None:
    _kept(tmp_path)
    content = json.loads((tmp_path / "kept.json").read_text())
    content["seeds"]["0"][0][0] = row
    (tmp_path / "kept.json").write_text(json.dumps(content))
    with pytest.raises(FedgenError, match="not a whole number"):
        _kept(tmp_path)


def test_paths_of_a_configuration_hold_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = resolve({"partition_file": "kept.json", "user_file": "u.txt", "data_dir": "d"})
    assert (config.partition_file, config.user_file, config.data_dir) == (
        str(tmp_path / "kept.json"), str(tmp_path / "u.txt"), str(tmp_path / "d"),
    )  # fmt: skip
