"""Commands that change a federation's folder: one at a time, and whole, wherever one of them is stopped."""

import contextlib
import os
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedgen.config import resolve
from fedgen.errors import FedgenError
from fedgen.federate.deploy import turns
from fedgen.federate.deploy.edit import set_values
from fedgen.federate.deploy.folders import Folders
from fedgen.federate.deploy.init import begin
from fedgen.federate.deploy.keys import make_site_keys
from fedgen.federate.deploy.members import add_site, remove_site, rotate_key
from fedgen.federate.deploy.renew import renew_certificate
from fedgen.federate.deploy.superlink import register_keys
from fedgen.federate.schema import ServerSettings, TaskSettings
from fedgen.federate.settings import NOT_DIVIDED
from fedgen.runs import lock
from locked import held_by_another

WRITES = [(Path, name) for name in ("replace", "rename", "unlink", "mkdir", "rmdir")] + [(shutil, "rmtree")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layers = {"algorithms": ["fedavg"], "users": 3, "active": 3, "dataset": "of-the-sites", "model": "mlp"}
    config = resolve(NOT_DIVIDED, layers, own={"dataset"})
    root = tmp_path_factory.mktemp("federation") / "f"
    begin(
        root, config, TaskSettings(classes=4, sample=(8, 8, 1)),
        ServerSettings(sites=("north", "south", "gone"), min_sites=1),
        host="localhost", port=1, bind="127.0.0.1", superlink_port=2,
    )  # fmt: skip
    remove_site(Folders(root), "gone")
    shutil.rmtree(root / "sites/gone")
    return root


@pytest.fixture
def fresh(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Folders]:
    """A new copy of the federation with each call."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the power does not fail here

    def copy() -> Folders:
        shutil.rmtree(tmp_path / "f", ignore_errors=True)
        return Folders(Path(shutil.copytree(written, tmp_path / "f")))

    return copy


class StoppedError(BaseException):
    """The process has ended here, or Ctrl-C was pressed."""


@contextlib.contextmanager
def stopped_at(number: int, *, killed: bool) -> Any:
    """Stop at this write; a process that was killed does nothing after it. Gives a list of the writes so far."""
    done: list[str] = []

    def watch(of: Any, name: str) -> Callable[..., Any]:
        real = getattr(of, name)

        def write(path: Path, *rest: Any, **more: Any) -> Any:
            if Path(path).name == lock.NAME:  # which the system gives back
                return real(path, *rest, **more)
            done.append(f"{name} {path}")
            if len(done) == number or (killed and len(done) > number):
                raise StoppedError
            return real(path, *rest, **more)

        return write

    with pytest.MonkeyPatch.context() as patch:
        for of, name in WRITES:
            patch.setattr(of, name, watch(of, name))
        yield done


def files(folders: Folders) -> dict[str, bytes]:
    return {str(p.relative_to(folders.root)): p.read_bytes() for p in folders.root.rglob("*") if p.is_file()}


def check(folders: Folders, *names: str) -> None:
    """The files agree, and these sites belong to the federation."""
    server = tomllib.loads((folders.server / "server.toml").read_text())
    config = tomllib.loads((folders.app / "config.toml").read_text())
    assert config["users"] == config["active"] == len(server["sites"]) == len(set(server["sites"]))
    assert set(server["sites"]) - set(server["removed"]) == set(names)
    assert {path.stem for path in (folders.server / "keys").glob("*.pub")} == set(names)
    for name in names:
        site = folders.site(name)
        assert tomllib.loads((site / "site.toml").read_text())["number"] == server["sites"].index(name)
        here = [site, folders.root / "new-keys" / name]
        assert folders.public_key(name).read_bytes() in {
            (place / "site.pub").read_bytes() for place in here if (place / "site.key").exists()
        }
    assert not [path for path in (folders.root / "unfinished").rglob("*") if path.is_file()]


def stops(fresh: Callable[[], Folders], command: Callable[[Folders], object], *, killed: bool, least: int = 3) -> Any:
    """The federation after the command was stopped at its first write, at its second ..., with how it was before."""
    for number in range(1, 1000):
        folders = fresh()
        before = files(folders)
        try:
            with stopped_at(number, killed=killed) as done:
                command(folders)
        except StoppedError:
            yield folders, before
        if len(done) < number:
            assert number > least, "it is watched"
            return


def again(command: Callable[[Folders], object], folders: Folders) -> None:
    with contextlib.suppress(FedgenError):  # it was done already
        command(folders)


@pytest.mark.parametrize("name", ["east", "gone"])
def test_adding_a_site_goes_on_where_it_was_killed(name: str, fresh: Callable[[], Folders]) -> None:
    def add(folders: Folders) -> object:
        return add_site(folders, name)

    for folders, _ in stops(fresh, add, killed=True):
        add_site(folders, "west")  # nobody has to repeat it at once
        again(add, folders)
        check(folders, "north", "south", "west", name)
    for folders, _ in stops(fresh, add, killed=True):
        for killed in (True, False):  # the next one is stopped, too
            with contextlib.suppress(StoppedError), stopped_at(9, killed=killed):
                again(add, folders)
        again(add, folders)
        check(folders, "north", "south", name)


@pytest.mark.parametrize("name", ["east", "gone"])
def test_after_ctrl_c_all_is_as_before_or_done(name: str, fresh: Callable[[], Folders]) -> None:
    for folders, before in stops(fresh, lambda folders: add_site(folders, name), killed=False):
        if folders.site(name).exists():
            check(folders, "north", "south", name)
        else:
            assert files(folders) == before
    for folders, before in stops(fresh, lambda folders: rotate_key(folders, "north"), killed=False):
        if (folders.root / "new-keys").exists():
            check(folders, "north", "south")
        assert (folders.root / "new-keys/north/site.key").exists() or files(folders) == before


def test_a_site_with_its_own_key_may_be_added_again(fresh: Callable[[], Folders], tmp_path: Path) -> None:
    own = tmp_path / "own.pub"
    own.write_bytes((add_site(fresh(), "east") / "site.pub").read_bytes())

    def add(folders: Folders) -> object:
        return add_site(folders, "east", own)

    for folders, _ in stops(fresh, add, killed=True):
        again(add, folders)
        assert folders.public_key("east").read_bytes() == own.read_bytes()
        assert (folders.site("east") / "start.sh").exists()


def test_a_sites_own_key_may_be_given_again_after_a_kill_and_the_one_before_is_kept(
    fresh: Callable[[], Folders], tmp_path: Path
) -> None:
    own, old = tmp_path / "own.pub", tmp_path / "old.pub"
    own.write_bytes(make_site_keys()[1])

    def rotate(folders: Folders) -> object:
        return rotate_key(folders, "north", own)

    old.write_bytes(fresh().public_key("north").read_bytes())
    for folders, _ in stops(fresh, rotate, killed=True, least=1):
        again(rotate, folders)
        assert folders.public_key("north").read_bytes() == own.read_bytes()
        with pytest.raises(FedgenError, match="replaced or removed before"):
            rotate_key(folders, "north", old)
    for folders, _ in stops(fresh, lambda folders: remove_site(folders, "north"), killed=True):
        again(lambda folders: remove_site(folders, "north"), folders)
        shutil.rmtree(folders.site("north"))
        with pytest.raises(FedgenError, match="replaced or removed before"):
            add_site(folders, "north", old)


def test_a_key_with_which_a_site_was_not_added_to_the_end_is_kept_where_another_takes_its_place(
    fresh: Callable[[], Folders], tmp_path: Path
) -> None:
    """`register.sh` may have been called between."""
    one, two = tmp_path / "one.pub", tmp_path / "two.pub"
    for own in (one, two):
        own.write_bytes(make_site_keys()[1])
    for folders, _ in stops(fresh, lambda folders: add_site(folders, "east", one), killed=True):
        taken = folders.public_key("east").exists()
        again(lambda folders: add_site(folders, "east", two), folders)
        if taken and folders.public_key("east").read_bytes() == two.read_bytes():
            with pytest.raises(FedgenError, match="replaced or removed before"):
                rotate_key(folders, "south", one)
            return
    pytest.fail("it was never stopped between key and folder")


def test_removing_and_rotating_may_be_killed_and_given_again(fresh: Callable[[], Folders]) -> None:
    for folders, _ in stops(fresh, lambda folders: remove_site(folders, "north"), killed=True):
        again(lambda folders: remove_site(folders, "north"), folders)
        check(folders, "south")
    for folders, _ in stops(fresh, lambda folders: rotate_key(folders, "north"), killed=True):
        again(lambda folders: rotate_key(folders, "north"), folders)
        check(folders, "north", "south")


def test_a_site_that_is_not_added_to_the_end_gets_no_other_key_and_may_be_removed(fresh: Callable[[], Folders]) -> None:
    found = set()
    for folders, _ in stops(fresh, lambda folders: add_site(folders, "east"), killed=True):
        if (folders.root / "unfinished/sites/east").exists():
            with pytest.raises(FedgenError, match=r"not added to the end .*add-site"):
                rotate_key(folders, "east")
        try:
            remove_site(folders, "east")
            check(folders, "north", "south")
        except FedgenError as error:
            found.add(str(error)[:13])
    assert found == {"east was not ", "unknown site "}


def test_what_changes_is_read_within_the_lock(fresh: Callable[[], Folders], monkeypatch: pytest.MonkeyPatch) -> None:
    folders, real = fresh(), turns.lock

    def taken_after_another_command(folder: Path, patience: float, name: str) -> lock.Lock:
        set_values(folders.server / "server.toml", sites=["north", "south", "gone", "east"])
        return real(folder, patience, name)

    monkeypatch.setattr(turns, "lock", taken_after_another_command)
    add_site(folders, "west")
    assert tomllib.loads((folders.server / "server.toml").read_text())["sites"][3:] == ["east", "west"]
    assert tomllib.loads((folders.site("west") / "site.toml").read_text())["number"] == 4


def test_commands_wait_for_each_other(fresh: Callable[[], Folders], monkeypatch: pytest.MonkeyPatch) -> None:
    folders = fresh()
    monkeypatch.setattr(turns, "_PATIENCE", 0.0)
    before = files(folders)
    commands: list[Callable[[], object]] = [
        lambda: add_site(folders, "east"),
        lambda: remove_site(folders, "north"),
        lambda: rotate_key(folders, "south"),
        lambda: renew_certificate(folders.server / "server.crt", folders.authority),
        lambda: register_keys(folders.server),
    ]
    with held_by_another(folders.server) as process:
        for command in commands:
            with pytest.raises(FedgenError, match=rf"server is in use: process {process.pid} on .* writes there"):
                command()
        assert {name for name in files(folders) if files(folders)[name] != before.get(name)} == {"server/run.lock"}
    for command in commands[:4]:
        command()
    assert not (folders.server / lock.NAME).exists()
