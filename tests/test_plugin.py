"""A pip-installed plug-in is listed, runs, resumes, is repeated, and is missed where it is not the same."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from local_federation import local_federation

from command import call
from fedgen.algorithms import ALGORITHMS
from fedgen.config import read_toml, resolve, to_toml
from fedgen.data.sources import DATASETS
from fedgen.errors import FedgenError
from fedgen.federate.apps import _answer
from fedgen.federate.journal import read_journal
from fedgen.grid.runner import compute
from fedgen.grid.store import Store, identity
from fedgen.models import MODELS
from fedgen.runs.folder import RunFolder
from fedgen.runs.watch import Watch
from fedgen.simulator.run import Interrupted, run
from fedgen.simulator.setup import prepare

PLUGIN = Path(__file__).parents[1] / "examples/plugin"
TINY = {
    "algorithms": ["fedavgm"], "dataset": "rings", "model": "tanh", "users": 4, "active": 2, "rounds": 3,
    "local_steps": 2, "batch_size": 8, "eval_every": 1, "dataset.samples": 200, "partition.min_samples": 2,
}  # fmt: skip
WORDS = [
    "--dataset", "rings", "--model", "tanh", "--users", "4", "--active", "2", "--rounds", "2", "--local-steps", "1",
    "--batch-size", "8", "--set", "dataset.samples=200", "--set", "partition.min_samples=2",
]  # fmt: skip
Installed = Callable[[str | None], None]


def pip_install(source: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    command += ["--disable-pip-version-check", "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The example, installed into a folder for each version."""
    folder = tmp_path_factory.mktemp("plugins")
    found = {}
    for version in ("0.1.0", "0.2.0"):
        source = shutil.copytree(PLUGIN, folder / f"source-{version}")
        project = source / "pyproject.toml"
        text = project.read_text()
        assert 'version = "0.1.0"' in text
        project.write_text(text.replace('version = "0.1.0"', f'version = "{version}"'))
        found[version] = pip_install(source, folder / version)
    return found


def forget() -> None:
    sys.modules.pop("fedgen_fedavgm", None)
    for registry in (ALGORITHMS, MODELS, DATASETS):
        vars(registry).pop("_plugins", None)


@pytest.fixture
def installed(versions: dict[str, Path]) -> Iterator[Installed]:
    """Make this process one in which a version is installed, or none."""
    before = list(sys.path)

    def install(version: str | None) -> None:
        forget()
        sys.path[:] = [*before, *([str(versions[version])] if version else [])]

    yield install
    install(None)


class Stop(Watch):
    def stop_requested(self) -> bool:
        return True


def test_it_is_listed_with_its_package_and_runs(versions: dict[str, Path], tmp_path: Path) -> None:
    """As a user meets it: other processes, with the folder on their path."""
    path = os.pathsep.join([str(versions["0.1.0"]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}

    def fedgen(*words: str) -> str:
        command = [sys.executable, "-m", "fedgen", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = fedgen("list")
    for name in ("fedavgm", "tanh", "rings"):
        assert re.search(rf"^ *{name} .*\(fedgen-fedavgm 0\.1\.0\)", shown, re.M), shown
    out = tmp_path / "run"
    assert "fedavgm" in fedgen("run", *WORDS, "--algorithm", "fedavgm", "--algorithm", "fedavg", "--out", str(out))
    assert read_toml(out / "config.toml")["plugins"] == {
        "algorithm fedavgm": "fedgen_fedavgm:fedavgm of fedgen-fedavgm 0.1.0",
        "model tanh": "fedgen_fedavgm:tanh of fedgen-fedavgm 0.1.0",
        "dataset rings": "fedgen_fedavgm:rings of fedgen-fedavgm 0.1.0",
    }


@pytest.mark.slow
def test_a_run_is_resumed_and_repeated(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed("0.1.0")
    config = resolve(TINY)
    run(prepare(config), folder=RunFolder.create(tmp_path / "whole", config))
    with pytest.raises(Interrupted):
        run(prepare(config), folder=RunFolder.create(tmp_path / "part", config), watch=Stop())
    metrics = (tmp_path / "whole/metrics.jsonl").read_bytes()
    assert metrics.startswith((tmp_path / "part/metrics.jsonl").read_bytes())
    assert call(monkeypatch, "run", "--resume", "--out", tmp_path / "part") == 0
    assert (tmp_path / "part/metrics.jsonl").read_bytes() == metrics
    assert call(monkeypatch, "run", "--config", tmp_path / "whole/config.toml", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again/metrics.jsonl").read_bytes() == metrics

    capsys.readouterr()
    for arguments in (["--resume", "--out", tmp_path / "part"], ["--config", tmp_path / "whole/config.toml"]):
        for version, found in ((None, "which is not installed here"), ("0.2.0", "and 0.2.0 is installed here")):
            installed(version)
            assert call(monkeypatch, "run", *arguments) == 2
            error = capsys.readouterr().err.strip()
            assert f"dataset 'rings' from fedgen_fedavgm:rings of fedgen-fedavgm 0.1.0, {found}" in error
            assert "pip install fedgen-fedavgm==0.1.0" in error
            assert "\n" not in error
    installed(None)
    assert call(monkeypatch, "report", tmp_path / "whole") == 0  # what was computed can be looked at without it


@pytest.mark.slow
def test_it_is_swept(installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("0.1.0")
    words = [*WORDS, "--algorithm", "fedavgm", "--over", "lr=0.1,0.2", "--seeds", "1", "--final-seeds", "1"]
    assert call(monkeypatch, "sweep", *words, "--out", tmp_path / "sweep") == 0
    best = resolve(read_toml(tmp_path / "sweep/best.toml"))
    assert list(best.algorithms) == ["fedavgm"]
    assert best.of("fedavgm").get("lr", best.lr) in (0.1, 0.2)


@pytest.mark.slow
def test_it_trains_in_a_federation_as_in_the_simulator(installed: Installed, tmp_path: Path) -> None:
    installed("0.1.0")
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # without which Flower makes no message
    setup = prepare(resolve({**TINY, "active": 4}))
    (alone,) = run(setup)["results"]
    server, _ = local_federation(tmp_path, setup)
    (row,) = server.run()["results"]
    assert (row["rounds"], row["accuracy"]) == (alone["rounds"], alone["accuracy"])


def test_what_is_here_is_used_where_the_line_is_deleted(installed: Installed, tmp_path: Path) -> None:
    installed("0.1.0")
    text = to_toml(resolve(TINY))
    installed("0.2.0")
    (tmp_path / "c.toml").write_text(re.sub(r'^".* of fedgen-fedavgm .*\n', "", text, flags=re.M))
    config = resolve(read_toml(tmp_path / "c.toml"))
    assert config.plugins["algorithm fedavgm"].endswith("fedgen-fedavgm 0.2.0")
    (tmp_path / "c.toml").write_text(re.sub(r'^"(dataset|model) .*\n', "", text, flags=re.M))
    with pytest.raises(FedgenError, match="algorithm 'fedavgm' from"):
        resolve(read_toml(tmp_path / "c.toml"))
    other = resolve(read_toml(tmp_path / "c.toml"), {"algorithms": ["fedavg"]})
    assert set(other.plugins) == {"dataset rings", "model tanh"}, "what is not used is not missed"


def test_a_cell_of_a_grid_is_another_with_another_version(installed: Installed, tmp_path: Path) -> None:
    installed("0.1.0")
    first = resolve(TINY)
    assert compute([first], Store(tmp_path)) == {}
    cell = Store(tmp_path).cell(first)
    assert cell is not None
    assert cell["config"]["plugins"] == first.plugins
    name = identity(first)
    installed("0.2.0")
    assert identity(resolve(TINY)) != name
    assert Store(tmp_path).cell(resolve(TINY)) is None
    assert "fedavgm" in name


def test_a_site_without_it_or_with_another_version_says_so(
    installed: Installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal of the site has the sentence; the server hears that something there is not in order."""
    installed("0.1.0")
    sites = ["--site", "north", "--site", "south", "--host", "fed.example.org"]
    data = ["--classes", "3", "--sample", "2", "--dtype", "float32"]
    words = ["--algorithm", "fedavgm", "--model", "tanh"]
    assert call(monkeypatch, "federate", "init", tmp_path / "f", *sites, *data, *words) == 0
    listed = "- algorithm fedavgm: fedgen_fedavgm:fedavgm of fedgen-fedavgm 0.1.0"
    assert listed in (tmp_path / "f/README.md").read_text()
    folder = tmp_path / "f/sites/north"
    context = Context(0, 0, {"folder": str(folder)}, RecordDict(), {})
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # without which Flower makes no message
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    for version, found in ((None, "which is not installed here"), ("0.2.0", "and 0.2.0 is installed here")):
        installed(version)
        with pytest.raises(FedgenError, match="its data or settings are not in order"):
            _answer(message, context, tmp_path / "f/fedgen-federation", train=True)
        reason = read_journal(folder / "log.jsonl")[-1]["reason"]
        assert f"algorithm 'fedavgm' from fedgen_fedavgm:fedavgm of fedgen-fedavgm 0.1.0, {found}" in reason
    installed("0.1.0")
    with pytest.raises(FedgenError, match="not in order"):
        _answer(message, context, tmp_path / "f/fedgen-federation", train=True)
    assert "data.npz" in read_journal(folder / "log.jsonl")[-1]["reason"], "with the plug-in, only the data is missed"


def test_names_that_are_taken_give_way_to_addresses(
    installed: Installed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import EntryPoint

    import fedgen.registry

    installed("0.1.0")
    group = "fedgen.algorithms"
    points = [
        EntryPoint("fedavg", "fedgen_fedavgm:fedavgm", group),
        EntryPoint("twice", "fedgen_fedavgm:fedavgm", group),
        EntryPoint("twice", "fedgen_fedavgm:tanh", group),
        EntryPoint("broken", "no_such_module:function", group),
    ]
    monkeypatch.setattr(fedgen.registry, "entry_points", lambda **_: points)
    names = set(ALGORITHMS) - {"fedavg"}
    assert "twice" not in names
    assert {"fedgen_fedavgm:fedavgm", "fedgen_fedavgm:tanh"} <= names
    assert ALGORITHMS["fedavg"].__module__ == "fedgen.algorithms.fedavg"
    with pytest.raises(FedgenError, match="algorithm 'broken' cannot be imported: ModuleNotFoundError"):
        ALGORITHMS.find("broken")
    assert call(monkeypatch, "list") == 0, "one that is broken does not hide the others"
    shown = capsys.readouterr().out
    assert "algorithm 'broken' cannot be imported" in shown
    assert "cifar10" in shown
