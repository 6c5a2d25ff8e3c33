"""What the server demands of a site's message, beyond its form: an answer to this question, with honest numbers."""

import json

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord

from fedgen.config import RunConfig
from fedgen.core.contract import Algorithm, Tree
from fedgen.core.trees import named, nbytes
from fedgen.federate import wire
from fedgen.federate.settings import ServerSettings
from fedgen.federate.wire import RefusedError

_SLACK = 1 << 10  # bytes by which a message may be larger than its arrays, for itself and for each of them
# Bytes of Flower's objects: the message and its records; and what stands for an array in its record, besides its name.
_ABOUT, _IN_RECORD = 2 << 10, 140
_MOST = float(np.finfo(np.float32).max)
_SCORE = ("correct", "total", "correct_seen", "total_seen", "matching")


def checked_update(
    reply: Message,
    question: ConfigRecord,
    form: Tree,
    broadcast: Tree,
    algorithm: Algorithm,
    settings: ServerSettings,
    config: RunConfig,
) -> tuple[Tree, float | None]:
    """The upload and the training loss in a reply that is in order in every respect."""
    _check_size(reply, largest_update(form))
    content = wire.records(reply, {"upload": ArrayRecord, "about": ConfigRecord, "metrics": MetricRecord})
    _check_question(content["about"], question)
    upload = wire.decode(content["upload"], form)
    _check_counts(upload, settings.max_samples)
    if not config.dp_noise:  # which may make a small one negative
        _check_variances(upload)
    for problem, found in (algorithm.check_upload(upload) if algorithm.check_upload else {}).items():
        if bool(found):
            raise RefusedError(problem)
    _check_length(upload, broadcast, settings.max_update, config)
    if set(content["metrics"]) != (set() if config.dp_noise else {"loss"}):
        raise RefusedError("its metrics are not those that are due")
    loss = content["metrics"].get("loss")
    if loss is not None and not (isinstance(loss, float) and abs(loss) <= _MOST):
        raise RefusedError("its loss is not a finite number of 32 bits")
    return upload, loss


def largest_update(form: Tree) -> int:
    """The bytes of a message with an upload of this form, names and the rest included."""
    return nbytes(form) + _SLACK * (1 + len(named(form)))


def besides_arrays(form: Tree) -> int:
    """The bytes of a message with an upload of this form besides the numbers in its arrays, as the gate counts them."""
    size = _ABOUT
    for name, leaf in named(form).items():
        size += len(json.dumps(name)) + _IN_RECORD + len(Array(np.zeros(leaf.shape, leaf.dtype)).deflate())
    return size


def checked_score(reply: Message, question: ConfigRecord, most: int) -> dict[str, float]:
    """A site's score on no more than `most` samples, in order; empty where the site has nothing to test on."""
    _check_size(reply, _SLACK)
    content = wire.records(reply, {"about": ConfigRecord, "metrics": MetricRecord})
    _check_question(content["about"], question)
    record = content["metrics"]
    if not record:
        return {}
    if set(record) != set(_SCORE):
        raise RefusedError("its score does not have the numbers that are due")
    values = [record[name] for name in _SCORE]
    if not all(isinstance(v, int | float) and np.isfinite(v) and v >= 0 for v in values):
        raise RefusedError("its score has a number that is negative or not finite")
    right, total, right_seen, total_seen, matching = values
    if total > most:
        raise RefusedError(f"its score is of {total:.3g} samples; {most:,} are allowed")
    if not total > 0 or right > total or total_seen > total or right_seen > total_seen or matching > 100:
        raise RefusedError("its score has more right answers than questions")
    return dict(zip(_SCORE, map(float, values), strict=True))


def _check_size(reply: Message, limit: int) -> None:
    size = wire.whole_size(reply.content)
    if size > limit:
        raise RefusedError(f"it has {size:,} bytes; {limit:,} are allowed")


def _check_question(record: ConfigRecord, due: ConfigRecord) -> None:
    """Refuse an answer to another question: another run, another round, or an earlier asking of this one."""
    if extra := set(record) - set(due):
        raise RefusedError(f"it repeats more than the question had: {min(extra)[:40]!r}")
    for name, value in due.items():
        if wire.field(record, name, type(value)) != value:
            raise RefusedError(f"it answers another message: its {name} is {str(record[name])[:40]!r}, not {value!r}")


def _check_counts(upload: Tree, most: int) -> None:
    for place, leaf in named(upload).items():
        if np.issubdtype(leaf.dtype, np.integer) and not 0 <= leaf.min() <= leaf.max() <= most:
            raise RefusedError(f"{place} has counts from {leaf.min()} to {leaf.max()}")


def _check_variances(upload: Tree) -> None:
    """Refuse what would make every prediction of the average a NaN."""
    for place, leaf in named(upload).items():
        if place.endswith("['variance']") and leaf.min() < 0:
            raise RefusedError(f"{place} has a negative variance")


def _check_length(upload: Tree, broadcast: Tree, most: float, config: RunConfig) -> None:
    """Refuse an update that is out of all proportion to what it changes, and to the noise that sites add."""
    reference = named(broadcast)
    change = length = 0.0
    numbers = 0
    for place, leaf in named(upload).items():
        if np.issubdtype(leaf.dtype, np.floating):
            # What was broadcast under the same name is what the upload changes; other numbers stand alone.
            start = np.asarray(reference.get(place, np.zeros_like(leaf)), np.float64)
            change += float(np.sum((leaf - start) ** 2))
            length += float(np.sum(start**2))
            numbers += leaf.size
    # The length of d normal numbers is hardly ever more than sqrt(d) + 6: less than once in 10^7 messages.
    noisy = config.dp_clip * (1 + config.dp_noise * (numbers**0.5 + 6)) if config.dp_noise else 0.0
    bound = max(most * (1 + length**0.5), noisy)
    if change**0.5 > bound:
        raise RefusedError(f"its update has length {change**0.5:.3g}; {bound:.3g} is allowed")
