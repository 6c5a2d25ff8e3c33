"""Whether a network knows the words and categories of the data: by its tables' rows, which JAX does not check."""

import reprlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedgen.core.contract import Array, Params, Task, Tree
from fedgen.errors import FedgenError

_POSITIONS = {True: 32, False: 256}  # of a text, or of a table of floating-point numbers, that are tried at most
_ALONE = 64  # of a sample's largest and smallest numbers, that are tried alone
_HEAD = 1000  # samples that mostly tell whether a column holds whole numbers
_FROM_0 = "an embedding has rows from 0 on, so number the words or categories from 0"


class Found(NamedTuple):
    """A number of the data, and where in a sample it is."""

    number: int
    position: int
    is_whole: bool  # whether samples are stored as whole numbers

    def __str__(self) -> str:
        """As a part of a sentence."""
        return f"the number {self.number}" + ("" if self.is_whole else f" in column {self.position} (the first is 0)")


def check_numbers(task: Task, *parts: NDArray[Any]) -> None:
    """Refuse a network that looks up numbers of the data in a table that has no such row.

    Beyond the last row JAX gives NaN, and a negative number is counted from the end; PyTorch raises an error. The
    network is evaluated on samples that have the largest or a negative smallest number of a position, for in a table
    each column may have an embedding of its own. A table may hold categories as floating-point numbers: such columns
    are tried, too.
    """
    prepared = jax.eval_shape(task.prepare, jax.ShapeDtypeStruct((2, *task.sample.shape), task.sample.dtype))
    is_whole = bool(jnp.issubdtype(prepared.dtype, jnp.integer))
    if not is_whole and (len(task.sample.shape) != 1 or jnp.issubdtype(task.sample.dtype, jnp.integer)):
        return
    found = [_extreme(x, is_whole) for x in parts if len(x)]
    if not sum(len(extreme) for extreme, _ in found) or not (is_whole or _looks_up(task)):
        return
    extreme, positions = (np.concatenate(a) for a in zip(*found, strict=True))
    _check_beyond(task, extreme, is_whole)
    if task.model.framework != "torch":  # of which the operations give NaN for negative numbers
        _check_negative(task, extreme, positions, is_whole)


def _extreme(x: NDArray[Any], is_whole: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """Samples with the largest, or a negative smallest, number of a position, and which position that is."""
    rows = x.reshape(len(x), -1)
    columns = np.arange(rows.shape[1]) if is_whole else _of_whole_numbers(rows)
    rows = rows if is_whole else rows[:, columns]
    largest, smallest = rows.argmax(0), rows.argmin(0)
    highest, lowest = (np.take_along_axis(rows, at[None], 0)[0] for at in (largest, smallest))
    by_most, by_least = np.argsort(-highest, kind="stable"), np.argsort(lowest, kind="stable")
    if not is_whole:
        by_most = by_most[highest[by_most] > 1]  # a column of 0 and 1 alone is none of categories
    by_least = by_least[lowest[by_least] < 0]
    by_most, by_least = by_most[: _POSITIONS[is_whole]], by_least[: _POSITIONS[is_whole]]
    places = np.concatenate([largest[by_most], smallest[by_least]])
    return np.asarray(x[places]), columns[np.concatenate([by_most, by_least])]


def _of_whole_numbers(rows: NDArray[Any]) -> NDArray[Any]:
    """The columns in which all numbers are whole."""
    likely = np.flatnonzero((rows[:_HEAD] == np.rint(rows[:_HEAD])).all(0))
    return np.array([c for c in likely if (rows[:, c] == np.rint(rows[:, c])).all()], int)


def _looks_up(task: Task) -> bool:
    """Whether the network takes anything out of an array by its places."""
    form = jax.eval_shape(task.model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((2, *task.sample.shape), task.sample.dtype)
    return "gather" in str(jax.make_jaxpr(partial(_outputs, task))(*form, x))


def _outputs(task: Task, params: Params, statistics: Tree, x: Array) -> tuple[Array, Array]:
    """Features and logits of samples as they are stored."""
    z, _ = task.model.extract(params.extractor, statistics, task.prepare(x), False)
    return z.astype(jnp.float32), task.model.predict(params.predictor, z).astype(jnp.float32)


def _check_beyond(task: Task, extreme: NDArray[Any], is_whole: bool) -> None:
    """Refuse NaN for a sample of the data, which any parameters show."""
    form = jax.eval_shape(task.model.init, jax.random.key(0))
    start = jax.tree.map(lambda a: np.full(a.shape, 0.01, a.dtype), form)
    evaluate = jax.jit(partial(_outputs, task))

    def is_nan(x: NDArray[Any]) -> NDArray[Any]:
        return np.isnan(evaluate(*start, x)[1]).any(1)

    usual = np.concatenate([np.zeros_like(extreme[:1]), np.ones_like(extreme[:1])])
    found = is_nan(np.concatenate([usual, extreme]))
    wrong = extreme[found[len(usual) :]]
    if found[: len(usual)].all() or not len(wrong):
        return
    good = np.concatenate([extreme, usual])[~np.roll(found, -len(usual))][0]
    guilty = _guilty(is_nan, wrong[0], good, is_whole)
    if guilty is None:
        if is_whole:
            raise FedgenError(
                f"the network gives NaN for a sample of the data, whose numbers are {reprlib.repr(wrong[0].tolist())}"
            )
        return
    if guilty.number < 0:
        raise FedgenError(f"the network gives NaN for a sample with {guilty}; {_FROM_0}")
    raise FedgenError(
        f"the network gives NaN for a sample with {guilty}; an embedding needs a row for each number from 0, here"
        f" {guilty.number + 1} rows"
    )


def _guilty(
    is_nan: Callable[[NDArray[Any]], NDArray[Any]], wrong: NDArray[Any], good: NDArray[Any], is_whole: bool
) -> Found | None:
    """The number of a sample with NaN that alone makes NaN of another; of several, a negative or the largest one."""
    numbers = wrong.reshape(-1)
    order = np.argsort(numbers, kind="stable")
    positions = np.unique([*order[:_ALONE], *order[-_ALONE:]])
    tried = np.repeat(good.reshape(1, -1), len(positions), 0)
    tried[np.arange(len(positions)), positions] = numbers[positions]
    alone = positions[is_nan(tried.reshape(-1, *good.shape))]
    alone = alone[numbers[alone] == np.rint(numbers[alone])]
    if not len(alone):
        return None
    least, most = alone[numbers[alone].argmin()], alone[numbers[alone].argmax()]
    at = least if numbers[least] < 0 else most
    return Found(int(numbers[at]), int(at), is_whole)


def _check_negative(task: Task, extreme: NDArray[Any], positions: NDArray[Any], is_whole: bool) -> None:
    """Refuse a network for which a negative number is the one that a table has so many rows from its end.

    Of n rows, -1 is as n - 1 and -n as 0, but n is not as 0, which tells a table from a remainder.
    """
    numbers = extreme.reshape(len(extreme), -1)[np.arange(len(extreme)), positions]
    if not (numbers < 0).any():
        return
    samples, positions, numbers = (a[numbers < 0] for a in (extreme, positions, numbers))
    start = _somewhere(task)
    evaluate = jax.jit(partial(_outputs, task))

    def features(number: Any) -> NDArray[Any]:
        tried = samples.copy().reshape(len(samples), -1)
        tried[np.arange(len(samples)), positions] = number
        return np.asarray(evaluate(*start, tried.reshape(samples.shape))[0])

    own = features(numbers)
    for rows in sorted({n for a in jax.tree.leaves(start[0]) for n in a.shape[:-1] if n > 1}):
        first = features(0)
        looked_up = (
            (numbers + rows >= 0)
            & _same(own, features(np.maximum(numbers + rows, 0)))
            & _same(features(-1), features(rows - 1))
            & _same(features(-rows), first)
            & ~_same(features(rows), first)
        )
        if looked_up.any():
            at = int(looked_up.argmax())
            what = Found(int(numbers[at]), int(positions[at]), is_whole)
            raise FedgenError(
                f"the network takes {what} for {what.number + rows}, counted from the end of its {rows} rows; {_FROM_0}"
            )


def _somewhere(task: Task) -> tuple[Params, Tree]:
    """Parameters of which no two rows are equal, near those of the start, and statistics."""
    rng = np.random.default_rng(0)
    params, statistics = jax.jit(task.model.init)(jax.random.key(0))
    moved = jax.tree.map(lambda a: a + jnp.asarray(rng.normal(0, 0.05, a.shape), a.dtype), params)
    return moved, statistics


def _same(one: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Whether each sample has the same features, but for rounding."""
    largest = np.abs(np.nan_to_num(one)).max(initial=0.0)
    found: NDArray[Any] = np.isclose(one, other, 1e-6, 1e-6 * largest).all(1)
    return found
