"""The numbers of an evaluation against hand calculation and SciPy's ranks."""

import numpy as np
import pytest
from scipy.stats import rankdata

from fedgen.use.metrics import auc, calibration_error, confusion_matrix, reliability, scores_of


def test_a_case_by_hand() -> None:
    """Six samples of three classes; class 2 is never found."""
    p = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.2, 0.8, 0.0], [0.9, 0.1, 0.0], [0.1, 0.5, 0.4], [0.3, 0.4, 0.3]])
    y = np.array([0, 0, 1, 1, 2, 2])
    found = scores_of(p, y, ("a", "b", "c"))
    assert found.confusion == ((2, 0, 0), (1, 1, 0), (0, 2, 0))
    assert found.accuracy == pytest.approx(50)
    a, b, c = found.classes
    assert (a.precision, a.recall, a.f1) == pytest.approx((100 * 2 / 3, 100, 80))  # 2 of 3 said, 2 of 2 there
    assert (b.precision, b.recall, b.f1) == pytest.approx((100 / 3, 50, 40))
    assert (c.precision, c.recall, c.f1) == (None, 0, 0)
    assert found.f1 == pytest.approx(40)
    # Pairs of one of class a (0.7, 0.6) and another (0.2, 0.9, 0.1, 0.3): 6 of 8 are the right way round.
    assert a.auc == pytest.approx(6 / 8)
    assert b.auc == pytest.approx((4 + 0) / 8)  # 0.8 beats all, 0.1 none
    assert c.auc == pytest.approx(8 / 8)  # 0.4, 0.3 against 0.1, 0.1, 0, 0
    assert found.auc == pytest.approx((6 / 8 + 4 / 8 + 1) / 3)
    # Confidence and whether right: 0.7 yes, 0.6 yes, 0.8 yes, 0.9 no, 0.5 no, 0.4 no; each in a bin of its own.
    assert found.ece == pytest.approx(100 * (0.3 + 0.4 + 0.2 + 0.9 + 0.5 + 0.4) / 6)


def test_auc_is_the_rank_sum_with_ties() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        scores = rng.integers(0, 8, 50) / 8  # many ties
        positive = rng.random(50) < 0.3
        n, m = positive.sum(), (~positive).sum()
        u = rankdata(scores)[positive].sum() - n * (n + 1) / 2
        assert auc(scores, positive) == pytest.approx(u / (n * m))
        pairs = scores[positive][:, None] - scores[~positive][None]
        assert auc(scores, positive) == pytest.approx(np.mean((pairs > 0) + 0.5 * (pairs == 0)))
    assert auc(np.ones(3), np.array([True, True, True])) is None


def test_calibration_of_bins() -> None:
    """Ten predictions of confidence 0.75, of which six are right: 15 points too confident."""
    p = np.tile([0.75, 0.25], (10, 1))
    y = np.array([0] * 6 + [1] * 4)
    (only,) = reliability(p, y)
    assert (only.samples, only.confidence, only.accuracy) == pytest.approx((10, 75, 60))
    assert only.low < 0.75 <= only.high
    assert calibration_error((only,)) == pytest.approx(15)
    (sure,) = reliability(np.array([[1.0, 0.0]]), np.array([0]))  # a confidence of 1 is in the last bin
    assert sure.high == 1


def test_the_confusion_matrix_counts_pairs() -> None:
    rng = np.random.default_rng(1)
    y, found = rng.integers(0, 5, 300), rng.integers(0, 5, 300)
    matrix = confusion_matrix(y, found, 5)
    assert matrix.sum() == 300
    for i in range(5):
        for j in range(5):
            assert matrix[i, j] == np.sum((y == i) & (found == j))


def test_a_class_without_samples_is_left_out_of_means() -> None:
    found = scores_of(np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]]), np.array([0, 1]), ("a", "b", "c"))
    assert found.f1 == 100
    assert found.auc == 1
    assert found.classes[2].recall is None
    assert found.classes[2].auc is None
