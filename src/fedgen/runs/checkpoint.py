"""Checkpoints: one safetensors file, written under a temporary name and renamed, so that it is whole or absent.

What a checkpoint belongs to (algorithm, round, length of the metrics file ...) is in the same file's
header. Two files could disagree after a kill between their renames; one cannot.
"""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from fedgen.core.contract import Tree
from fedgen.core.trees import named
from fedgen.errors import FedgenError
from fedgen.files import write_whole

FORMAT = "fedgen-checkpoint-1"


def save_tree(path: Path, tree: Tree, about: Mapping[str, Any]) -> None:
    """Write the arrays of a tree, named by their path in it, and a JSON description."""
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in named(jax.device_get(tree)).items()}
    header = {"format": FORMAT, "about": dict(about), "checksum": _checksum(arrays)}
    # One entry only: the order of several is not fixed, and the same run is to write the same bytes.
    write_whole(path, save(arrays, {"fedgen": json.dumps(header)}))


def read_about(path: Path) -> dict[str, Any]:
    """The description in a checkpoint, after checking that the file is whole."""
    return _read(path)[1]


def load_tree(path: Path, like: Tree) -> Tree:
    """The tree in a checkpoint; it must have the names, shapes and types of `like`."""
    arrays, _ = _read(path)
    expected = named(like)
    for name, leaf in expected.items():
        found = arrays.get(name)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            shown = "nothing" if found is None else f"{found.shape} of {found.dtype}"
            raise FedgenError(
                f"checkpoint {path} is of another run: it has {shown} for {name}, not {leaf.shape} of {leaf.dtype}"
            )
    if extra := set(arrays) - set(expected):
        raise FedgenError(f"checkpoint {path} is of another run: it holds {min(extra)}, which this one does not have")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected])


def _checksum(arrays: Mapping[str, np.ndarray]) -> int:
    total = 0
    for name in sorted(arrays):
        total = zlib.crc32(arrays[name].tobytes(), zlib.crc32(name.encode(), total))
    return total


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {}).get("fedgen", "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError, ValueError) as error:
        raise FedgenError(f"checkpoint {path} is damaged ({error}); delete it to start anew") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FedgenError(f"checkpoint {path} was not written by this version; delete it to start anew")
    if header.get("checksum") != _checksum(arrays):
        raise FedgenError(f"checkpoint {path} is damaged: its checksum does not fit; delete it to start anew")
    return arrays, header["about"]
