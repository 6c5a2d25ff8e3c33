"""The authors' metric: users take turns at slices of each label's test samples."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms import ALGORITHMS, build
from fedgen.runs.scores import authors, result, score_of, slices_of
from fedgen.runs.stopping import score_at
from fedgen.simulator.run import run
from helpers import play, small_setup


def test_a_label_has_as_many_equal_slices_as_there_are_users() -> None:
    """Five samples of label 0 for two users: slices of two, and one is left over; one of label 1 makes none."""
    labels = np.array([0, 1, 0, 0, 0, 0])
    assert slices_of(labels, 2).tolist() == [0, 2, 0, 1, 1, 2]


def test_the_tested_samples_are_those_of_the_users_that_hold_a_label() -> None:
    """Label 0 (7 samples, 3 a user) has one holder, label 1 (4, 2 a user) two: 3 + 4 are tested."""
    seen = np.array([[True, True], [False, True]])
    assert authors(np.array([3, 2]), np.array([7, 4]), seen, 2) == pytest.approx(100 * 5 / 7)
    assert authors(np.array([0, 0]), np.array([1, 1]), seen, 2) is None


def test_old_records_and_federations_have_all_samples_of_a_label() -> None:
    new = {"round": 1, "accuracy": 1.0, "accuracy_users": None, "accuracy_seen_labels": 2.0, "accuracy_authors": 3.0}
    old = {key: value for key, value in new.items() if key != "accuracy_authors"}
    assert [score_at(record, "authors") for record in (new, old)] == [3.0, 2.0]
    assert [score_of(result([record], 1), "authors") for record in (new, old)] == [3.0, 2.0]
    assert score_of({"accuracy_seen_labels_best5": 4.0}, "authors") == 4.0


@pytest.mark.parametrize("settings", [{}, {"share": "predictor"}])
def test_the_simulator_counts_what_dealing_out_the_samples_counts(settings: dict[str, Any]) -> None:
    """Dealt as the authors do it, user by user, and each user's model asked about its own samples."""
    setup = small_setup("fedavg", rounds=1, alpha=0.3, lr=0.003, **settings)
    (row,) = run(setup)["results"]
    algorithm, _ = build(ALGORITHMS["fedavg"], setup.task, setup.federation, {})
    state, users = play(setup, 1), setup.config.users
    x, y = setup.task.prepare(setup.data.x_score), np.asarray(setup.data.y_score)
    holds = setup.divisions[0].labels > 0
    right = tested = right_of_first = 0
    next_sample = dict.fromkeys(range(setup.task.classes), 0)
    for user in range(users):
        if settings:
            client = jax.tree.map(lambda a, user=user: a[user], state.clients)
            logits = algorithm.predict_local(algorithm.broadcast(state.server, jnp.int32(1)), client, x)
        else:
            logits = algorithm.predict_global(state.server, x)
        guesses = np.argmax(np.asarray(logits), axis=1)
        for label in np.flatnonzero(holds[user]):
            rows = np.flatnonzero(y == label)
            size = len(rows) // users
            mine = rows[next_sample[label] : next_sample[label] + size]
            next_sample[label] += size
            right, tested = right + int(np.sum(guesses[mine] == label)), tested + size
            right_of_first += int(np.sum(guesses[rows[:size]] == label))
    assert 0 < tested < len(y), "some labels are held by few"
    assert right != right_of_first, "it matters which slice is whose"
    assert row["accuracy_authors_best5"] == pytest.approx(100 * right / tested)
    assert row["accuracy_authors_best5"] != pytest.approx(row["accuracy_seen_labels"])
