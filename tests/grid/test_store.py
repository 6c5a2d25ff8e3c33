"""Cells: each known by what it computes, kept without paths, and refused by name where it cannot be read."""

from pathlib import Path

import pytest

from fedgen.config import resolve
from fedgen.errors import FedgenError
from fedgen.grid.store import Store, identity
from reproduction_folder import DATA, made_up


def test_a_cell_is_known_by_what_it_computes() -> None:
    def of(**settings: object) -> str:
        return identity(resolve({"algorithms": ["fedgen"], **settings}))

    assert of() == of(data_dir="/elsewhere", score="authors")
    for changed in ({"seeds": 2}, {"rounds": 9}, {"alpha": 0.2}, {"fedgen.w": 2.0}, {"eval_every": 1}, {"lr": 0.1}):
        assert of() != of(**changed), changed


def test_a_cell_is_kept_and_found_again_without_paths(tmp_path: Path) -> None:
    config = resolve({"algorithms": ["fedgen"], "data_dir": "/some/where"})
    store = Store(tmp_path)
    assert store.cell(config) is None
    kept = store.keep(config, made_up(config), DATA)
    assert store.cell(config) == kept
    assert "/some/where" not in (store.cells / f"{identity(config)}.json").read_text()


def test_files_of_another_format_are_refused_by_name(tmp_path: Path) -> None:
    config = resolve({"algorithms": ["fedgen"]})
    Store(tmp_path).keep(config, made_up(config), DATA)
    (path,) = (tmp_path / "cells").glob("mnist-fedgen-*.json")
    path.write_text(path.read_text().replace('"format": 1', '"format": 0'))
    with pytest.raises(FedgenError, match=r"has format 0 and this is version .*, which reads 1"):
        Store(tmp_path).cell(config)
    path.write_text("{")
    with pytest.raises(FedgenError, match=r"cannot be read: .*; delete it to make it again"):
        Store(tmp_path).cell(config)
