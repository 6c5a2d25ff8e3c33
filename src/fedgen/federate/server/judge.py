"""Whether a round broke the model, and whose updates are suspected then."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Algorithm, Task, Tree
from fedgen.core.trees import all_finite, named, stack
from fedgen.core.wires import Wires
from fedgen.federate.evaluate import Tester
from fedgen.models.network import is_pixels
from fedgen.runs.checkpoint import load_tree, read_about, save_tree

# An honest round may well cost some accuracy where sites differ. These are far beyond that.
_POINTS, _SHARE = 20.0, 0.5  # of accuracy: how many are lost, and how much is left of what there was
_PART = re.compile(r"^(?:\.base)*(?:\.\w+|\[[^]]*\])?")  # the beginning of an array's name: '.base.params', say
_NATS, _TIMES = 1.0, 3.0  # of the loss: by how much it has grown, and how many times
_ABSURD = 10.0  # of what a site says: how many times the others' it is; of its loss: or that many nats
_FEW = 16  # samples that show whether a model's predictions are finite


class Judgement(NamedTuple):
    """What the server by itself knows of a model."""

    finite: bool  # whether all is that it would send
    predicts: bool = True  # whether all is that the global model predicts
    accuracy: float | None = None  # in percent, on the server's test samples

    def is_sound(self, before: "Judgement") -> bool:
        """Whether numbers are finite, where they were so before."""
        return self.finite and (self.predicts or not before.predicts)


class Judge:
    """Looks at the server's models, of which the tester is None where there is no global one."""

    def __init__(
        self, algorithm: Algorithm, task: Task, tester: Tester | None, test: tuple[NDArray[Any], NDArray[Any]] | None
    ) -> None:
        self._algorithm, self._tester, self._test = algorithm, tester, test
        self._few = any_samples(task.sample, _FEW) if test is None else test[0][:_FEW]

    def __call__(self, state: Tree, number: int) -> Judgement:
        """The judgement on the state with which this round begins."""
        finite = self.is_finite(state, number)
        if self._tester is None:
            return Judgement(finite)
        state = jax.device_get(state)
        predicts = self._tester.is_finite(self._few, state)
        if self._test is None:
            return Judgement(finite, predicts)
        return Judgement(finite, predicts, 100 * float(self._tester(*self._test, state).sum()) / len(self._test[1]))

    def is_finite(self, state: Tree, number: int) -> bool:
        """Whether what this round would send is finite."""
        return bool(all_finite(self._algorithm.broadcast(state, jnp.int32(number))))


def any_samples(form: jax.ShapeDtypeStruct, number: int) -> NDArray[Any]:
    """Random samples of this form: pixels of all values, words that every embedding has, measurements from 0 to 1."""
    shape, rng = (number, *form.shape), np.random.default_rng(0)
    if np.issubdtype(form.dtype, np.floating):
        return rng.random(shape).astype(form.dtype)
    return rng.integers(0, np.iinfo(form.dtype).max if is_pixels(form.dtype) else 1, shape, form.dtype, endpoint=True)


def broken(before: Judgement, after: Judgement) -> str:
    """How a round broke the model; empty where it did not."""
    if not after.finite:
        return "the model was not finite"
    if not after.is_sound(before):
        return "the model's predictions were not finite"
    if before.accuracy is not None and after.accuracy is not None and fell(before.accuracy, after.accuracy):
        return f"the accuracy fell from {before.accuracy:.1f} to {after.accuracy:.1f} %"
    return ""


def mended(before: Judgement, after: Judgement, without: Judgement) -> bool:
    """Whether a broken model is better without a suspect: where it is an accuracy that fell, half of that is back.

    Where numbers are not finite one suspect goes after the other, the farthest first.
    """
    if not after.is_sound(before):
        return True
    assert before.accuracy is not None
    assert after.accuracy is not None
    assert without.accuracy is not None
    return without.accuracy >= (after.accuracy + before.accuracy) / 2


def fell(before: float, after: float) -> bool:
    """Whether an accuracy in percent fell so far that the model must be broken."""
    return before - after > _POINTS and after < _SHARE * before


def rose(before: float, after: float) -> bool:
    """Whether a loss rose so far that the model must be broken."""
    return not np.isfinite(after) or (after - before > _NATS and after > _TIMES * before)


def loss_rose(before: float | None, losses: Sequence[float]) -> bool:
    """Whether the median of the sites' losses did, of three or more: no single site can move that far."""
    return before is not None and len(losses) > 2 and rose(before, float(np.median(losses)))


def mean_loss(losses: Sequence[float]) -> float | None:
    """The mean of the sites' losses, as the simulator reports it, without those that are absurdly far from the others.

    Absurd is more than `_ABSURD` times what half of the sites do not exceed, and more than that many nats.
    """
    if not losses:
        return None
    sizes = np.abs(losses)
    usual = float(np.sort(sizes)[(len(sizes) - 1) // 2])
    return float(np.mean(np.asarray(losses)[sizes <= _ABSURD * max(usual, 1.0)]))


def pooled(scores: Sequence[Mapping[str, float]]) -> float | None:
    """The accuracy on all sites' test samples of labels that they train on, in percent, as the simulator reports it.

    How many a site has only the site knows: it counts for at most `_ABSURD` times what half of the sites do not exceed.
    """
    tested = [score for score in scores if score["total_seen"] > 0]
    if not tested:
        return None
    totals = np.asarray([score["total_seen"] for score in tested])
    usual = float(np.sort(totals)[(len(totals) - 1) // 2])
    shares = np.minimum(1.0, _ABSURD * usual / totals)
    return float(100 * np.sum(shares * [score["correct_seen"] for score in tested]) / np.sum(shares * totals))


def most(some: int, of: int) -> bool:
    """Whether some are more than half."""
    return 2 * some > of


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
