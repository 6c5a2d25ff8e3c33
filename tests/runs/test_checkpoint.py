"""Checkpoints are whole or absent, and anything else is noticed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.runs.checkpoint import load_tree, read_about, save_tree

TREE = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "n": np.int32(4), "nested": (np.zeros(0, np.int8),)}


def test_round_trip_with_scalars_empty_arrays_and_a_description(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_tree(path, TREE, {"round": 7})
    assert read_about(path) == {"round": 7}
    loaded = load_tree(path, TREE)
    np.testing.assert_array_equal(loaded["a"], TREE["a"])
    assert loaded["n"] == 4
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.safetensors"
    save_tree(path, TREE, {})
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[-3] ^= 1
    path.write_bytes({"cut": content[:-5], "flip": content, "empty": b"", "text": b"not a checkpoint"}[damage])
    with pytest.raises(FedgenError, match="damaged"):
        read_about(path)


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(2)}, tmp_path / "c.safetensors")
    with pytest.raises(FedgenError, match="not written by this version"):
        read_about(tmp_path / "c.safetensors")


@pytest.mark.parametrize(
    "other", [{"a": TREE["a"]}, {**TREE, "more": np.zeros(1)}, {**TREE, "a": np.zeros((3, 2), np.float32)}]
)
def test_another_structure_is_refused(tmp_path: Path, other: dict) -> None:
    save_tree(tmp_path / "c.safetensors", TREE, {})
    with pytest.raises(FedgenError, match="of another run"):
        load_tree(tmp_path / "c.safetensors", other)


_FILL = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from fedgen.errors import FedgenError
from fedgen.runs.checkpoint import save_tree, read_about
path = Path(sys.argv[1])
save_tree(path, {"a": np.zeros(10)}, {"round": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    save_tree(path, {"a": np.zeros(10000)}, {"round": 2})
except FedgenError as error:
    print(error)
assert read_about(path) == {"round": 1}
"""


def test_a_write_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    """The system refuses to write past a limit, as a full disk would."""
    path = tmp_path / "c.safetensors"
    done = subprocess.run([sys.executable, "-c", _FILL, path], capture_output=True, text=True, check=True)
    assert "cannot be written" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_a_failed_write_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedgenError, match="cannot be written"):
        write_whole(tmp_path / "file" / "x", b"")
