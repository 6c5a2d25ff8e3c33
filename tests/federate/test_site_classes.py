"""Sites name their classes alike: by the federation's names, whichever of them a site has."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_federation import local_federation

from data_files import write_class_folders
from fedgen.cli.main import main
from fedgen.core.trees import named
from fedgen.errors import FedgenError
from fedgen.federate.schema import SiteSettings, TaskSettings
from fedgen.federate.site.data import SiteData, load_site_data
from fedgen.runs.checkpoint import load_tree
from helpers import play, small_setup

PETS = TaskSettings(classes=3, class_names=("cat", "dog", "emu"), sample=(8, 9, 1))
X, Y = np.arange(5 * 64, dtype=np.uint16).reshape(5, 8, 8, 1) * 10, np.array([3, 3, 7, 3, 7])
DEEP = TaskSettings(classes=10, sample=(8, 8, 1), dtype="uint16", max_value=4095)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def load(folder: Path, task: TaskSettings = PETS, data: str = ".", **settings: Any) -> SiteData:
    task.check()
    return load_site_data(SiteSettings(name="a", number=0, data=data, **settings), task, folder)


def test_image_folders_are_numbered_by_name(tmp_path: Path) -> None:
    north = write_class_folders(tmp_path / "north", {"cat": 10, "dog": 5})
    south = write_class_folders(tmp_path / "south", {"cat": 5, "emu": 1})
    assert sorted(set(load(north).y)) == [0, 1]
    data = load(south)
    # image i of a folder's class c was painted in the shade 50 c + i: the emu is the second class there, and label 2
    assert np.array_equal(data.y, np.where(data.x[:, 0, 0, 0] >= 50, 2, 0))
    assert 2 in data.y, "a class of one image is for training"
    assert len(data.y_test) == 1
    single = write_class_folders(tmp_path / "east", {"emu": 3})
    assert set(load(single).y) == {2}, "one class is enough at a site"


def test_an_unknown_class_is_refused(tmp_path: Path) -> None:
    folder = write_class_folders(tmp_path / "west", {"cat": 3, "owl": 3})
    with pytest.raises(FedgenError, match=r"west has class 'owl', and the classes are cat, dog, emu; rename it"):
        load(folder)
    with pytest.raises(FedgenError, match=r"has class 'cat', and the classes are 0, 1, 2; .*class_names in task.toml"):
        load(folder, TaskSettings(classes=3, sample=(8, 9, 1)))
    numbers = write_class_folders(tmp_path / "numbers", {"0": 3, "2": 3})
    assert sorted(set(load(numbers, TaskSettings(classes=3, sample=(8, 9, 1))).y)) == [0, 2]


def test_tables_and_words(tmp_path: Path) -> None:
    task = TaskSettings(classes=3, class_names=("cat", "dog", "emu"), sample=(2,), dtype="float32")
    (tmp_path / "mine.csv").write_text("a,b,kind\n" + "".join(f"{i},0,{['dog', 'emu'][i % 2]}\n" for i in range(10)))
    data = load(tmp_path, task, "mine.csv", label="kind")
    assert np.array_equal(data.y, data.x[:, 0] % 2 + 1)
    with pytest.raises(FedgenError, match="unknown option in data_options 'colour'; valid: drop, size"):
        load(tmp_path, task, "mine.csv", label="kind", data_options={"colour": 1})
    np.savez(tmp_path / "words.npz", x_train=np.ones((3, 2)), y_train=["emu", "cat", "emu"])
    assert load(tmp_path, task, "words.npz").y.tolist() == [2, 0, 2]
    np.savez(tmp_path / "words.npz", x_train=np.ones((3, 2)), y_train=["emu", "cat", "owl"])
    with pytest.raises(FedgenError, match="has class 'owl'"):
        load(tmp_path, task, "words.npz")
    np.savez(tmp_path / "numbers.npz", x_train=np.ones((3, 2)), y_train=[2, 0, 2])
    assert load(tmp_path, task, "numbers.npz").y.tolist() == [2, 0, 2], "numbers count as they are"


def test_sixteen_bits_and_channels(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x_train=X, y_train=Y)
    data = load(tmp_path, DEEP, "data.npz")
    assert data.x.dtype == np.uint16
    np.savez(tmp_path / "first.npz", x_train=X.transpose(0, 3, 1, 2), y_train=Y)
    assert np.array_equal(load(tmp_path, DEEP, "first.npz", channels="first").x, data.x)
    with pytest.raises(FedgenError, match="--channels first"):
        load(tmp_path, DEEP, "first.npz")
    np.savez(tmp_path / "data.npz", x_train=X * 2, y_train=Y)
    with pytest.raises(FedgenError, match=r"values up to 6,380; the federation's max_value is 4,095"):
        load(tmp_path, DEEP, "data.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "uint16"}, "samples of uint16 need max_value, as 4095"),
        ({"dtype": "float32", "max_value": 4095}, "float32 is taken as it is"),
        ({"class_names": ("cat", "dog")}, "there are 2 class names for 3 classes"),
        ({"class_names": ("cat", "dog", "cat")}, "two classes are called 'cat'"),
    ],
)
def test_settings_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FedgenError, match=message):
        TaskSettings(**{"classes": 3, "sample": (8, 8, 1), **change}).check()


def init(monkeypatch: pytest.MonkeyPatch, root: Path, *arguments: str) -> int:
    base = ["--site", "north", "--site", "south", "--host", "fed.example.org", "--sample", "28,28,1"]
    monkeypatch.setattr(sys, "argv", ["fedgen", "federate", "init", str(root), *base, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_init_writes_the_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = ("--dtype", "uint16", "--max-value", "4095", "--augment", "flip", "--augment", "shift")
    assert init(monkeypatch, tmp_path / "f", "--classes", "cat, dog,emu", *deep) == 0
    task = tomllib.loads((tmp_path / "f/fedgen-federation/task.toml").read_text())
    assert (task["classes"], task["class_names"], task["max_value"]) == (3, ["cat", "dog", "emu"], 4095)
    config = tomllib.loads((tmp_path / "f/fedgen-federation/config.toml").read_text())
    assert config["augment"] == ["flip", "shift"]
    assert not {"label", "user", "channels", "max_value", "train_fraction"} & config.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--classes", "cat"], "--classes is a number, or several names such as cat,dog,emu, not 'cat'"),
        (["--classes", "cat,,dog"], "has an empty name"),
        (["--classes", "cat,dog,cat"], "two classes are called 'cat'"),
        (["--classes", "1"], "classes must be greater than or equal to 2"),
        (["--classes", "3", "--dtype", "uint16"], "need max_value"),
    ],
)
def test_init_says_what_is_wrong(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert init(monkeypatch, tmp_path / "f", *arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "f").exists()


@pytest.mark.slow
def test_a_federation_augments_as_the_simulator_does_and_keeps_the_names(tmp_path: Path) -> None:
    setup = small_setup("fedavg", rounds=2, active=6, augment=["shift", "flip", "crop"])
    server, _ = local_federation(tmp_path, setup)
    summary = server.run()
    assert summary["class_names"] == ["0", "1", "2", "3"]
    run = tmp_path / "server/runs/run"
    assert '"max_value": 255' in (run / "data.json").read_text()
    simulated = play(setup, 2).server
    theirs = named(load_tree(run / "rounds/2.safetensors", simulated))
    for name, value in named(simulated).items():
        np.testing.assert_allclose(theirs[name], value, rtol=1e-4, atol=1e-5)
