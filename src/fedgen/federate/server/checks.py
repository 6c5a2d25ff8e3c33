"""The server's checks of a site's reply: it belongs to this very message, and its numbers are plausible."""

import json
import math
from collections.abc import Sequence

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Tree
from fedgen.core.trees import named, nbytes
from fedgen.federate import wire
from fedgen.federate.flower import CHUNK_SIZE
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings
from fedgen.federate.wire import InvalidMessageError, NotFiniteError

_SLACK = 1 << 10  # bytes of overhead that a message may have, and each of its arrays
# Bytes of Flower's objects: the message with its records; and an array's entry in its record, without its name.
_ABOUT, _IN_RECORD = 2 << 10, 140
SCORE_OBJECTS = 4  # of a message without arrays: itself, its content, two records
_MOST = float(np.finfo(np.float32).max)
_SCORE = ("correct", "total", "correct_seen", "total_seen", "matching")


def checked_update(
    reply: Message,
    question: ConfigRecord,
    plan: Plan,
    algorithm: Algorithm,
    settings: ServerSettings,
) -> tuple[Tree, float | None]:
    """The upload and the training loss of a reply, after all checks."""
    form, config = plan.forms.upload, plan.config
    _check_size(reply, largest_update(form))
    content = wire.records(reply, {"upload": ArrayRecord, "about": ConfigRecord, "metrics": MetricRecord})
    _check_reply_to(content["about"], question)
    upload = wire.decode(content["upload"], form)
    _check_counts(upload)
    _check_not_negative(upload, plan.never_negative)
    for problem, found in (algorithm.check_upload(upload) if algorithm.check_upload else {}).items():
        if bool(found):
            raise InvalidMessageError(problem)
    if set(content["metrics"]) != (set() if config.dp_noise else {"loss"}):
        raise InvalidMessageError("its metrics are not the expected ones")
    loss = content["metrics"].get("loss")
    if isinstance(loss, float) and not math.isfinite(loss):
        raise NotFiniteError("its loss is NaN or infinite")
    if loss is not None and not (isinstance(loss, float) and abs(loss) <= _MOST):
        raise InvalidMessageError("its loss is not a finite number of 32 bits")
    return _capped(upload, settings.max_samples, _most_draws(settings.max_samples, config)), loss


def largest_update(form: Tree) -> int:
    """The most bytes of a message with such an upload, names and overhead included."""
    return nbytes(form) + _SLACK * (1 + len(named(form)))


def besides_arrays(form: Tree) -> int:
    """The bytes of a message with such an upload, without the numbers in its arrays, as the gate counts them."""
    size = _ABOUT
    for name, leaf in named(form).items():
        size += len(json.dumps(name)) + _IN_RECORD + len(Array(np.zeros(leaf.shape, leaf.dtype)).deflate())
    return size


def most_objects(form: Tree) -> int:
    """How many of Flower's objects a message with such an upload has at most: equal ones are sent once."""
    chunks = (-(-(leaf.size * leaf.dtype.itemsize + wire.HEADER) // CHUNK_SIZE) for leaf in named(form).values())
    return SCORE_OBJECTS + 1 + sum(1 + number for number in chunks)


def checked_score(reply: Message, question: ConfigRecord, most: int) -> dict[str, float]:
    """A site's score, which counts as one on `most` samples at most; empty where the site has no test samples."""
    _check_size(reply, _SLACK)
    content = wire.records(reply, {"about": ConfigRecord, "metrics": MetricRecord})
    _check_reply_to(content["about"], question)
    record = content["metrics"]
    if not record:
        return {}
    if set(record) != set(_SCORE):
        raise InvalidMessageError("its score does not have the expected numbers")
    values = [record[name] for name in _SCORE]
    if not all(isinstance(v, int | float) and np.isfinite(v) and v >= 0 for v in values):
        raise InvalidMessageError("its score has a number that is negative or not finite")
    right, total, right_seen, total_seen, matching = values
    if not total > 0 or right > total or total_seen > total or right_seen > total_seen or matching > 100:
        raise InvalidMessageError("its score has more correct predictions than samples")
    share = min(1.0, most / total)
    return dict(zip(_SCORE, (*(float(v) * share for v in values[:-1]), float(matching)), strict=True))


def _check_size(reply: Message, limit: int) -> None:
    size = wire.whole_size(reply.content)
    if size > limit:
        raise InvalidMessageError(f"it has {size:,} bytes; {limit:,} are allowed")


def _check_reply_to(record: ConfigRecord, expected: ConfigRecord) -> None:
    """Refuse a reply to another message: of another run, another round, or an earlier attempt at this round."""
    if extra := set(record) - set(expected):
        raise InvalidMessageError(f"it repeats more than the message had: {min(extra)[:40]!r}")
    for name, value in expected.items():
        if wire.field(record, name, type(value)) != value:
            raise InvalidMessageError(
                f"it answers another message: its {name} is {str(record[name])[:40]!r}, not {value!r}"
            )


def _most_draws(most_samples: int, config: RunConfig) -> float:
    """More samples than an honest site draws in a round; what an algorithm knows of them it checks itself."""
    if config.local_epochs:
        return most_samples * config.local_epochs
    steps = config.local_steps * config.batch_size
    return max(most_samples, 2 * steps * (1 + 10 * config.dp_count_noise))


def _check_counts(upload: Tree) -> None:
    for name, leaf in named(upload).items():
        if _counts(leaf) and leaf.min() < 0:
            raise InvalidMessageError(f"{name} has counts from {leaf.min()} to {leaf.max()}")


def _capped(upload: Tree, most_samples: int, most_drawn: float) -> Tree:
    """The upload with counts that are scaled down to what counts at most: a site may well have more samples."""

    def short(name: str, leaf: np.ndarray) -> np.ndarray:
        most = most_samples if name.endswith(".samples") else most_drawn
        if not _counts(leaf) or leaf.max() <= most:
            return leaf
        return np.asarray(np.rint(leaf * (most / float(leaf.max())))).astype(leaf.dtype)

    arrays = [short(name, leaf) for name, leaf in named(upload).items()]
    return jax.tree.unflatten(jax.tree.structure(upload), arrays)


def _counts(leaf: np.ndarray) -> bool:
    return bool(leaf.size) and np.issubdtype(leaf.dtype, np.integer)


def _check_not_negative(upload: Tree, names: Sequence[str]) -> None:
    """Refuse negative variances, say: averaged, they would make every prediction NaN."""
    arrays = named(upload)
    for name in names:
        if (arrays[name] < 0).any():
            raise InvalidMessageError(f"{name} has a negative number, and no training makes it negative")
