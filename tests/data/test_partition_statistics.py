"""Each scheme against the distribution it is said to draw from.

Bounds are several standard errors of the estimate: wide enough for other seeds than the fixed ones here.
"""

import numpy as np
import pytest
from scipy.stats import chisquare

from fedgen.data.describe import describe
from fedgen.data.partition import PARTITIONERS
from fedgen.data.partition.feature_noise import noise_levels

DRAWS = 400


def balanced(classes, each):
    return np.repeat(np.arange(classes, dtype=np.int32), each)


def counts(shares, labels):
    return np.array([np.bincount(labels[share], minlength=labels.max() + 1) for share in shares])


def draws(name, labels, users, n=DRAWS, **options):
    """Counts [draw, user, label]."""
    scheme = PARTITIONERS[name]
    return np.array(
        [counts(scheme(labels, users, np.random.default_rng(seed), **options), labels) for seed in range(n)]
    )


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_shares_of_a_label(alpha):
    """Without cap and minimum a user's part of a label is a component of Dir(alpha 1_K):
    mean 1/K, variance (K-1) / (K² (K alpha + 1))."""
    users = 5
    part = draws("dirichlet", balanced(4, 500), users, alpha=alpha, cap=0.0, min_samples=1) / 500
    expected = (users - 1) / (users**2 * (users * alpha + 1))
    values = part.reshape(-1)
    # The minimum of 1 sample moves single samples; 400 * 4 independent draws of 5 dependent components.
    error = np.sqrt(expected / (part.size / users))
    assert part.mean(axis=(0, 2)) == pytest.approx(np.full(users, 1 / users), abs=5 * error)
    assert values.var() == pytest.approx(expected, rel=0.15)


def test_dirichlet_of_large_alpha_is_uniform():
    part = draws("dirichlet", balanced(4, 500), 5, n=20, alpha=1e6) / 500
    assert np.abs(part - 0.2).max() < 0.01


@pytest.mark.parametrize("cap", [1.0, 2.0])
def test_dirichlet_cap_stops_the_large(cap):
    """A user at the cap gets nothing of later labels, so nobody has more than just below the cap and one label."""
    labels = balanced(10, 200)
    sizes = draws("dirichlet", labels, 10, n=50, alpha=0.1, cap=cap).sum(axis=2)
    assert sizes.max() < cap * len(labels) / 10 + 200


@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_dirichlet_user_is_dirichlet_multinomial(alpha):
    """The first user's counts, while all labels last: n draws from q ~ Dir(alpha p), so each label has mean n p
    and variance n p (1-p) (n + alpha) / (1 + alpha)."""
    labels, n, p = balanced(5, 100), 50, 0.2
    first = draws("dirichlet-user", labels, 10, n=1500, alpha=alpha)[:, 0]
    variance = n * p * (1 - p) * (n + alpha) / (1 + alpha)
    assert first.sum(axis=1).tolist() == [n] * 1500
    assert first.mean(axis=0) == pytest.approx(n * p, abs=5 * np.sqrt(variance / 1500))
    assert first.var() == pytest.approx(variance, rel=0.15)


def test_dirichlet_user_follows_the_global_distribution():
    labels = np.repeat(np.arange(3, dtype=np.int32), [600, 300, 100])
    first = draws("dirichlet-user", labels, 20, n=1000, alpha=10.0)[:, 0] / 50
    assert first.mean(axis=0) == pytest.approx([0.6, 0.3, 0.1], abs=0.03)


def test_iid_counts_are_hypergeometric():
    """n of N samples without replacement: variance n p (1-p) (N-n)/(N-1)."""
    labels, n, total, p = balanced(4, 100), 40, 400, 0.25
    values = draws("iid", labels, 10)
    expected = n * p * (1 - p) * (total - n) / (total - 1)
    assert values.mean(axis=(0, 2)) == pytest.approx(np.full(10, n * p))
    assert values.mean(axis=0) == pytest.approx(np.full((10, 4), n * p), abs=5 * np.sqrt(expected / len(values)))
    assert values.var() == pytest.approx(expected, rel=0.1)


def test_shards_of_one_label_each():
    """10 labels in 200 shards of 20 per label: both shards of a user are of one label with chance 19/199."""
    values = draws("shards", balanced(10, 60), 100, n=40)
    held = np.count_nonzero(values, axis=2)
    assert set(np.unique(held)) == {1, 2}
    same, chance = np.mean(held == 1), 19 / 199
    assert same == pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) / held.size))


def test_labels_per_user_is_exact_even_and_unbiased():
    """Exactly 2 of 5 labels each, every label with the same number of users, all 10 pairs equally likely."""
    values = draws("labels", balanced(5, 40), 10, n=500)
    held = values > 0
    assert set(held.sum(axis=2).reshape(-1)) == {2}
    assert set(held.sum(axis=1).reshape(-1)) == {4}
    assert set(values[held]) == {10}
    pairs = np.bincount(held.reshape(-1, 5) @ (1 << np.arange(5)), minlength=32)
    pairs = pairs[[1 << a | 1 << b for a in range(5) for b in range(a)]]
    assert chisquare(pairs).pvalue > 1e-4


def test_quantity_sizes_are_dirichlet_and_labels_are_not_skewed():
    users, alpha, total = 5, 1.0, 1000
    values = draws("quantity", balanced(4, 250), users, alpha=alpha, min_samples=1)
    share = values.sum(axis=2) / total
    error = np.sqrt((users - 1) / (users**2 * (users * alpha + 1)) / len(share))
    assert share.mean(axis=0) == pytest.approx(np.full(users, 1 / users), abs=5 * error)
    assert share.var() == pytest.approx((users - 1) / (users**2 * (users * alpha + 1)), rel=0.15)
    large = values[values.sum(axis=2) > 200]
    assert (large / large.sum(axis=1, keepdims=True)).mean(axis=0) == pytest.approx([0.25] * 4, abs=0.01)


def test_natural_users_stay_whole_and_are_drawn_evenly():
    owners = np.repeat(np.arange(12), np.arange(1, 13))
    labels = np.zeros(len(owners), np.int32)
    drawn = np.zeros(12)
    for seed in range(DRAWS):
        shares = PARTITIONERS["natural"](labels, 2, np.random.default_rng(seed), owners, group=3)
        for share in shares:
            names, found = np.unique(owners[share], return_counts=True)
            assert len(names) == 3
            assert np.array_equal(found, names + 1)  # all of each owner's samples: owner i has i + 1
            drawn[names] += 1
    assert chisquare(drawn).pvalue > 1e-4


def test_feature_noise_rises_evenly():
    assert noise_levels(4, 0.2).tolist() == pytest.approx([0.05, 0.1, 0.15, 0.2])


def test_description_of_known_users():
    """Two users over three labels: (10, 0, 0) and (5, 5, 10), together (15, 5, 10) / 30."""
    described = describe(np.array([[10, 0, 0], [5, 5, 10]]))
    assert described.samples.tolist() == [10, 20]
    assert described.labels.tolist() == [1, 3]
    # exp(entropy): one label -> 1; (1/4, 1/4, 1/2) -> 4^(1/2) * 2^(1/2)
    assert described.effective.tolist() == pytest.approx([1.0, 8**0.5])
    # (1/2)(|1 - 1/2| + 1/6 + 1/3) and (1/2)(1/4 + 1/12 + 1/6)
    assert described.distance.tolist() == pytest.approx([0.5, 0.25])
