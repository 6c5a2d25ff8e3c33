import numpy as np
import pytest

from fedgen.runs.scores import matching, score_of

TOTALS = np.array([10, 20, 0])
HELD = np.array([[30, 10, 5], [0, 7, 0]])


def test_each_user_is_weighted_by_its_own_labels():
    """The global model gets 1/2 of class 0 and 1/4 of class 1; class 2 is not tested. User 0 holds 3 : 1."""
    correct = np.array([5, 5, 0])
    users = (0.75 * 0.5 + 0.25 * 0.25, 0.25)
    assert matching(correct, None, TOTALS, HELD) == pytest.approx(100 * np.mean(users))


def test_own_models_are_used_where_there_are_any():
    own = np.array([[10, 0, 0], [0, 20, 0]])
    assert matching(None, own, TOTALS, HELD) == pytest.approx(100 * (0.75 + 1) / 2)


def test_the_score_can_be_either_share():
    row = {"accuracy": 1.0, "accuracy_users": None, "accuracy_seen_labels": 2.0, "accuracy_matching": 3.0}
    assert [score_of(row, score) for score in ("accuracy", "seen", "matching")] == [1.0, 2.0, 3.0]
