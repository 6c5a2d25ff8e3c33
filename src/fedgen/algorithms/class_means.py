"""The mean of some vector for each label, over all users: logits for FedDistill, features for FedProto and others."""

from typing import NamedTuple

import jax.numpy as jnp

from fedgen.core import contract as fl
from fedgen.core.aggregate import combine, fair


class Sums(NamedTuple):
    """Of vectors, per label; or a user's own means, with a weight of 1 for each label that it has."""

    first: fl.Array  # [label, size]
    weight: fl.Array  # [label]


def sums_of(vectors: fl.Array, labels: fl.Array) -> Sums:
    """Of vectors [sample, size] with labels [sample, label], which may have zeros for samples that do not count."""
    return Sums(labels.T @ vectors, jnp.sum(labels, axis=0))


def each_once(sums: Sums) -> Sums:
    """A user's own means, which all weigh the same however many samples they are of."""
    return Sums(means_of(sums), (sums.weight > 0).astype(jnp.float32))


def means_of(sums: Sums) -> fl.Array:
    """[label, size] of samples that were counted one by one; zeros for a label without any."""
    return sums.first / jnp.maximum(sums.weight, 1.0)[:, None]


def of_known(values: fl.Array, batch: fl.Batch, labels: fl.Array, known: fl.Array) -> fl.Array:
    """The mean over a mini-batch of values [sample], those of labels that are not known taken as 0."""
    return batch.mean(values * (labels @ known))


def pooled(uploads: Sums, federation: fl.Federation, *, counted: bool) -> tuple[fl.Array, fl.Array]:
    """Means [label, size] over uploads [user, ...], and which labels somebody has; `counted`: weights are samples.

    No user's samples count more, and no user's mean is longer, than `max_update` allows.
    """
    has = uploads.weight > 0  # [user, label]
    lengths = jnp.sqrt(jnp.sum(uploads.first**2, axis=-1)) / jnp.where(has, uploads.weight, 1.0)
    shorter = fair(lengths, federation, has)
    less = fair(jnp.sum(uploads.weight, axis=1), federation)[:, None] if counted else jnp.ones(())
    fair_sums = Sums(uploads.first * (shorter * less)[..., None], uploads.weight * less)
    total = combine(fair_sums, None, federation)
    seen = total.weight > 0
    return total.first / jnp.where(seen, total.weight, 1.0)[:, None], seen


def renewed(means: fl.Array, seen: fl.Array, before: fl.Array, known: fl.Array) -> tuple[fl.Array, fl.Array]:
    """The means after a round, and of which labels they are known; a label that nobody saw keeps what was `before`."""
    return jnp.where(seen[:, None], means, before), jnp.maximum(known, seen.astype(jnp.float32))


def check_sums(sent: Sums, *, counted: bool) -> dict[str, fl.Array]:
    """What no honest user uploads."""
    wrong = {"it has counted a label less than no times": jnp.min(sent.weight) < 0}
    if not counted:
        wrong["it gives a label another weight than 0 or 1"] = jnp.any((sent.weight != 0) & (sent.weight != 1))
    return wrong
