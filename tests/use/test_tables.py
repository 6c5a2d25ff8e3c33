"""Runs on tables: the same columns are read again to predict and to evaluate."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

import fedgen
from command import call as _fedgen
from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.use.evaluation import labelled
from fedgen.use.inputs import columns_of, numbers_of, read_inputs
from fedgen.use.loaded import Run

ROWS = 60
_RNG = np.random.default_rng(0)
LABELS = np.arange(ROWS) % 3
X = (np.eye(3)[LABELS] + _RNG.normal(0, 0.2, (ROWS, 3))).astype(np.float32).round(3)


def _write(path: Path, columns: dict[str, list], separator: str = ",") -> Path:
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines) + "\n")
    return path


def _arrow(path: Path, columns: dict[str, list]) -> Path:
    table = pa.table(columns)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


def _columns() -> dict[str, list]:
    return {
        "id": list(range(1000, 1000 + ROWS)),
        "height": X[:, 0].tolist(),
        "species": [("01", "02", "x3")[label] for label in LABELS],
        "width": X[:, 1].tolist(),
        "clinic": [f"clinic{row % 4}" for row in range(ROWS)],
        "depth": X[:, 2].tolist(),
    }


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write(tmp_path_factory.mktemp("table") / "flowers.csv", _columns(), ";")


@pytest.fixture(scope="module")
def run(table: Path) -> Run:
    settings = {"label": "species", "user": "clinic", "partition": "natural", "users": 4, "active": 2, "rounds": 2}
    fedgen.simulate(
        "fedavg", dataset=str(table), model="mlp", local_steps=2, batch_size=4, out=table.parent / "run",
        options={"dataset.drop": "id", "model.hidden": 4, "model.latent": 3}, train_fraction=1.0, **settings,
    )  # fmt: skip
    return fedgen.load(table.parent / "run")


def test_a_run_on_a_table_is_evaluated_on_its_own_test_rows(
    run: Run, table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert run.class_names == ("01", "02", "x3")
    own = labelled(run, None)
    assert len(own.y) == 12  # a fifth
    assert own.note == ""
    for same in (labelled(run, str(table)), labelled(run, str(table), label="species")):
        assert same.name == own.name
        np.testing.assert_array_equal(same.x, own.x)
        np.testing.assert_array_equal(same.y, own.y)
    every = labelled(run, str(table), "all")
    assert len(every.y) == ROWS
    assert "was trained on" in every.note
    assert _fedgen(monkeypatch, "evaluate", run.path, "--part", "all") == 0
    assert "was trained on" in capsys.readouterr().err


def test_columns_of_another_table_are_found_by_name(run: Run, tmp_path: Path) -> None:
    columns = _columns()
    order = ("depth", "clinic", "width", "other", "height", "id")
    given = {name: columns.get(name, ["word"] * ROWS) for name in order}
    for separator, name in ((";", "a.csv"), ("\t", "b.tsv"), (",", "c.csv")):
        found = read_inputs([_write(tmp_path / name, given, separator)], run.form, "", columns_of(run.config))
        np.testing.assert_array_equal(found.x, X)
        assert found.labels is None
    for name in ("a.parquet", "a.arrow"):
        found = read_inputs([_arrow(tmp_path / name, given)], run.form, "", columns_of(run.config))
        np.testing.assert_array_equal(found.x, X)
        assert found.labels is None
    species = {**given, "species": columns["species"]}
    np.testing.assert_array_equal(labelled(run, str(_arrow(tmp_path / "d.parquet", species))).y, LABELS)
    with_labels = _write(tmp_path / "d.csv", {**given, "species": columns["species"]})
    np.testing.assert_array_equal(labelled(run, str(with_labels)).y, LABELS)
    del given["width"]
    with pytest.raises(FedgenError, match="has no column 'width'"):
        read_inputs([_write(tmp_path / "e.csv", given)], run.form)
    with pytest.raises(FedgenError, match="has no column 'width'"):
        read_inputs([_arrow(tmp_path / "e.parquet", given)], run.form)
    numbers = tmp_path / "f.csv"
    numbers.write_text("1,2,3\n4,5,6\n")
    np.testing.assert_array_equal(read_inputs([numbers], run.form).x, [[1, 2, 3], [4, 5, 6]])


def test_without_the_names_of_columns_the_runs_other_ones_are_left_out(run: Run, tmp_path: Path) -> None:
    """As in folders of earlier versions."""
    form = run.form._replace(features=())
    found = read_inputs([_write(tmp_path / "a.csv", _columns())], form, "", columns_of(run.config))
    np.testing.assert_array_equal(found.x, X)
    with pytest.raises(FedgenError, match="4 columns of numbers, and a sample of this run has 3"):
        read_inputs([_write(tmp_path / "b.csv", {**_columns(), "more": [0] * ROWS})], form, "", columns_of(run.config))


def test_labels_are_names_if_they_are_text_and_numbers_if_they_are_not() -> None:
    def form(*names: str) -> DataForm:
        return DataForm(names, (3,), "float32", "signed", 255)

    counted = form("1", "2", "3")
    assert numbers_of(np.array([0, 1, 2]), counted).tolist() == [0, 1, 2]
    assert numbers_of(["1", "2.0", "3"], counted).tolist() == [0, 1, 2]
    assert numbers_of(["01", "1"], form("1", "01")).tolist() == [1, 0]
    assert numbers_of(["0", "1.0", 1.0], form("a", "b")).tolist() == [0, 1, 1]
    for labels in (["0", "1"], np.array([3])):  # neither all names nor all numbers; there are three
        with pytest.raises(FedgenError, match="there is no class"):
            numbers_of(labels, counted)


def test_labels_in_an_npz_file_are_numbers_where_they_are_stored_so(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "numbers.npz", x=X, y=LABELS)
    np.savez(tmp_path / "words.npz", x=X, y=np.array(["01", "02", "x3"])[LABELS])
    for name in ("numbers", "words"):
        np.testing.assert_array_equal(labelled(run, str(tmp_path / f"{name}.npz")).y, LABELS)


def test_images_in_a_parquet_file_are_those_of_the_run(tmp_path: Path) -> None:
    form = DataForm(("cat", "dog"), (4, 4, 1), "uint8", "signed", 255)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4)).astype(np.uint8)
    contents = []
    for image in pixels:
        Image.fromarray(image).save(file := BytesIO(), "PNG")
        contents.append(file.getvalue())
    pairs = [{"bytes": one, "path": None} for one in contents]
    for images in (pairs, contents):  # as `datasets` has them, and plain bytes
        columns = {"image": images, "label": ["dog", "cat", "dog"], "id": [1, 2, 3]}
        found = read_inputs([_arrow(tmp_path / "images.parquet", columns)], form)
        np.testing.assert_array_equal(found.x[..., 0], pixels)
        assert found.labels == ["dog", "cat", "dog"]
    with pytest.raises(FedgenError, match="several columns of images"):
        read_inputs([_arrow(tmp_path / "two.parquet", {"a": contents, "b": contents})], form)
    with pytest.raises(FedgenError, match="a sample of this run has 16"):  # neither an image nor its pixels
        read_inputs([_arrow(tmp_path / "numbers.parquet", {"id": [1, 2]})], form)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(FedgenError, match="cannot be read as a file of Parquet"):
        read_inputs([tmp_path / "torn.parquet"], form)
