"""Whether a round broke the model, and whose updates are suspected then."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedgen.core.contract import Tree
from fedgen.core.trees import named, stack
from fedgen.core.wires import Wires
from fedgen.runs.checkpoint import load_tree, read_about, save_tree

# An honest round may well cost some accuracy where sites differ. These are far beyond that.
_POINTS, _SHARE = 20.0, 0.5  # of accuracy: how many are lost, and how much is left of what there was
_PART = re.compile(r"^(?:\.base)*(?:\.\w+|\[[^]]*\])?")  # the beginning of an array's name: '.base.params', say
_NATS, _TIMES = 1.0, 3.0  # of the loss: by how much it has grown, and how many times


def fell(before: float, after: float) -> bool:
    """Whether an accuracy in percent fell so far that the model must be broken."""
    return before - after > _POINTS and after < _SHARE * before


def rose(before: float, after: float) -> bool:
    """Whether a loss rose so far that the model must be broken."""
    return not np.isfinite(after) or (after - before > _NATS and after > _TIMES * before)


def outliers(uploads: Mapping[int, Tree]) -> list[int]:
    """The sites, that whose upload is farthest from the others first: far is no proof.

    Each part of an upload is measured by its distance from the median of each number, in multiples of the sites' median
    distance. The largest multiple counts.
    """
    by_site = [_parts(upload) for upload in uploads.values()]
    largest = np.zeros(len(by_site))  # [site]
    for part in by_site[0]:
        vectors = np.stack([parts[part] for parts in by_site])  # [site, number]
        distance = np.linalg.norm(vectors - np.median(vectors, axis=0), axis=1)
        usual = float(np.median(distance)) or float(np.mean(distance))  # most may have sent the very same
        if usual:
            largest = np.maximum(largest, distance / usual)
    return [list(uploads)[place] for place in np.argsort(-largest, kind="stable")]


class Unjudged:
    """The state before a round and its uploads on disk, until the next round tells whether it broke the model."""

    def __init__(self, folder: Path, forms: Wires) -> None:
        self._folder, self._forms = folder, forms

    def keep(self, number: int, state: Tree, uploads: Mapping[int, Tree], *, taken_back: bool = False) -> None:
        """Keep a round beside the one before it, which may still be asked for after a kill."""
        kept = {"state": state, "uploads": stack(list(uploads.values()))}
        save_tree(self._file(number), kept, {"sites": list(uploads), "taken_back": taken_back})

    def can_lose_one(self, number: int, least: int) -> bool:
        """Whether the round is kept as it was, with more uploads than `least` and enough to tell an outlier."""
        path = self._file(number)
        about: dict[str, Any] = read_about(path) if path.exists() else {"sites": [], "taken_back": True}
        return not about["taken_back"] and len(about["sites"]) > max(least, 2)

    def sites(self, number: int) -> list[int]:
        """The sites whose uploads of this round are kept."""
        return list(read_about(self._file(number))["sites"])

    def load(self, number: int) -> tuple[Tree, dict[int, Tree]]:
        """The state before the round, and the uploads by site."""
        sites, form = self.sites(number), self._forms.upload
        stacked = jax.tree.map(lambda a: jax.ShapeDtypeStruct((len(sites), *a.shape), a.dtype), form)
        kept = load_tree(self._file(number), {"state": self._forms.server, "uploads": stacked})
        return kept["state"], {site: jax.tree.map(lambda a, n=n: a[n], kept["uploads"]) for n, site in enumerate(sites)}

    def forget(self, number: int) -> None:
        """Delete what is kept of a round, and of earlier ones, which a kill may have left."""
        for path in self._folder.glob("round*.safetensors"):
            if path.stem.removeprefix("round").isdigit() and int(path.stem.removeprefix("round")) <= number:
                path.unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self._folder / f"round{number}.safetensors"


def _parts(upload: Tree) -> dict[str, np.ndarray]:
    """The numbers of an upload but the whole ones, which are counts: parameters, statistics, an algorithm's own."""
    leaves: dict[str, list[np.ndarray]] = {}
    for name, leaf in named(upload).items():
        if np.issubdtype(leaf.dtype, np.floating):
            leaves.setdefault(_PART.findall(name)[0], []).append(np.asarray(leaf, np.float64).ravel())
    return {part: np.concatenate(arrays) for part, arrays in leaves.items()}
