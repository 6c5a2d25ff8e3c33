"""What every scheme promises: the users' samples are disjoint, complete, seeded, and at least the minimum."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_files import error_of
from fedgen.data.partition import PARTITIONERS
from fedgen.data.partition.minimum import cut
from fedgen.errors import FedgenError

MINIMUM = {"dirichlet", "quantity"}  # the schemes with a minimum size of their own
PARTIAL = {"natural"}  # those that may leave samples to nobody


def run(name, labels, users, seed, **options):
    extra = []
    if name == "natural":
        extra = [np.arange(len(labels)) % max(users, 1)]
    return PARTITIONERS[name](labels, users, np.random.default_rng(seed), *extra, **options)


@st.composite
def cases(draw):
    labels = draw(st.lists(st.integers(0, 5), min_size=1, max_size=80))
    return np.array(labels, np.int32), draw(st.integers(1, 12)), draw(st.integers(0, 5))


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
@settings(max_examples=60, deadline=None)
@given(case=cases(), alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]), minimum=st.integers(1, 6))
def test_every_division_is_disjoint_and_complete_or_refused(name, case, alpha, minimum):
    labels, users, seed = case
    options = {"alpha": alpha} if "alpha" in inspect.signature(PARTITIONERS[name]).parameters else {}
    if name in MINIMUM:
        options["min_samples"] = minimum
    shares: list = []
    message = error_of(lambda: shares.extend(run(name, labels, users, seed, **options)))
    if message is not None:
        possible = len(labels) >= users * (minimum if name in MINIMUM else 1)
        assert not possible or name in {"labels", "shards"}  # these ask for more than enough samples
        return
    together = np.concatenate(shares)
    assert len(shares) == users
    assert len(np.unique(together)) == len(together)
    assert set(together) <= set(range(len(labels)))
    assert len(together) == len(labels) or name in PARTIAL
    assert min(map(len, shares)) >= (minimum if name in MINIMUM else 1)


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
def test_the_seed_decides(name):
    labels = np.random.default_rng(0).integers(0, 10, 2000).astype(np.int32)
    first, again, other = (run(name, labels, 10, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
def test_more_users_than_samples_are_refused_with_the_reason(name):
    owners = [np.zeros(5, np.int64)] if name == "natural" else []
    with pytest.raises(FedgenError, match=r"users"):
        PARTITIONERS[name](np.array([0, 0, 1, 1, 2]), 6, np.random.default_rng(0), *owners)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet-user", "quantity"])
@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan"), float("inf")])
def test_alpha_must_be_positive(name, alpha):
    with pytest.raises(FedgenError, match="alpha must be a positive number"):
        run(name, np.zeros(100, np.int32), 2, 0, alpha=alpha)


@pytest.mark.parametrize("name", ["dirichlet", "quantity"])
def test_a_minimum_that_cannot_be_held_is_refused(name):
    with pytest.raises(FedgenError, match=r"cannot give each of 10 users at least 11; .*min_samples=10"):
        run(name, np.zeros(100, np.int32), 10, 0, min_samples=11)
    assert [len(share) for share in run(name, np.zeros(100, np.int32), 10, 0, min_samples=10)] == [10] * 10


def test_shards_that_cannot_be_cut_are_refused():
    with pytest.raises(FedgenError, match="100 samples cannot be cut into 200 shards"):
        run("shards", np.zeros(100, np.int32), 20, 0, per_user=10)


def test_impossible_numbers_of_labels_are_refused():
    labels = np.repeat(np.arange(10, dtype=np.int32), 10)
    with pytest.raises(FedgenError, match="per_user is 11, but there are 10 labels"):
        run("labels", labels, 20, 0, per_user=11)
    with pytest.raises(FedgenError, match="3 users of 2 labels cannot hold 10 labels"):
        run("labels", labels, 3, 0)
    with pytest.raises(FedgenError, match=r"has 10 samples for the 20 users"):
        run("labels", labels, 100, 0)


def test_too_few_natural_users_are_refused():
    owners = np.repeat(np.arange(30), 4)
    with pytest.raises(
        FedgenError,
        match=r"30 natural users cannot make 5 users of 10 each; use at most 3 users \(--users 3\) or --set",
    ):
        PARTITIONERS["natural"](np.zeros(120, np.int32), 5, np.random.default_rng(0), owners, group=10)


def test_noise_must_be_positive():
    with pytest.raises(FedgenError, match=r"partition.noise must be a positive number"):
        run("feature-noise", np.zeros(100, np.int32), 2, 0, noise=0.0)


@pytest.mark.parametrize("name", sorted(set(PARTITIONERS) - {"natural"}))
def test_ten_thousand_users_on_sixty_thousand_samples(name):
    labels = np.random.default_rng(0).integers(0, 10, 60_000).astype(np.int32)
    options = {"min_samples": 1} if name in MINIMUM else {}
    shares = run(name, labels, 10_000, 0, **options)
    assert len(np.unique(np.concatenate(shares))) == 60_000


def test_a_cut_is_rounded_and_not_truncated():
    """Thirds of ten samples end at 3.33 and 6.67: 3, 4 and 3 samples. Truncated, the last user would gain: 3, 3, 4."""
    assert [len(part) for part in cut(np.arange(10), np.full(3, 1 / 3))] == [3, 4, 3]
    assert np.concatenate(cut(np.arange(10), np.full(3, 1 / 3))).tolist() == list(range(10))


@pytest.mark.parametrize("name", sorted(MINIMUM))
def test_no_user_gains_by_rounding(name):
    """Of so large an alpha all shares are alike (to 1e-4): a third of each label's ten samples, or of all ten."""
    labels = np.repeat(np.arange(4 if name == "dirichlet" else 1, dtype=np.int32), 10)
    for seed in range(20):
        shares = run(name, labels, 3, seed, alpha=1e8, min_samples=1)
        counts = [np.bincount(labels[share], minlength=labels.max() + 1).tolist() for share in shares]
        assert counts == [[size] * (labels.max() + 1) for size in (3, 4, 3)]
