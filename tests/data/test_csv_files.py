"""CSV files as data: what is read of them, and the sentence that every mistake gets."""

import csv
from pathlib import Path

import numpy as np
import pytest

from fedgen.config import resolve
from fedgen.data.dataset import Dataset
from fedgen.data.sources import load
from fedgen.data.sources.own import Reading
from fedgen.errors import FedgenError
from fedgen.runs.division import divide_all, load_dataset

ROWS = [[f"{i}", f"{i / 2}", "dog" if i % 2 else "cat"] for i in range(10)]
GOOD = "a,b,species\n" + "".join(",".join(row) + "\n" for row in ROWS)


def read(folder: Path, text: str | bytes, *, name: str = "mine.csv", user: str = "", **options: str) -> Dataset:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(str(path), reading=Reading("species", user), **options)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_numbers_and_words(tmp_path: Path, separator: str) -> None:
    data = read(tmp_path, GOOD.replace(",", separator))
    assert data.class_names == ("cat", "dog")
    assert data.x_train.dtype == np.float32
    together = {tuple(map(float, x)): y for x, y in zip(data.x_train, data.y_train, strict=True)}
    together |= {tuple(map(float, x)): y for x, y in zip(data.x_test, data.y_test, strict=True)}
    assert together == {(i, i / 2): i % 2 for i in range(10)}
    assert len(data.y_test) == 2, "20 % of each class"
    assert np.array_equal(read(tmp_path, GOOD).x_test, data.x_test), "always the same ones"


def test_whole_numbers_are_classes_in_their_order(tmp_path: Path) -> None:
    values = [10, -1, 9]
    text = "species,a\n" + "".join(f"{values[i % 3]}.0,{i}\n" for i in range(12))
    data = read(tmp_path, text)
    assert data.class_names == ("-1", "9", "10")
    assert [data.class_names[y] for y in data.y_train] == [str(values[int(x) % 3]) for x in data.x_train[:, 0]]


def test_a_column_of_users_makes_them_natural(tmp_path: Path) -> None:
    text = "a,clinic,species\n" + "".join(f"{i},{['north', 'south', 'east'][i % 3]},{i % 2}\n" for i in range(60))
    (tmp_path / "mine.csv").write_text(text)
    layer = {"dataset": str(tmp_path / "mine.csv"), "label": "species", "user": "clinic", "users": 3, "active": 2}
    config = resolve(layer)
    assert config.partition == "natural"
    data = load_dataset(config)
    assert data.user_train is not None
    assert data.x_train.shape == (48, 1), "the users are no feature"
    (division,) = divide_all(config, data).values()
    for start, size in zip(division.offset, division.size, strict=True):
        own = data.x_train[division.index[start : start + size], 0]
        assert len({int(x) % 3 for x in own}) == 1
    assert resolve({**layer, "partition": "iid"}).partition == "iid"
    with pytest.raises(FedgenError, match=r"3 natural users cannot make 20 users of 1 each.*--users 3"):
        divide_all(resolve({**layer, "users": 20}), data)


def test_columns_that_are_no_use_can_be_left_out(tmp_path: Path) -> None:
    text = "id," + GOOD.replace("\n", "\nx-1,", 10)
    with pytest.raises(FedgenError, match=r"column 'id' has words \('x-1' in line 2\).*--set dataset.drop=id"):
        read(tmp_path, text)
    assert read(tmp_path, text, drop="id").x_train.shape == (8, 2)
    assert read(tmp_path, text, drop="id, a").x_train.shape == (8, 1)


def test_truth_quotes_and_empty_lines(tmp_path: Path) -> None:
    lines = [f'"{i}",{i % 3 == 0}," {"yes, it is" if i % 2 else "no"} "' for i in range(8)]
    data = read(tmp_path, "\ufeffa,b,species\r\n" + "\r\n\r\n".join(lines) + "\r\n")
    assert data.class_names == ("no", "yes, it is")
    assert np.array_equal(data.x_train[:, 1], data.x_train[:, 0] % 3 == 0)


def test_more_lines_than_a_block(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20_500, 3)), rng.integers(0, 2, 20_500)
    with (tmp_path / "mine.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "c", "species"], *np.column_stack([x, y]).tolist()])
    data = load(str(tmp_path / "mine.csv"), reading=Reading("species"))
    found = np.concatenate([data.x_train, data.x_test])
    assert sorted(map(tuple, found)) == sorted(map(tuple, x.astype(np.float32)))


def test_train_and_test_files_of_a_folder(tmp_path: Path) -> None:
    read(tmp_path, GOOD, name="train.csv")
    (tmp_path / "val.csv").write_text("a,b,species\n7,7,dog\n")
    data = load(str(tmp_path), reading=Reading("species"))
    assert (len(data.x_train), data.x_test.tolist(), data.y_test.tolist()) == (10, [[7, 7]], [1])
    (tmp_path / "test.csv").write_text("a,b,species\n8,8,cat\n")
    data = load(str(tmp_path), reading=Reading("species"))
    assert data.x_test.tolist() == [[8, 8]]
    assert data.notes == (f"{tmp_path}: models are tested on test; val is not used",)
    (tmp_path / "test.csv").write_text("a,b,species\n8,8,emu\n")
    with pytest.raises(FedgenError, match="class 'emu' has no training samples"):
        load(str(tmp_path), reading=Reading("species"))
    (tmp_path / "test.csv").write_text("b,a,species\n8,8,cat\n")
    with pytest.raises(FedgenError, match="same columns, and their order differs"):
        load(str(tmp_path), reading=Reading("species"))
    (tmp_path / "test.csv").write_text("b,c,species\n8,8,cat\n")
    with pytest.raises(FedgenError, match="'a' is in one of them only"):
        load(str(tmp_path), reading=Reading("species"))
    (tmp_path / "train.csv").unlink()
    with pytest.raises(FedgenError, match="nothing to train on"):
        load(str(tmp_path), reading=Reading("species"))


def test_several_files_that_are_named_by_nothing(tmp_path: Path) -> None:
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(FedgenError, match=r"has 2 CSV files \(one.csv, two.csv ...\); make them one"):
        load(str(tmp_path), reading=Reading("species"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty; a CSV file has a line of column names"),
        ("a,b,species\n", "has column names and no lines below them"),
        ("species\ncat\ndog\n", "has only the column species"),
        ("a,b,kind\n1,2,cat\n", "no column 'species' of labels; say which column has them with --label: a, b, kind"),
        ("5.1,3.5,0\n4.9,3.0,1\n", r"starts with numbers \(5.1, 3.5, 0 ...\); its first line must have the columns"),
        ("a,a,species\n1,2,cat\n", "has two columns 'a'"),
        (",a,species\n0,2,cat\n", "column 1 has no name .*index=False"),
        (GOOD + "7,,cat\n", "column 'b' lacks a value in line 12; fill the gaps in"),
        (GOOD + "7,NA,cat\n", "column 'b' lacks a value in line 12"),
        (GOOD + "7,nan,cat\n", "column 'b' lacks a value in line 12"),
        (GOOD + "7,red,cat\n", r"column 'b' has words \('red' in line 12\).*pandas.get_dummies"),
        (GOOD + "7,2024-01-31,cat\n", r"column 'b' has words \('2024-01-31'"),
        (GOOD + "7,3,\n", "column 'species' lacks a value in line 12; take out rows"),
        (GOOD + "7,3,NaN\n", "column 'species' lacks a value in line 12"),
        (GOOD + "7,3\n", "line 12: 2 values for 3 columns"),
        (GOOD + "7,3,4,cat\n", "line 12: 4 values for 3 columns"),
        (GOOD + "7,1e50,cat\n", r"column 'b' has 1e\+50 in line 12, which is too large"),
        (GOOD + "7,inf,cat\n", "column 'b' has inf in line 12"),
        (GOOD + "7,3,emu\n", "class 'emu' has one sample"),
        (GOOD.replace("dog", "cat"), "all training samples have label cat; there is nothing to tell apart"),
        (GOOD.replace("dog", "0.5").replace("cat", "1"), "label column 'species' has 0.5, and classes are words or"),
        ("a;species\n" + "".join(f"{i},5;{i % 2}\n" for i in range(8)), "'0,5' in line 2; write decimals with a point"),
        (GOOD + '7,"3,cat\n', "cannot be read as a CSV file in UTF-8: unexpected end"),
        (GOOD.encode("utf-16"), "cannot be read as a CSV file in UTF-8"),
        (GOOD.replace("cat", "k\xe4tzchen").encode("latin-1"), "cannot be read as a CSV file in UTF-8"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "cannot be read as a CSV file in UTF-8"),
        ("a,b,species\n1,\x002,cat\n", "NUL|words"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(FedgenError, match=message) as error:
        read(tmp_path, text)
    assert "mine.csv" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"user": "clinic"}, r"no column 'clinic' of users \(--user\); it has a, b, species"),
        ({"user": "species"}, "label and user are both 'species'"),
        ({"drop": "id"}, "no column 'id' that could be dropped"),
        ({"drop": "a,b"}, "besides the labels there must be columns"),
    ],
)
def test_columns_that_are_named_and_not_there(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(FedgenError, match=message):
        read(tmp_path, GOOD, **options)


def test_settings_of_tables_are_for_tables(tmp_path: Path) -> None:
    with pytest.raises(FedgenError, match="label says how your own files are read, and dataset 'mnist' is not"):
        resolve({"label": "species"})
    with pytest.raises(FedgenError, match="did you mean --users"):
        resolve({"user": "10"})
    with pytest.raises(FedgenError, match="give one of the two"):
        resolve({"dataset": str(tmp_path / "a.csv"), "user": "clinic", "user_file": "u.txt"})
    x, y = np.zeros((4, 3)), [0, 1, 0, 1]
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(FedgenError, match=r"label names a column of a table, and .*mine.npz is none"):
        load(str(tmp_path / "mine.npz"), reading=Reading("species"))
    with pytest.raises(FedgenError, match=r"gone.csv does not exist; give a dataset's name, a file \(.npz, .csv"):
        load_dataset(resolve({"dataset": "gone.csv"}))
