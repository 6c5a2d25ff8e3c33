"""The losses of the paper, each as it is written there."""

import jax
import jax.numpy as jnp

from fedgen.core.aggregate import combine_given
from fedgen.core.contract import Array, Batch, Federation, Loss, Model, Params, Tree


def cross_entropy(logits: Array, labels: Array) -> Array:
    """-log softmax(logits)[label], one value per sample."""
    # A product with one-hot labels rather than an index: its gradient is no scatter, which is
    # slow everywhere and not deterministic on a GPU.
    chosen = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return -jnp.sum(jax.nn.log_softmax(logits) * chosen, axis=-1)


def kl(target_logits: Array, logits: Array) -> Array:
    """KL(softmax(target) || softmax(logits)), one value per sample."""
    target = jax.nn.log_softmax(target_logits)
    return jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(logits)), axis=-1)


def supervised(model: Model, params: Params, statistics: Tree, batch: Batch) -> Loss:
    """The local objective of every algorithm before its own term: mean cross-entropy of a mini-batch.

    Args:
        model: The network.
        params: Both parts of its parameters.
        statistics: Of BatchNorm.
        batch: x [batch, ...] and y [batch].

    Returns:
        The loss, with the new statistics as memo, z [batch, latent] and logits [batch, class].
    """
    z, statistics = model.extract_in_training(params.extractor, statistics, batch.x, batch.key)
    logits = model.predict(params.predictor, z)
    return Loss(batch.mean(cross_entropy(logits, batch.y)), statistics, z, logits)


def infer(model: Model, params: Params, statistics: Tree, x: Array) -> Array:
    """The logits in evaluation mode.

    Args:
        model: The network.
        params: Both parts of its parameters.
        statistics: Of BatchNorm.
        x: [batch, ...] as the network takes it.

    Returns:
        Logits [batch, class].
    """
    z, _ = model.extract(params.extractor, statistics, x, False)
    return model.predict(params.predictor, z)


def label_weights(counts: Array) -> Array:
    """lambda_k^y = c_k[y] / sum_j c_j[y] for counts [user, label]; 0 for a label that nobody drew."""
    total = jnp.sum(counts, axis=0)
    return jnp.where(total > 0, counts / jnp.where(total > 0, total, 1.0), 0.0)


def teacher_loss(logits: Array, lam: Array, y: Array, how: str) -> Array:
    """How badly the users recognise z as y, for logits [user, sample, class] and lambda [user, sample].

    `logits` is eq. 4 with the supplement's weights, CE(softmax(sum_k lambda_k g_k(z)), y). `losses` is the
    authors' code as meant, sum_k lambda_k CE_k; `losses-broadcast` as it runs: a [n] and a [n, 1] array
    are multiplied to [n, n] there, so that each user's CE is weighted by its mean lambda.
    """
    if how == "logits":
        return jnp.mean(cross_entropy(jnp.einsum("ks,ksc->sc", lam, logits), y))
    losses = cross_entropy(logits, y[None])  # [user, sample]
    if how == "losses-broadcast":
        lam = jnp.mean(lam, axis=1, keepdims=True)
    return jnp.sum(jnp.mean(lam * losses, axis=1))


def robust_teacher_loss(logits: Array, counted: Array, y: Array, how: str, federation: Federation) -> Array:
    """The same with equal weights for the users in `counted` [user, sample], so that none can outweigh the others."""
    if how == "logits":
        return jnp.mean(cross_entropy(combine_given(logits, counted, federation), y))
    return jnp.mean(combine_given(cross_entropy(logits, y[None])[..., None], counted, federation))


def diversity_loss(z: Array, eps: Array, y: Array, how: str) -> Array:
    """Small where different noise gives different z.

    `same-label` is mode seeking (Mao et al. 2019): 1 / (mean|z1 - z2| / mean|e1 - e2| + 1e-5) over pairs
    with one label. The pairs are the neighbours in a batch sorted by label: about one per sample, as Mao
    et al. take them, where all pairs would cost a hundred times as much.
    `all-pairs` is the authors' exp(-mean(|e1 - e2|^2 |z1 - z2|)), labels ignored.
    """
    if how == "all-pairs":
        z_distance = jnp.mean(jnp.abs(z[:, None] - z[None]), axis=-1)  # [sample, sample]
        return jnp.exp(-jnp.mean(jnp.mean((eps[:, None] - eps[None]) ** 2, axis=-1) * z_distance))
    pair = (y[1:] == y[:-1]).astype(z.dtype)[:, None]
    z_total = jnp.sum(pair * jnp.abs(z[1:] - z[:-1]))
    eps_total = jnp.sum(pair * jnp.abs(eps[1:] - eps[:-1])) * (z.shape[1] / eps.shape[1])
    any_pair = eps_total > 0
    return jnp.where(any_pair, 1 / (z_total / jnp.where(any_pair, eps_total, 1.0) + 1e-5), 0.0)
