"""Parquet files, and what Hugging Face's `datasets` saves: written here by pyarrow in the same layout."""

import io
import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fedgen.data.dataset import Dataset
from fedgen.data.sources import load
from fedgen.data.sources.own import Reading
from fedgen.errors import FedgenError

NAMES = ["cat", "dog", "emu"]


def table_of(**columns: Any) -> pa.Table:
    return pa.table({"a": np.arange(12), "label": ["cat", "dog", "emu"] * 4, **columns})


def read(folder: Path, table: pa.Table, **options: Any) -> Dataset:
    pq.write_table(table, folder / "mine.parquet")
    reading = Reading(**{key: options.pop(key) for key in ("label", "user") if key in options})
    return load(str(folder / "mine.parquet"), reading=reading, **options)


def test_numbers_of_every_kind(tmp_path: Path) -> None:
    table = table_of(
        b=pa.array([True, False] * 6),
        c=pa.array([Decimal("1.5")] * 12),
        d=pa.array(np.arange(12) / 4, pa.float16()),
        e=pa.array([2**60] * 12),
    )
    data = read(tmp_path, table)
    assert data.class_names == ("cat", "dog", "emu")
    assert data.x_train.shape == (9, 5)
    a, b, c, d, e = data.x_train.T
    assert np.array_equal(b, 1 - a % 2)
    assert np.array_equal(d, a / 4)
    assert set(c) == {1.5}
    assert set(e) == {float(2**60)}
    assert np.array_equal(data.y_train, a % 3)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (pa.array(["x", "y"] * 6).dictionary_encode(), ("x", "y")),
        (pa.array(["x", "y"] * 6, pa.large_string()), ("x", "y")),
        (pa.array([7, 3] * 6, pa.uint8()), ("3", "7")),
        (pa.array([2.0, 1.0] * 6), ("1", "2")),
        (pa.array([True, False] * 6), ("False", "True")),
        (pa.array(["10", "9"] * 6), ("9", "10")),
    ],
)
def test_labels_of_every_kind(tmp_path: Path, labels: pa.Array, names: tuple[str, ...]) -> None:
    data = read(tmp_path, table_of(label=labels))
    assert data.class_names == names
    wanted = [str(value).removesuffix(".0") for value in labels.to_pylist()]
    assert [names[y] for y in data.y_train] == [wanted[int(x)] for x in data.x_train[:, 0]]


def test_users(tmp_path: Path) -> None:
    for users in (pa.array(["n", "s"] * 6), pa.array(["n", "s"] * 6).dictionary_encode(), pa.array([4, 9] * 6)):
        data = read(tmp_path, table_of(clinic=users), user="clinic")
        assert data.user_train is not None
        assert np.array_equal(data.user_train, data.x_train[:, 0] % 2)
        assert data.x_train.shape == (9, 1)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"b": pa.array([1.0, None] * 6)}, {}, "column 'b' lacks a value in row 2; fill the gaps in"),
        ({"b": [1.0, float("nan")] * 6}, {}, "column 'b' lacks a value in row 2"),
        ({"b": [1.0, float("inf")] * 6}, {}, "column 'b' has inf in row 2"),
        ({"b": ["red", "blue"] * 6}, {}, r"column 'b' has words \('red'\).*pandas.get_dummies"),
        ({"b": pa.array(["red", "blue"] * 6).dictionary_encode()}, {}, r"column 'b' has words \('red'\)"),
        ({"b": [[1, 2]] * 12}, {}, "column 'b' has lists; give each of their numbers a column, or save arrays as .npz"),
        ({"b": [date(2024, 1, 31)] * 12}, {}, "column 'b' has values of type date32"),
        ({"b": pa.nulls(12)}, {}, "column 'b' has values of type null"),
        ({"b": [{"x": 1}] * 12}, {}, "column 'b' has values of type struct"),
        ({"label": pa.array(["cat", None] * 6)}, {}, "column 'label' lacks a value in row 2; take out rows"),
        ({"label": [0.0, float("nan")] * 6}, {}, "column 'label' lacks a value in row 2"),
        ({"label": ["cat", " "] * 6}, {}, "column 'label' lacks a value in row 2"),
        ({"label": [0.5, 1.0] * 6}, {}, "label column 'label' has 0.5, and classes are"),
        ({"label": [[1], [2]] * 6}, {}, "column 'label' has values of type list"),
        ({"label": [3] * 12}, {}, "all training samples have label 3"),
        ({}, {"label": "species"}, "no column 'species' of labels; .*--label: a, label"),
        ({}, {"user": "clinic"}, "no column 'clinic' of users"),
        ({"u": [0.5, 1.5] * 6}, {"user": "u"}, "users in column 'u' must be whole numbers or words"),
        ({"u": pa.array(["n", None] * 6)}, {"user": "u"}, "column 'u' lacks a value in row 2"),
        ({"b": [b"GIF89a"] * 12, "c": [b"GIF89a"] * 12}, {}, r"several columns of images \(b, c\).*drop=c"),
        ({"b": [b"no image"] * 12}, {}, "does not decode"),
        ({"b": pa.array([None] * 12, pa.binary())}, {}, "column 'b' has no image in row 1"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, str], message: str
) -> None:
    with pytest.raises(FedgenError, match=message) as error:
        read(tmp_path, table_of(**columns), **options)
    assert "mine.parquet" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(FedgenError, match=r"mine.parquet cannot be read as a file of Parquet"):
        load(str(path))
    path.write_bytes(b"")
    with pytest.raises(FedgenError, match=r"mine.parquet is empty"):
        load(str(path))
    pq.write_table(table_of().slice(0, 0), path)
    with pytest.raises(FedgenError, match=r"mine.parquet has columns and no rows"):
        load(str(path))
    pq.write_table(table_of(), tmp_path / "other.parquet")
    pq.write_table(table_of(b=np.arange(12)), path)
    with pytest.raises(FedgenError, match=r"other.parquet has other columns or types than mine.parquet"):
        load(str(tmp_path))
    (tmp_path / "bad.arrow").write_bytes(b"ARROW1")
    with pytest.raises(FedgenError, match=r"bad.arrow cannot be read as a file of Arrow"):
        load(str(tmp_path / "bad.arrow"))


def test_without_pyarrow_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table_of(), tmp_path / "mine.parquet")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(FedgenError, match=r"need pyarrow: pip install '.\[tables\]'"):
        load(str(tmp_path / "mine.parquet"))


def png(shade: int, size: tuple[int, int] = (9, 8)) -> bytes:
    file = io.BytesIO()
    Image.new("L", size, shade).save(file, "PNG")
    return file.getvalue()


def image_table(labels: list[int], first: int = 0, names: list[str] | None = NAMES, **columns: Any) -> pa.Table:
    """A table as `datasets` writes it: images as structs, and the features in the schema's metadata."""
    images = [{"bytes": png(first + i), "path": None} for i in range(len(labels))]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(images, kind), "label": labels, **columns})
    label = {"names": names, "_type": "ClassLabel"} if names else {"dtype": "int64", "_type": "Value"}
    features = {"image": {"_type": "Image"}, "label": label}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def save_to_disk(folder: Path, *tables: pa.Table) -> None:
    """A folder as `Dataset.save_to_disk` makes it, with a stream of Arrow in each file."""
    folder.mkdir(parents=True)
    files = [f"data-{n:05d}-of-{len(tables):05d}.arrow" for n in range(len(tables))]
    for name, table in zip(files, tables, strict=True):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in files]}))
    (folder / "dataset_info.json").write_text("{}")


def test_a_saved_dictionary_of_datasets(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "pets/train", image_table([2, 0, 1, 2], 10))
    save_to_disk(tmp_path / "pets/test", image_table([1, 0], 50))
    (tmp_path / "pets/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    data = load(str(tmp_path / "pets"))
    assert data.class_names == ("cat", "dog", "emu")
    assert data.x_train.shape == (4, 8, 9, 1)
    assert data.x_train[:, 0, 0, 0].tolist() == [10, 11, 12, 13]
    assert data.y_train.tolist() == [2, 0, 1, 2]
    assert data.x_test[:, 0, 0, 0].tolist() == [50, 51]
    assert data.y_test.tolist() == [1, 0]
    again = load(str(tmp_path / "pets"))
    assert isinstance(again.x_train, np.memmap), "decoded once"
    assert np.array_equal(again.x_train, data.x_train)


def test_a_saved_dataset_of_several_files(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "pets", image_table([0, 1, 2] * 3, 0), image_table([0, 1, 2] * 3, 9))
    data = load(str(tmp_path / "pets"))
    assert len(data.y_train) == 15
    shades = np.concatenate([data.x_train, data.x_test])[:, 0, 0, 0]
    assert np.array_equal(shades % 3, np.concatenate([data.y_train, data.y_test]))
    assert sorted(shades) == list(range(18))


def test_parquet_as_on_the_hub(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(image_table([0, 1, 0, 1], 10, id=np.arange(4)), tmp_path / "data/train-00000-of-00002.parquet")
    pq.write_table(image_table([1, 0, 1, 0], 20, id=np.arange(4)), tmp_path / "data/train-00001-of-00002.parquet")
    pq.write_table(image_table([1, 0], 90, id=np.arange(2)), tmp_path / "data/validation-00000-of-00001.parquet")
    data = load(str(tmp_path))
    assert data.class_names == ("cat", "dog"), "there is no emu"
    assert data.x_train[:, 0, 0, 0].tolist() == [10, 11, 12, 13, 20, 21, 22, 23]
    assert data.y_train.tolist() == [0, 1, 0, 1, 1, 0, 1, 0]
    assert data.x_test[:, 0, 0, 0].tolist() == [90, 91]
    assert data.notes == (f"{tmp_path / 'data'}: of its columns only the images are learned from, not id",)


def test_images_that_are_files_beside_the_table(tmp_path: Path) -> None:
    (tmp_path / "img").mkdir()
    for shade in range(8):
        (tmp_path / f"img/{shade}.png").write_bytes(png(shade))
    paths = [{"bytes": None, "path": f"img/{shade}.png"} for shade in range(8)]
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(paths, kind), "label": [0, 1] * 4})
    data = read(tmp_path, table)
    assert np.array_equal(data.x_train[:, 0, 0, 0] % 2, data.y_train)
    (tmp_path / "img/3.png").unlink()
    pq.write_table(table.slice(0, 6), tmp_path / "mine.parquet")
    with pytest.raises(FedgenError, match="row 4"):
        load(str(tmp_path / "mine.parquet"))


def test_images_of_several_sizes_and_samples_without_labels(tmp_path: Path) -> None:
    images = [png(i, (9, 8) if i < 7 else (4, 4)) for i in range(8)]
    table = pa.table({"image": images, "label": [0, 1] * 4})
    with pytest.raises(FedgenError, match=r"--set dataset.size=N"):
        read(tmp_path, table)
    assert read(tmp_path, table, size=16).x_train.shape[1:] == (16, 16, 1)
    with pytest.raises(FedgenError, match=r"label -1 in column 'label' is none of its 3 classes"):
        read(tmp_path, image_table([0, 1, -1]))


def test_parts_whose_classes_have_other_names(tmp_path: Path) -> None:
    pq.write_table(image_table([0, 1]), tmp_path / "train.parquet")
    pq.write_table(image_table([0, 1], names=["dog", "cat"]), tmp_path / "test.parquet")
    with pytest.raises(FedgenError, match="give their classes different names"):
        load(str(tmp_path))
