"""Names, addresses and what Python adds: where a function comes from, and how it is named in files and options."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import fedgen
from command import call
from fedgen.algorithms import ALGORITHMS
from fedgen.config import parse_setting, read_toml, resolve, to_commented_toml, to_toml
from fedgen.core.contract import Model
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS, OFFERS, load, own_path
from fedgen.errors import FedgenError
from fedgen.grid.store import identity
from fedgen.models import MODELS
from fedgen.registry import Registry, file_name, is_address, options_of, summary_of
from fedgen.registry import load as load_function
from fedgen.runs.task import model_by_name
from helpers import blobs

MODULE = '''
from __future__ import annotations

import numpy as np

import fedgen
from fedgen.algorithms.fedavg import fedavg


def slow(task: fedgen.Task, federation: fedgen.Federation, *, factor: float = 0.5) -> fedgen.Algorithm:
    """FedAvg with a smaller rate."""
    return fedavg(task, federation.with_values(lr=federation.lr * factor))


def network(sample, classes, *, hidden: int = 5):
    return fedgen.MODELS["mlp"](sample, classes, hidden=hidden, latent=3)


def points(*, data_dir="", classes=3, seed=0, lr=0.5):
    labels = (seed + np.arange(120)) % classes
    x = np.stack([labels, labels**2], 1) + len(data_dir)
    return fedgen.from_arrays(x, labels, x, labels, name="points")


def greedy(task, federation, *, momentum=0.9):
    return fedavg(task, federation)


def nothing(*arguments, **more):
    return None
'''
TINY = {
    "users": 4, "active": 2, "rounds": 1, "local_steps": 1, "batch_size": 4, "eval_every": 1,
    "partition.min_samples": 2,
}  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module of one's own in the current directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    yield tmp_path
    sys.modules.pop("my_module", None)


@pytest.mark.parametrize("registry", [ALGORITHMS, MODELS, DATASETS, PARTITIONERS, OFFERS], ids=lambda r: r.kind)
def test_all_that_is_built_in_is_there(registry: Registry[Any]) -> None:
    for name in registry:
        found = registry[name]
        assert found is registry.find(name)
        assert registry.origin(name) == registry.package(name) == ""
        assert not callable(found) or summary_of(found)
    assert len(registry) == len(set(registry))


def test_python_adds_and_takes_back() -> None:
    registry: Registry[Any] = Registry("fruit", {"load": "fedgen.registry:load"})
    registry["mine"] = options_of
    assert list(registry) == ["load", "mine"]
    assert registry.origin("mine") == "fedgen.registry:options_of registered in Python"
    assert registry.pop("mine") is options_of
    assert "mine" not in registry
    registry["load"] = options_of  # another in the place of what is built in
    assert registry["load"] is options_of
    assert registry.origin("load")
    registry["load"] = load_function  # and back again
    assert registry.origin("load") == ""
    with pytest.raises(KeyError):
        registry["mine"]
    with pytest.raises(FedgenError, match="unknown fruit 'lod'; did you mean 'load'"):
        registry.find("lod")
    for name in ("", "a/b", "a:b", "../x", "model", 'a"b'):
        with pytest.raises(FedgenError, match="cannot be called"):
            registry[name] = options_of


def test_addresses_and_file_names() -> None:
    assert is_address("my.module:function")
    assert is_address("module:Class.method")
    for name in ("fedgen", "C:/data", "a:b:c", "my module:f", ":f", "m:", "./m:f", "http://x"):
        assert not is_address(name)
    assert file_name("my.module:function") == "my.module@function"
    assert file_name("feddistill+") == "feddistill+"


def test_a_module_of_ones_own_is_run_repeated_and_resumed(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = [
        word for key, value in TINY.items() if "." not in key for word in (f"--{key.replace('_', '-')}", str(value))
    ]
    names = ["--algorithm", "my_module:slow", "--model", "my_module:network", "--dataset", "my_module:points"]
    options = ["--set", "my_module:slow.factor=0.25", "--set", "dataset.classes=2", "--set", "partition.min_samples=2"]
    assert call(monkeypatch, "run", *tiny, *names, *options, "--out", "run") == 0, capsys.readouterr().err
    written = read_toml(mine / "run/config.toml")
    assert written["my_module:slow.factor"] == 0.25
    assert written["dataset.classes"] == 2
    assert (mine / "run/models/my_module@slow-seed0.safetensors").exists()
    metrics = (mine / "run/metrics.jsonl").read_bytes()
    assert call(monkeypatch, "run", "--config", "run/config.toml", "--out", "again") == 0
    assert (mine / "again/metrics.jsonl").read_bytes() == metrics
    assert call(monkeypatch, "run", "--resume", "--out", "run") == 0
    assert call(monkeypatch, "report", "run", "again") == 0

    capsys.readouterr()
    (mine / "my_module.py").write_text(MODULE + "# changed\n")
    assert call(monkeypatch, "run", "--resume", "--out", "run") == 2
    error = capsys.readouterr().err
    assert "dataset 'my_module:points' from my_module:points in a file with SHA-256" in error
    assert "and here it is my_module:points in a file with SHA-256" in error
    monkeypatch.chdir("/")
    sys.modules.pop("my_module")
    assert call(monkeypatch, "run", "--resume", "--out", mine / "run") == 2
    assert "which is not here; bring the same here, or run it from the folder that" in capsys.readouterr().err
    (mine / "image.csv").write_text("1,2\n")
    assert call(monkeypatch, "predict", mine / "run", mine / "image.csv") == 2
    said = "run it from the folder that holds module 'my_module', or add that folder to PYTHONPATH"
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_module_that_is_there_and_broken_is_not_said_to_be_absent(mine: Path) -> None:
    (mine / "c.toml").write_text(to_toml(resolve(TINY, {"model": "my_module:network"})))
    sys.modules.pop("my_module")
    (mine / "my_module.py").write_text("import absent_dependency\n")
    with pytest.raises(FedgenError, match=r"cannot be imported: ModuleNotFoundError: .*absent_dependency"):
        resolve(read_toml(mine / "c.toml"))


def test_identities_differ_with_the_file_and_the_written_configuration_is_read_back(mine: Path) -> None:
    config = resolve(TINY, {"algorithms": ["my_module:slow"], "my_module:slow.lr": 0.5})
    assert config.of("my_module:slow") == {"factor": 0.5, "lr": 0.5}
    for text in (to_toml(config), to_commented_toml(config)):
        (mine / "c.toml").write_text(text)
        assert resolve(read_toml(mine / "c.toml")) == config
    name = identity(config)
    assert name.startswith("mnist-my_module@slow-")
    (mine / "my_module.py").write_text(MODULE + "# changed\n")
    assert identity(resolve(TINY, {"algorithms": ["my_module:slow"], "my_module:slow.lr": 0.5})) != name


def test_what_is_built_in_leaves_no_trace() -> None:
    assert "plugins" not in to_toml(resolve())
    assert identity(resolve({"algorithms": ["fedavg"], "max_update": 0.0})) == "mnist-fedavg-cfcc598578e2", (
        "as before there were plug-ins"
    )


def test_options_on_the_command_line() -> None:
    assert parse_setting("my.module:function.momentum=0.5") == ("my.module:function.momentum", 0.5)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"algorithms": ["my_module:absent"]}, "algorithm 'my_module:absent' cannot be imported: AttributeError"),
        ({"model": "absent_module:network"}, "model 'absent_module:network' cannot be imported: ModuleNotFoundError"),
        ({"dataset": "absent_module:points"}, "dataset 'absent_module:points' cannot be imported"),
        (
            {"model": "absent_module:network"},
            "from the folder that holds module 'absent_module'",
        ),
        (
            {"model": "./net.py:build"},
            "module:function, a module that can be imported and no path: net:build",
        ),
        ({"algorithms": ["my_module:slow"], "my_module:slow.fctor": 1}, "did you mean 'factor'?"),
        ({"algorithms": ["my_module:slow"], "my_module:slow.factor": -1.0}, "must be greater than or equal to 0"),
        ({"algorithms": ["my_module:greedy"]}, "'momentum', and that is a setting of the run"),
        ({"model": "my_module:network", "model.hidden": "x"}, "model.hidden must be a valid integer"),
    ],
)
def test_mistakes_are_one_sentence(mine: Path, layer: dict[str, Any], message: str) -> None:
    with pytest.raises(FedgenError) as caught:
        resolve(TINY, layer)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_functions_that_give_something_else_are_named(mine: Path) -> None:
    sample = jax.ShapeDtypeStruct((2,), np.float32)
    with pytest.raises(FedgenError, match=r"model 'my_module:nothing': .* given as None; it must be a fedgen.Model"):
        model_by_name("my_module:nothing", sample, 2, {})
    with pytest.raises(FedgenError, match=r"model 'mlp' with options .*'depth'"):
        model_by_name("mlp", sample, 2, {"depth": 3})
    with pytest.raises(FedgenError, match=r"dataset 'my_module:nothing' gives a NoneType"):
        load("my_module:nothing")


def test_a_dataset_gets_the_folder_that_the_user_names(mine: Path) -> None:
    assert load("my_module:points", data_dir="1234567", classes=2).x_train[0, 0] == 7
    assert own_path("my_module:points") is None
    config = resolve({"dataset": "my_module:points", "dataset.seed": 4, "dataset.lr": 2.0, "seed": 1}, {"lr": 0.1})
    assert config.of("dataset") == {"classes": 3, "seed": 4, "lr": 2.0}, "which may be called as settings are"
    (mine / "my_module:points").mkdir()
    assert own_path("my_module:points") == mine / "my_module:points", "what is there is a path"


@pytest.mark.slow
def test_from_python_by_name_and_by_object(mine: Path) -> None:
    settings = {**{k: v for k, v in TINY.items() if "." not in k}, "options": {"partition.min_samples": 2}}
    data = fedgen.from_arrays(*blobs(200), *blobs(100, seed=1), name="blobs")
    model = MODELS["mlp"]((8, 8, 1), 4, hidden=5, latent=3)
    assert isinstance(model, Model)
    own = fedgen.simulate("fedavg", data=data, model=model, **settings)
    named = fedgen.simulate("fedavg", data=data, model="my_module:network", **settings)
    assert own["results"][0]["curve"] == named["results"][0]["curve"]
    points = fedgen.simulate("fedavg", data="my_module:points", model="mlp", **settings)
    assert points["config"]["dataset"] == "my_module:points"
    assert points["config"]["model"] == "mlp"
    np.savez(mine / "mine.npz", x_train=data.x_train, y_train=data.y_train, x_test=data.x_test, y_test=data.y_test)
    from_file = fedgen.simulate("fedavg", data="mine.npz", model="mlp", **settings)
    assert from_file["config"]["dataset"] == str(mine / "mine.npz")
    with pytest.raises(FedgenError, match="unknown model 'mpl'; did you mean 'mlp'"):
        fedgen.simulate("fedavg", data=data, model="mpl", **settings)


def test_importing_the_package_loads_no_engine() -> None:
    code = (
        "import sys, json, fedgen, fedgen.cli.main, fedgen.config; before = 'jax' in sys.modules;"
        "names = [name for name in fedgen.__all__ if getattr(fedgen, name) is None];"
        "print(json.dumps([before, names, sorted(set(fedgen.__all__) - set(dir(fedgen))), 'jax' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [False, [], [], True]
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        fedgen.simulat  # noqa: B018
