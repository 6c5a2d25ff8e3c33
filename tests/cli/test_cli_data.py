import numpy as np
import pytest
from typer.testing import CliRunner

from data_files import write_pair
from fedgen.cli.main import app, main
from fedgen.data.download import Offer, Remote
from fedgen.data.sources import OFFERS
from fedgen.errors import FedgenError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small stand-in for Fashion-MNIST, so that nothing large is read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    files = tmp_path / "fashion-mnist"
    files.mkdir()
    for part in ("train", "t10k"):
        write_pair(files, part, np.zeros((400, 28, 28)), np.arange(400) % 10)
    monkeypatch.setenv("FEDGEN_DATA", str(tmp_path))
    return tmp_path


def invoke(*words):
    return CliRunner().invoke(app, ["data", *map(str, words)], catch_exceptions=False)


def test_show_prints_the_users_and_draws_them(folder):
    result = invoke(
        "show", "--dataset", "fashion-mnist", "--users", 5, "--alpha", 0.1, "--alpha", 10, "--out", folder / "figures"
    )
    assert result.exit_code == 0
    assert "effective" in result.output
    assert "α = 0.1" in result.output
    assert "α = 10" in result.output
    assert sorted(path.name for path in (folder / "figures").iterdir()) == [
        "partition-fashion-mnist.png",
        "partition-fashion-mnist.svg",
    ]


def test_show_writes_a_figure_only_where_it_is_told_to(folder, monkeypatch):
    (folder / "here").mkdir()
    monkeypatch.chdir(folder / "here")
    result = invoke("show", "--dataset", "fashion-mnist", "--users", 5)
    assert result.exit_code == 0
    assert "Figure" not in result.output
    assert not list((folder / "here").iterdir())


def test_show_refuses_what_a_run_refuses(folder):
    x = np.zeros((40, 3), np.float32)
    x[7, 1] = np.nan
    y = np.arange(40) % 2
    np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    with pytest.raises(FedgenError, match="NaN or infinite"):
        invoke("show", "--dataset", folder / "mine.npz", "--users", 2, "--train-fraction", 1, "--partition", "iid")


def test_show_names_the_classes_and_says_what_was_noted(folder):
    path = folder / "mine.csv"
    lines = [f"{i * 9},{'ns'[i % 2]},{'ill' if i % 3 else 'well'}" for i in range(60)]
    path.write_text("\n".join(["a,clinic,kind", *lines]))
    words = ("--dataset", path, "--label", "kind", "--user", "clinic", "--users", 2, "--out", folder / "figures")
    output = invoke("show", *words).output
    assert "ill, 67%" in output
    rows = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    assert ["", "0", "ill", "32", "8", "32", ""] in rows
    assert ["", "1", "well", "16", "4", "16", ""] in rows
    assert "note: " in output
    assert "column 'a' has values up to 531, and columns are not scaled" in output
    assert "ill" in (folder / "figures/partition-mine.svg").read_text()


def test_show_of_many_users_is_short(folder):
    result = invoke("show", "--dataset", "fashion-mnist", "--users", 200, "--partition", "iid", "--out", folder)
    assert "170 more" in result.output


def test_show_writes_a_partition_file_that_a_run_can_use(folder):
    file = folder / "kept.json"
    words = ("show", "--dataset", "fashion-mnist", "--users", 5, "--partition-file", file, "--out", folder)
    first, second = invoke(*words), invoke(*words)
    assert file.exists()
    assert first.output == second.output
    with pytest.raises(FedgenError, match="give one --alpha"):
        invoke(*words, "--alpha", 1, "--alpha", 2)


def test_a_bad_file_is_one_sentence_and_exit_code_2(folder, monkeypatch, capsys):
    path = folder / "mine [1].npz"
    path.write_bytes(b"PK no zip")
    monkeypatch.setattr("sys.argv", ["fedgen", "run", "--dataset", str(path), "--out", str(folder / "run")])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {path} cannot be read as a zip file: File is not a zip file\n"


def test_download_says_what_is_embedded_and_what_is_unknown(folder):
    assert "comes with the package" in invoke("download", "mnist").output
    with pytest.raises(FedgenError, match="did you mean 'emnist'"):
        invoke("download", "emnits")


def test_download_without_network_names_the_page_and_the_folder(folder, monkeypatch):
    remote = Remote("http://127.0.0.1:9/gzip.zip", "gzip.zip", "0" * 32)
    monkeypatch.setitem(OFFERS, "emnist", Offer("https://example.org/emnist", [remote]))
    with pytest.raises(FedgenError, match=rf"by hand from https://example.org/emnist into {folder / 'emnist'}"):
        invoke("download", "emnist")


def test_nothing_is_downloaded_in_a_run(folder, monkeypatch):
    monkeypatch.setattr("fedgen.data.download._retrieve", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(FedgenError, match="'fedgen data download cifar10' fetches"):
        CliRunner().invoke(app, ["run", "--dataset", "cifar10", "--out", str(folder / "run")], catch_exceptions=False)
    assert not (folder / "run").exists()
