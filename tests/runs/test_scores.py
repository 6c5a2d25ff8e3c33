"""The reported numbers, from counts worked out by hand."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedgen.runs.scores import result, score_of, scores, table

TOTALS = np.array([10, 20, 70])


def test_scores_of_a_global_model() -> None:
    # 8 + 10 + 63 of 100. Users hold labels {0} and {0, 1}: (8 + 8 + 10) of (10 + 10 + 20).
    seen = np.array([[True, False, False], [True, True, False]])
    record = scores(np.array([8, 10, 63]), None, TOTALS, seen)
    assert record == {"accuracy": 81.0, "accuracy_seen_labels": 65.0, "accuracy_users": None}


def test_scores_of_the_users_own_models() -> None:
    # 10 and 30 of 100, so 20 on average; on the labels they hold 10 of 10 and 10 + 20 of 30.
    seen = np.array([[True, False, False], [True, True, False]])
    record = scores(None, np.array([[10, 0, 0], [10, 20, 0]]), TOTALS, seen)
    assert record == {"accuracy": None, "accuracy_seen_labels": 100.0, "accuracy_users": 20.0}


def _records(values: list[float], every: int = 5) -> list[dict]:
    return [
        {"round": every * (i + 1), "accuracy": v, "accuracy_seen_labels": v + 1, "accuracy_users": None}
        for i, v in enumerate(values)
    ]


def test_the_headline_is_the_mean_of_the_last_ten_rounds_and_best5_beside_it() -> None:
    # evaluations at rounds 5 .. 40: those after round 30 are at 35 and 40
    row = result(_records([90, 91, 92, 93, 94, 95, 50, 60]), 40)
    assert row["accuracy"] == 55
    assert row["accuracy_best5"] == pytest.approx((91 + 92 + 93 + 94 + 95) / 5)
    assert row["accuracy_seen_labels_best5"] == pytest.approx(94)
    assert row["curve"][0] == [5, 90]
    assert score_of(row, "accuracy") == 55
    assert score_of(row, "authors") == 94


def _rows(algorithm: str, values: list[float | None]) -> list[dict]:
    return [
        {"algorithm": algorithm, "seed": i, "accuracy": v, "accuracy_users": None, "diverged_at": None if v else 7}
        for i, v in enumerate(values)
    ]


def test_table_pairs_by_seed_and_gives_students_interval() -> None:
    ours, theirs = [96.0, 95.5, 97.0], [94.0, 94.5, 94.2]
    average, other = table([*_rows("fedavg", theirs), *_rows("fedgen", ours)], "accuracy")
    assert average["mean"] == pytest.approx(np.mean(theirs))
    assert average["diff_to_fedavg"] is None
    assert other["std"] == pytest.approx(np.std(ours, ddof=1))
    assert other["diff_to_fedavg"] == pytest.approx(np.mean(ours) - np.mean(theirs))
    interval = ttest_rel(ours, theirs).confidence_interval(0.95)
    assert other["diff_ci95"] == pytest.approx([interval.low, interval.high])


def test_one_seed_has_no_deviation_and_no_interval() -> None:
    _, row = table([*_rows("fedavg", [94.0]), *_rows("fedgen", [96.0])], "accuracy")
    assert (row["std"], row["diff_ci95"]) == (None, None)
    assert row["diff_to_fedavg"] == 2


def test_a_diverged_seed_is_not_averaged_away() -> None:
    _, row = table([*_rows("fedavg", [94.0, 94.0]), *_rows("fedgen", [96.0, None])], "accuracy")
    assert row["mean"] is None
    assert row["diff_to_fedavg"] is None
