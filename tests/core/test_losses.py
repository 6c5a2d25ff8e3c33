"""The losses against numbers worked out by hand and against SciPy and PyTorch."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from scipy.stats import entropy

from fedgen.core.losses import cross_entropy, diversity_loss, kl, label_weights, teacher_loss


def test_cross_entropy_is_torchs() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    labels = np.array([0, 1, 2, 3, 4, 0, 1])
    expected = torch.nn.functional.cross_entropy(torch.tensor(logits), torch.tensor(labels), reduction="none")
    np.testing.assert_allclose(cross_entropy(logits, labels), expected, rtol=1e-5)


def test_kl_is_scipys_relative_entropy_in_the_right_direction() -> None:
    target, logits = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    p, q = (np.exp(a) / np.exp(a).sum(axis=1, keepdims=True) for a in (target, logits))
    np.testing.assert_allclose(kl(target, logits), entropy(p, q, axis=1), rtol=1e-4)


def test_equation_4_mixes_logits_before_the_loss() -> None:
    # Two users with logits (2, 0) and (0, 0), lambda = 1/2: the mixture is (1, 0), and
    # CE = log(1 + e^-1) = 0.3133. The mean of the users' own losses would be
    # (log(1 + e^-2) + log 2) / 2 = 0.4100.
    logits = jnp.array([[[2.0, 0.0]], [[0.0, 0.0]]])  # [user, sample, class]
    lam, y = jnp.full((2, 1), 0.5), jnp.array([0])
    assert float(teacher_loss(logits, lam, y, "logits")) == pytest.approx(math.log(1 + math.exp(-1)), abs=1e-6)
    assert float(teacher_loss(logits, lam, y, "losses")) == pytest.approx(0.4100, abs=1e-4)


def test_weighted_losses_and_the_authors_broadcast() -> None:
    # One user whose losses are (1, 2, 3), with weights (.1, .5, .9): the mean of the products is
    # (0.1 + 1.0 + 2.7) / 3 = 1.2667; broadcasting [n] with [n, 1] gives mean(losses) * mean(weights) = 1.0.
    # Logits (0, b) with CE of class 0 = log(1 + e^b) = c mean b = log(e^c - 1).
    logits = jnp.array([[[0.0, math.log(math.exp(c) - 1)] for c in (1, 2, 3)]])
    lam, y = jnp.array([[0.1, 0.5, 0.9]]), jnp.zeros(3, int)
    assert float(teacher_loss(logits, lam, y, "losses")) == pytest.approx(1.2667, abs=1e-4)
    assert float(teacher_loss(logits, lam, y, "losses-broadcast")) == pytest.approx(1.0, abs=1e-5)


def test_label_weights_sum_to_one_for_labels_that_were_drawn() -> None:
    lam = label_weights(jnp.array([[3.0, 0.0, 5.0], [1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(lam, [[0.75, 0, 1], [0.25, 0, 0]])


def test_equal_weights_are_equation_4_as_printed() -> None:
    logits = jax.random.normal(jax.random.key(0), (5, 8, 3))
    y = jnp.arange(8) % 3
    printed = jnp.mean(cross_entropy(jnp.mean(logits, axis=0), y))
    assert float(teacher_loss(logits, jnp.full((5, 8), 0.2), y, "logits")) == pytest.approx(float(printed), rel=1e-6)


@pytest.mark.parametrize("how", ["same-label", "all-pairs"])
def test_diversity_loss_falls_as_z_spreads(how: str) -> None:
    key = jax.random.key(1)
    z, eps = jax.random.normal(key, (16, 4)), jax.random.normal(jax.random.fold_in(key, 1), (16, 3))
    y = jnp.sort(jnp.arange(16) % 4)
    values = [float(diversity_loss(scale * z, eps, y, how)) for scale in (0.1, 1.0, 3.0)]
    assert values[0] > values[1] > values[2]


def test_mode_seeking_ratio_by_hand() -> None:
    # One pair with label 0: mean|z1 - z2| = (2 + 4) / 2 = 3, mean|e1 - e2| = 1.5, so 1 / (2 + 1e-5). The third
    # sample has another label and takes no part.
    z, eps = jnp.array([[0.0, 0.0], [2.0, 4.0], [9.0, 9.0]]), jnp.array([[0.0], [1.5], [7.0]])
    assert float(diversity_loss(z, eps, jnp.array([0, 0, 1]), "same-label")) == pytest.approx(0.5, abs=1e-5)


def test_mode_seeking_without_any_pair_is_zero_and_has_a_gradient() -> None:
    z, eps, y = jnp.ones((3, 2)), jnp.ones((3, 1)), jnp.arange(3)
    value, gradient = jax.value_and_grad(lambda z: diversity_loss(z, eps, y, "same-label"))(z)
    assert float(value) == 0
    assert np.all(np.isfinite(gradient))


def test_authors_diversity_by_hand() -> None:
    # Two samples: the four ordered pairs give 0, d, d, 0 with d = mean (e1-e2)^2 * mean |z1-z2| = 4 * 3 = 12.
    z, eps = jnp.array([[0.0, 0.0], [2.0, 4.0]]), jnp.array([[0.0], [2.0]])
    assert float(diversity_loss(z, eps, jnp.zeros(2), "all-pairs")) == pytest.approx(math.exp(-6), rel=1e-5)
