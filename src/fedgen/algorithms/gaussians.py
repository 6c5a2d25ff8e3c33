"""A Gaussian of the latent features of each label, from sums that users upload; for CCVR and class moments.

The server needs no user's sums by themselves, only their total, which secure aggregation would give it.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedgen.core import contract as fl
from fedgen.core.aggregate import combine, fair
from fedgen.core.losses import cross_entropy
from fedgen.core.optimise import descend
from fedgen.core.streams import stream
from fedgen.core.trees import is_off
from fedgen.errors import FedgenError
from fedgen.models.generator import draw_labels

SIGMAS = 7  # standard deviations of noise that no honest user exceeds
RIDGE = 1e-3  # added to the variance of each latent number

Collect = Literal["training", "before", "after"]  # which features are summed: see `docs/algorithms/fedmoments.md`


class Sums(NamedTuple):
    """Of the features z of each label: how many, their sum, and that of their outer products."""

    counts: fl.Array  # [label]
    first: fl.Array  # [label, latent]
    second: fl.Array  # [label, latent, latent]; in messages and at the server its lower triangle, [label, pair]


class Gaussians(NamedTuple):
    """What the server makes of the sums."""

    known: fl.Array  # [label] 1.0 for a label of which there was a sample, else 0.0
    mean: fl.Array  # [label, latent]
    root: fl.Array | None  # [label, pair] the lower triangle L of the covariance L L'; only who draws gets it
    spread: fl.Array  # [] the mean variance, over known labels and latent numbers


class Moments(NamedTuple):
    """Packed sums, and what the server makes of them."""

    sums: Sums
    gaussians: Gaussians


def moments_of(sums: Sums) -> Moments:
    """Both together."""
    return Moments(sums, gaussians_of(sums))


def needed(gaussians: Gaussians, *, draws: bool, means: bool) -> Gaussians | None:
    """What is broadcast to users that draw from them, or compare with their means alone, or neither."""
    return gaussians if draws else gaussians._replace(root=None) if means else None


def no_sums(classes: int, latent: int) -> Sums:
    """Those of no samples."""
    return Sums(jnp.zeros(classes), jnp.zeros((classes, latent)), jnp.zeros((classes, latent, latent)))


def sums_of(z: fl.Array, labels: fl.Array) -> Sums:
    """Of features [sample, latent] with labels [sample, label], which may have zeros for samples that do not count."""
    (samples, latent), classes = z.shape, labels.shape[1]
    by_label = (labels[:, :, None] * z[:, None, :]).reshape(samples, classes * latent)  # so that it is one product
    return Sums(jnp.sum(labels, axis=0), labels.T @ z, (by_label.T @ z).reshape(classes, latent, latent))


def within(z: fl.Array, reach: fl.Scalar) -> fl.Array:
    """Features [sample, latent], those longer than `reach` scaled down to it; 0: as they are."""
    if is_off(reach):
        return z
    length = jnp.sqrt(jnp.sum(z**2, axis=-1, keepdims=True))
    return z * jnp.minimum(1.0, reach / jnp.maximum(length, 1e-12))


def added_up(loss: fl.Loss, labels: fl.Array, reach: fl.Scalar) -> fl.Loss:
    """The loss of a step with the sums of its features added to the memo, which are those of the steps before."""
    seen = sums_of(within(jax.lax.stop_gradient(loss.z), reach), labels)
    return loss._replace(memo=jax.tree.map(jnp.add, loss.memo, seen))


def with_noise(sums: Sums, key: fl.Array, reach: fl.Scalar, noise: fl.Scalar) -> Sums:
    """Packed sums with Gaussian noise of `noise` times the most that one sample adds: 1, `reach` and its square."""
    deviation = Sums(noise, noise * reach, noise * reach**2)
    keys = Sums(*jax.random.split(stream(key, "sums"), 3))
    return jax.tree.map(lambda a, d, k: a + d * jax.random.normal(k, a.shape), sums, deviation, keys)


def packed(sums: Sums) -> Sums:
    """The sums as they are sent: a symmetric matrix is known by its triangle."""
    rows, columns = np.tril_indices(sums.second.shape[-1])
    return sums._replace(second=sums.second[:, rows, columns])


def unpacked(triangle: fl.Array) -> fl.Array:
    """The symmetric matrices [label, latent, latent] of these triangles [label, pair]."""
    latent = int(np.sqrt(2 * triangle.shape[-1]))
    place = np.zeros((latent, latent), np.int32)
    place[np.tril_indices(latent)] = np.arange(triangle.shape[-1])
    return triangle[:, np.maximum(place, place.T)]


def remembered(before: Sums, uploads: Sums, memory: fl.Scalar, federation: fl.Federation) -> Sums:
    """The total of the uploads [user, ...] and `memory` of what there was before.

    A label that nobody has any more keeps the weight of one sample, so that it is never forgotten.
    """
    users = uploads.counts.shape[0]
    kept = jnp.clip(1 / jnp.maximum(before.counts, 1e-6), memory, 1.0)  # [label]
    return jax.tree.map(
        lambda old, mean: old * kept.reshape(-1, *(1,) * (old.ndim - 1)) + users * mean,
        before,
        combine(fair_sums(uploads, federation), None, federation),
    )


def fair_sums(uploads: Sums, federation: fl.Federation) -> Sums:
    """Packed sums [user, ...] of which no user's count more, and no label's features are longer, than `max_update`."""
    has = uploads.counts > 0.5  # [user, label]; noise may give a label that a user does not have a small count
    lengths = jnp.sqrt(jnp.maximum(_squares(uploads), 0.0) / jnp.where(has, uploads.counts, 1.0))  # root mean square
    shorter, less = fair(lengths, federation, has), fair(jnp.sum(uploads.counts, axis=1), federation)[:, None]
    return Sums(
        uploads.counts * less,
        uploads.first * (less * shorter)[..., None],
        uploads.second * (less * shorter**2)[..., None],
    )


def _squares(sums: Sums) -> fl.Array:
    """The sum of squared lengths of each label's features, of packed sums [..., label]."""
    return jnp.sum(sums.second[..., _diagonal(sums)], axis=-1)


def _length(vectors: fl.Array) -> fl.Array:
    """The lengths of vectors [..., number], whose squares may be too large for a float."""
    largest = jnp.maximum(jnp.max(jnp.abs(vectors), axis=-1, keepdims=True), 1e-30)
    parts = vectors * 1e-4 / (largest * 1e-4)  # the reciprocal of 3e38 would be taken for zero
    return largest[..., 0] * jnp.sqrt(jnp.sum(parts**2, axis=-1))


def _diagonal(sums: Sums) -> np.ndarray:
    """The places of a matrix's diagonal in its triangle."""
    return np.cumsum(np.arange(1, sums.first.shape[-1] + 1)) - 1


def gaussians_of(sums: Sums) -> Gaussians:
    """Mean and covariance of each label (packed sums), finite whatever the sums are: noise may have made them odd."""
    known = sums.counts > 0.5
    count = jnp.where(known, sums.counts, 1.0)[:, None]
    mean = sums.first / count
    product = unpacked(sums.second / count) - mean[:, :, None] * mean[:, None, :]
    covariance = product * (count / jnp.maximum(count - 1, 1.0))[:, :, None]  # unbiased
    variance = jnp.maximum(jnp.diagonal(covariance, axis1=1, axis2=2), 0.0) + RIDGE  # [label, latent]
    root = jnp.where(known[:, None, None], _cholesky(covariance, variance), 0.0)
    labels = jnp.sum(known)
    spread = jnp.sum(variance * known[:, None]) / (jnp.maximum(labels, 1) * mean.shape[1])
    rows, columns = np.tril_indices(mean.shape[1])
    return Gaussians(
        known.astype(jnp.float32),
        jnp.where(known[:, None], mean, 0.0),
        root[:, rows, columns],
        jnp.where(labels > 0, spread, 1.0),
    )


def _cholesky(matrix: fl.Array, diagonal: fl.Array) -> fl.Array:
    """The lower triangular L with L L' = the matrix with this diagonal (at least `RIDGE`), also where there is none.

    What is left of a row's variance bounds its entries, so that `RIDGE` of it remains. To a covariance that changes no
    more than the ridge; of what is none, after noise or rounding, L L' keeps the variances, all is finite, and small
    changes have small effects. (LAPACK gives NaN there, and within our compiled loop, on two cores, its eigenvalues
    were waited for without end.)
    """
    place = jnp.arange(matrix.shape[-1])
    identity = jnp.eye(matrix.shape[-1])

    def column(number: fl.Array, carry: tuple[fl.Array, fl.Array, fl.Array]) -> tuple[fl.Array, fl.Array, fl.Array]:
        rest, left, root = carry
        pivot, most = jnp.sqrt(left[:, number])[:, None], (left - RIDGE) / jnp.sqrt(left)  # [label, row]
        below = jnp.where(place > number, jnp.clip(rest[:, :, number] / pivot, -most, most), 0.0)
        entries = below + pivot * identity[number]
        rest = rest - entries[:, :, None] * entries[:, None, :]
        return rest, jnp.maximum(left - below**2, RIDGE), root + entries[:, :, None] * identity[number]

    return jax.lax.fori_loop(0, len(place), column, (matrix, diagonal, jnp.zeros_like(matrix)))[2]


def factors(gaussians: Gaussians) -> fl.Array:
    """L of each label, [label, latent, latent]."""
    assert gaussians.root is not None
    return jnp.tril(unpacked(gaussians.root))


def draw(gaussians: Gaussians, root: fl.Array, key: fl.Array, samples: int) -> tuple[fl.Array, fl.Array]:
    """Virtual features and their labels, uniform over the known ones; `root` has its `factors`.

    Where none is known, labels are out of range: such samples have a cross-entropy of 0, and no gradient.
    """
    y = draw_labels(key, samples, gaussians.known)
    chosen = jax.nn.one_hot(y, len(gaussians.known))  # [sample, label]
    noise = jax.random.normal(stream(key, "noise"), (samples, gaussians.mean.shape[1]))
    by_label = (chosen[:, :, None] * noise[:, None, :]).reshape(samples, -1)  # one product instead of a matrix each
    return chosen @ gaussians.mean + by_label @ root.swapaxes(1, 2).reshape(-1, root.shape[-1]), y


def refit(
    model: fl.Model, predictor: fl.Tree, gaussians: Gaussians, key: fl.Array, steps: int, batch: int, rate: fl.Scalar
) -> fl.Tree:
    """The predictor after Adam steps on the cross-entropy of virtual features."""
    root = factors(gaussians)

    def loss(predictor: fl.Tree, memo: fl.Tree, drawn: tuple[fl.Array, fl.Array]) -> tuple[fl.Array, fl.Tree]:
        z, y = drawn
        return jnp.mean(cross_entropy(model.predict(predictor, z), y)), memo

    optimizer = optax.adam(rate)
    draws = jax.vmap(lambda k: draw(gaussians, root, k, batch))(jax.random.split(stream(key, "refit"), steps))
    return descend(loss, predictor, (), optimizer, optimizer.init(predictor), draws).params


def check_sums(sums: Sums, drawn: int, reach: fl.Scalar = 0.0, noise: fl.Scalar = 0.0) -> dict[str, fl.Array]:
    """What no honest user uploads; `drawn` is the number of its samples, or 0 where only the user knows it."""
    noisy, (classes, latent) = not is_off(noise), sums.first.shape
    slack: fl.Scalar = SIGMAS * noise if noisy else 0.0
    # Lengths, not their squares, which of large numbers would be infinite, and then no larger than any bound
    long, squares = _length(sums.first), sums.second[:, _diagonal(sums)]
    roots = jnp.sqrt(jnp.maximum(squares + slack * reach**2, 0.0))  # [label, latent]
    rows, columns = np.tril_indices(latent)
    wrong = {
        "it has counted a label less than no times": jnp.min(sums.counts) < -slack,
        "it has a sum of squares that is negative": jnp.min(squares) < -slack * reach**2,
        # |sum of z_i z_j| <= the root of the sum of z_i^2 times that of z_j^2, but for rounding
        "its products are larger than their squares allow": jnp.any(
            jnp.abs(sums.second) > 1.01 * roots[:, rows] * roots[:, columns] + slack * reach**2 + 1e-6
        ),
    }
    if noisy:  # of vectors no longer than `reach`: as many as were counted, and as many more as the noise may hide
        most = reach * (jnp.maximum(sums.counts + slack, 0.0) + slack * np.sqrt(latent))
        wrong["its sums are longer than its counts allow"] = jnp.any(long > most)
        wrong["its squares are more than its counts allow"] = jnp.any(_squares(sums) > reach * most)
    else:  # |sum of n vectors| <= the root of n times the sum of their squares, but for rounding
        most = 1.005 * jnp.sqrt(jnp.maximum(sums.counts, 0.0)) * _length(roots) + 1e-3
        wrong["its sums are longer than their squares allow"] = jnp.any(long > most)
    if drawn:
        off = jnp.abs(jnp.sum(sums.counts) - drawn)
        wrong[f"its label counts are not those of {drawn} draws"] = off > 0.5 + slack * np.sqrt(classes)
    return wrong


def collecting(
    task: fl.Task, federation: fl.Federation, collect: Collect, reach: fl.Scalar = 0.0, noise: fl.Scalar = 0.0
) -> dict[str, Any]:
    """What `wrap` takes so that users upload such sums; those of `training` are added up by the own `local_loss`."""
    if is_off(reach) and not is_off(noise):
        raise FedgenError("noise on sums of features needs reach, the greatest length of a feature vector")
    in_training = collect == "training"
    drawn = federation.local_steps * federation.batch_size if in_training and not federation.local_epochs else 0

    def local_finish(params: fl.Params, memo: fl.Tree, local: fl.Local) -> tuple[Sums, None]:
        return packed(memo if in_training else getattr(local, collect)), None

    return {
        "local_start": (lambda local: no_sums(task.classes, task.latent_size())) if in_training else None,
        "local_finish": local_finish,
        "add_noise": None if is_off(noise) else lambda own, key: with_noise(own, key, reach, noise),
        "check_upload": lambda sent: check_sums(sent, drawn, reach, noise),
        "before": _summing(task, reach) if collect == "before" else None,
        "after": _summing(task, reach) if collect == "after" else None,
    }


def _summing(task: fl.Task, reach: fl.Scalar) -> fl.Pass:
    """A pass over a user's data that adds up its features, in evaluation mode."""

    def add_up(params: fl.Params, statistics: fl.Tree, batch: fl.Batch, local: fl.Local) -> Sums:
        z, _ = task.model.extract(params.extractor, statistics, batch.x, False)
        return sums_of(within(z, reach), batch.one_hot(task.classes))

    return add_up
