"""Aggregation that bad updates cannot move, and privacy of what users send."""

import sys
from typing import Any

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm, trim_mean

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.wrap import With
from fedgen.config import resolve
from fedgen.core.aggregate import bounded, clipped, combine, combine_given, fair, not_against
from fedgen.core.contract import Federation, Round
from fedgen.core.privacy import privatise
from fedgen.core.trees import all_finite
from fedgen.core.wires import wires
from fedgen.errors import FedgenError
from fedgen.runs.privacy import guarantee
from fedgen.runs.summary import most_messages
from fedgen.runs.task import federation_of
from fedgen.simulator.run import run
from helpers import KINDS, each, play, same_bits, small_setup

VALUES = np.random.default_rng(0).normal(size=(7, 3, 2)).astype(np.float32)


@pytest.mark.parametrize(("users", "trim"), [(7, 0.0), (7, 0.2), (7, 0.4), (6, 0.34), (2, 0.49), (1, 0.2)])
def test_trimmed_mean_is_scipys(users: int, trim: float) -> None:
    got = combine(jnp.asarray(VALUES[:users]), None, Federation(users=7, aggregation="trimmed", trim=trim))
    np.testing.assert_allclose(got, trim_mean(VALUES[:users], trim, axis=0), rtol=1e-5, atol=1e-6)


def test_a_trimmed_mean_of_few_users_trims_one_on_each_side() -> None:
    """20 % of four users are none; still the largest and the smallest go: (2 + 3) / 2."""
    federation = Federation(users=4, aggregation="trimmed", trim=0.2)
    assert combine(jnp.array([1e9, 2.0, 3.0, -1e9]), None, federation) == 2.5
    assert combine(jnp.array([1.0, 2.0]), None, federation) == 1.5


@pytest.mark.parametrize(
    "federation",
    [
        Federation(users=7),
        Federation(users=7, aggregation="median"),
        Federation(users=7, aggregation="trimmed", trim=0.2),
        Federation(users=7, aggregation="trimmed", trim=0.4),
        Federation(users=7, aggregation="multi-krum"),
        Federation(users=7, aggregation="centred-clip"),
    ],
)
def test_what_some_users_gave_is_combined_as_if_there_were_only_those(federation: Federation) -> None:
    """Row by row: 0, 1, 2, ... 6 and all 7 of the users give one."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(7, 8, 3)).astype(np.float32)
    given = np.stack([rng.permutation(np.arange(7) < number) for number in range(8)], axis=1)
    got = jax.jit(lambda values, given: combine_given(values, given, federation))(values, given)
    assert not np.any(got[0])
    combined = jax.jit(lambda values: combine(values, None, federation))
    for row in range(1, 8):
        alone = combined(values[given[:, row], row])
        np.testing.assert_allclose(got[row], alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("users", [1, 2, 6, 7])
def test_median_is_numpys(users: int) -> None:
    got = combine({"a": jnp.asarray(VALUES[:users])}, None, Federation(users=7, aggregation="median"))
    np.testing.assert_allclose(got["a"], np.median(VALUES[:users], axis=0), rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.floats(1e2, 1e30))
def test_a_minority_cannot_move_median_and_trimmed_mean_out_of_the_others_range(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    users = rng.normal(size=(10, 5)).astype(np.float32)
    bad = rng.choice(10, 2, replace=False)
    users[bad] = np.float32(size) * rng.choice([-1, 1], (2, 5))
    good = np.delete(users, bad, axis=0)
    for federation in (
        Federation(users=10, aggregation="median"),
        Federation(users=10, aggregation="trimmed", trim=0.2),
    ):
        got = np.asarray(combine(jnp.asarray(users), None, federation))
        assert (got >= good.min(axis=0) - 1e-5).all()
        assert (got <= good.max(axis=0) + 1e-5).all()


def test_clipped_updates_by_hand() -> None:
    """User 0 moved by (3, 4), of length 5, and is cut to 1: (0.6, 0.8). User 1 moved by (0, 0.5) and stays."""
    start = {"a": jnp.ones(1), "b": jnp.ones(1)}
    users = {"a": jnp.array([[4.0], [1.0], [jnp.nan]]), "b": jnp.array([[5.0], [1.5], [jnp.inf]])}
    got = clipped(users, start, 1.0)
    np.testing.assert_allclose(got["a"], [[1.6], [1.0], [1.0]], rtol=1e-6)
    np.testing.assert_allclose(got["b"], [[1.8], [1.5], [1.0]], rtol=1e-6)
    assert clipped(users, start, 0.0) is users


def test_the_bound_follows_the_median_length() -> None:
    """Lengths 5, 1, 2, 4 and one that is not finite: the median of the four is 3."""
    start = {"a": jnp.ones(1), "b": jnp.ones(1)}
    users = {
        "a": jnp.array([[4.0], [1.0], [3.0], [1.0], [jnp.nan]]),
        "b": jnp.array([[5.0], [2.0], [1.0], [-3.0], [1.0]]),
    }
    untouched = bounded(users, start, Federation(users=5, max_update=2.0))
    for name, a in users.items():
        assert same_bits(untouched[name][:4], a[:4])
        assert untouched[name][4] == 1.0, "what is not finite is no update at all"
    got = bounded(users, start, Federation(users=5, max_update=1.0))
    np.testing.assert_allclose(got["a"][:4], [[1 + 3 * 3 / 5], [1.0], [3.0], [1.0]], rtol=1e-6)
    np.testing.assert_allclose(got["b"][:4], [[1 + 4 * 3 / 5], [2.0], [1.0], [-2.0]], rtol=1e-6)
    assert bounded(users, start, Federation(users=5, max_update=0.0)) is users


@pytest.mark.parametrize(
    ("sizes", "factors"),
    [([7.0], [1.0]), ([1.0, 1e9], [1.0, 1.0]), ([1.0, 2.0, 1e9], [1.0, 1.0, 4e-9]), ([0.0, 0.0, 5.0], [1.0, 1.0, 0.0])],
)
def test_of_three_one_can_be_told_from_the_others(sizes: list[float], factors: list[float]) -> None:
    np.testing.assert_allclose(fair(jnp.array(sizes), Federation(users=3, max_update=2.0)), factors, rtol=1e-6)


def _shortened_where_against(x: np.ndarray, most: float) -> np.ndarray:
    """The rule as it is said: each update against the mean of the others, and how far those go without it."""

    def along(number: int, among: list[int]) -> float:
        mean = np.mean([x[k] for k in among if k != number], axis=0)
        return float(x[number] @ mean / np.linalg.norm(mean))

    found, everybody = [], list(range(len(x)))
    for i in everybody:
        rest = [j for j in everybody if j != i]
        farthest = most * max(abs(along(j, rest)) for j in rest)
        found.append(x[i] * min(1.0, farthest / max(-along(i, everybody), 1e-30)))
    return np.array(found)


@pytest.mark.parametrize("users", [5, 10, 23])
@pytest.mark.parametrize("most", [0.2, 1.0, 1.5])
def test_no_update_goes_further_against_the_others_than_they_go(users: int, most: float) -> None:
    random = np.random.default_rng(users)
    updates = random.normal(size=(users, 40)) + 0.3
    updates[2] = -6 * updates.mean(axis=0)
    start = {"a": jnp.ones((2, 5)), "b": jnp.full(30, -2.0)}
    stacked = {
        "a": jnp.asarray(updates[:, :10].reshape(users, 2, 5) + 1.0, jnp.float32),
        "b": jnp.asarray(updates[:, 10:] - 2.0, jnp.float32),
    }
    got = not_against(stacked, start, Federation(users=users, max_against=most))
    moved = np.concatenate([np.reshape(got[name] - start[name], (users, -1)) for name in ("a", "b")], axis=1)
    wanted = _shortened_where_against(updates, most)
    np.testing.assert_allclose(moved, wanted, rtol=1e-3, atol=1e-5)
    same = np.all(wanted == updates, axis=1)
    assert not same[2]
    assert most < 1 or same.sum() >= users // 2
    for name in stacked:
        assert same_bits(got[name][same], stacked[name][same]), "what does not go too far stays as it is"


def test_what_nobody_goes_against_and_what_is_switched_off_stays_as_it_is() -> None:
    random = np.random.default_rng(0)
    agreeing = jnp.asarray(random.uniform(0.5, 1.5, size=(6, 8)), jnp.float32)
    torn = agreeing.at[0].multiply(-3.0)
    start, on = jnp.zeros(8), Federation(users=6)
    assert same_bits(not_against(agreeing, start, on), agreeing)
    assert not same_bits(not_against(torn, start, on), torn)
    for off in ({"max_against": 0.0}, {"max_update": 0.0}, {"aggregation": "median"}):
        assert not_against(torn, start, Federation(users=6, **off)) is torn
    for few in (1, 2, 4):
        assert same_bits(not_against(torn[:few], start, on), torn[:few])
    nothing = jnp.zeros_like(torn)
    assert same_bits(not_against(nothing, start, on), nothing)
    diverged = torn.at[1].set(jnp.nan)
    assert same_bits(not_against(diverged, start, on), diverged), "nothing hides it"


def _krum(x: np.ndarray, bad: int) -> np.ndarray:
    """Blanchard et al.'s Multi-Krum as it is written: the n - f vectors of smallest score, averaged."""
    n = len(x)
    scores = []
    for i in range(n):
        distances = sorted(float(np.sum((x[i] - x[j]) ** 2)) for j in range(n) if j != i)
        scores.append(sum(distances[: max(n - bad - 2, 1)]))
    return x[np.argsort(scores, kind="stable")[: n - bad]].mean(axis=0)


def _centred(x: np.ndarray, radius: float, steps: int) -> np.ndarray:
    """Karimireddy et al.'s centred clipping from the median, with a radius that follows the distances."""
    v = np.median(x, axis=0)
    for _ in range(steps):
        distance = np.linalg.norm(x - v, axis=1)
        tau = radius * np.median(distance)
        v = v + np.mean([(a - v) * min(1, tau / max(d, 1e-12)) for a, d in zip(x, distance, strict=True)], axis=0)
    return v


@pytest.mark.parametrize("users", [1, 2, 3, 4, 7, 10])
def test_multi_krum_and_centred_clipping_are_as_in_their_papers(users: int) -> None:
    rng = np.random.default_rng(users)
    x = rng.normal(size=(users, 6))
    x[0] += 50.0
    tree = {"a": jnp.asarray(x[:, :2], jnp.float32), "b": jnp.asarray(x[:, 2:], jnp.float32).reshape(users, 2, 2)}

    def flat(**settings: Any) -> np.ndarray:
        got = jax.jit(lambda tree: combine(tree, None, Federation(users=users, **settings)))(tree)
        return np.concatenate([got["a"], got["b"].ravel()])

    bad = max(int(0.3 * users), 1 if users >= 3 else 0)
    np.testing.assert_allclose(flat(aggregation="multi-krum", trim=0.3), _krum(x, bad), rtol=1e-4, atol=1e-5)
    settings = {"aggregation": "centred-clip", "centre_radius": 0.7, "centre_steps": 4}
    np.testing.assert_allclose(flat(**settings), _centred(x, 0.7, 4), rtol=1e-4, atol=1e-5)
    if users > 3:
        assert np.abs(flat(aggregation="multi-krum")).max() < 3, "the outlier is not among the chosen"


@pytest.mark.parametrize("size", [1e6, 1e18, 1e19, 3e38])
@pytest.mark.parametrize("aggregation", ["median", "trimmed", "centred-clip", "multi-krum"])
def test_two_of_ten_have_no_number_that_is_large_enough(aggregation: str, size: float) -> None:
    """Not even where its square is none that a float can hold."""
    x = np.random.default_rng(2).normal(size=(10, 30)).astype(np.float32)
    x[:2] = size * np.sign(x[:2])
    federation = Federation(users=10, aggregation=aggregation, max_update=0.0)
    assert np.abs(combine(jnp.asarray(x), None, federation)).max() < 3


@pytest.mark.parametrize("algorithm", each(KINDS, quick=("fedavg", "feddistill+")))
def test_every_algorithm_takes_robust_aggregation(algorithm: str) -> None:
    state = play(small_setup(algorithm, active=6, aggregation="median", clip=0.01), 1)
    assert state.diverged == 0
    assert bool(all_finite(state.server))


@pytest.mark.parametrize(
    "robust",
    [
        *({"aggregation": name} for name in ("median", "trimmed", "centred-clip", "multi-krum")),
        {"clip": 0.5},
        {"max_update": 2.0},
    ],
)
@pytest.mark.parametrize("algorithm", ["feddistill", "feddistill+"])
def test_one_user_cannot_carry_off_the_logits(algorithm: str, robust: dict[str, Any]) -> None:
    """User 0 of five claims absurd logits of every label; the mean follows, robust aggregation does not."""
    logits = {}
    for name, options in {"mean": {"max_update": 0.0}, "robust": robust}.items():
        setup = small_setup(algorithm, users=5, active=5, **options)
        built, _ = build(ALGORITHMS[algorithm], setup.task, federation_of(setup.config), {})
        forms = wires(built, setup.task, jax.random.key(0))
        server = built.server_init(jax.random.key(0))
        uploads = jax.tree.map(lambda a: jnp.zeros((5, *a.shape), a.dtype), forms.upload)
        claimed = uploads.own.logits.at[0].set(1e6)
        uploads = With(uploads.base, uploads.own._replace(logits=claimed, seen=jnp.ones_like(uploads.own.seen)))
        context = Round(jnp.int32(0), jnp.arange(5), jax.random.key(1), None)
        logits[name] = np.abs(built.server_update(server, uploads, context)[0].own.logits).max()
    assert logits["mean"] == pytest.approx(2e5)
    assert logits["robust"] <= 0.1


def test_nothing_changes_where_nothing_is_switched_on() -> None:
    """A trimmed mean that trims nothing, of updates that no bound reaches, is FedAvg's but for rounding."""
    plain = play(small_setup("fedavg"), 2).server.params
    off = {"trim": 0.0, "clip": 1e6, "clip_gradient": 0.0}
    trimmed = play(small_setup("fedavg", aggregation="trimmed", **off), 2).server.params
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(trimmed), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"aggregation": "median", "weighting": "samples"}, "set weighting to uniform"),
        ({"max_update": 0.5}, "max_update is 0.5; it is a multiple .* at least 1, or 0"),
        ({"dp_noise": 1.0}, "needs dp_clip"),
        ({"dp_count_noise": 1.0}, "set dp_noise"),
        ({"dp_noise": 1.0, "dp_clip": 1.0}, "set dp_count_noise"),
        ({"dp_noise": 1.0, "dp_clip": 1.0, "dp_count_noise": 1.0, "weighting": "samples"}, "number of samples"),
        ({"dp_noise": 1.0, "dp_clip": 1.0, "dp_count_noise": 1.0, "model": "cnn"}, "BatchNorm"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(FedgenError, match=reason):
        small_setup("fedgen", **settings)


@pytest.mark.parametrize(
    ("algorithm", "share"), [("feddistill", "all"), ("feddistill+", "all"), ("feddfusion", "predictor")]
)
def test_algorithms_that_would_send_something_without_noise_are_refused(algorithm: str, share: str) -> None:
    with pytest.raises(FedgenError, match="differential privacy"):
        small_setup(algorithm, share=share, dp_noise=1.0, dp_clip=1.0, dp_count_noise=1.0)


def test_private_updates_have_the_bounded_length_and_the_noise_they_should() -> None:
    """An update of length 10 is cut to 2; noise has standard deviation 0.5 * 2, and 0.1 * T * B on counts."""
    federation = Federation(users=1, local_steps=10, batch_size=10, dp_clip=2.0, dp_noise=0.5, dp_count_noise=0.1)
    broadcast = {"params": jnp.full(10_000, 3.0)}
    upload = {"params": jnp.full(10_000, 3.0 + 0.1), "counts": jnp.full(10_000, 1000, jnp.int32)}
    sent = jax.jit(lambda key: privatise(upload, broadcast, federation, key))(jax.random.key(0))
    change = np.asarray(sent["params"]) - 3.0
    assert change.std() == pytest.approx(1.0, rel=0.03)
    assert sent["counts"].dtype == jnp.int32
    assert np.std(sent["counts"]) == pytest.approx(10.0, rel=0.03)
    small = federation.with_values(dp_noise=1e-9)
    quiet = jax.jit(lambda key: privatise(upload, broadcast, small, key))(jax.random.key(0))
    np.testing.assert_allclose(np.asarray(quiet["params"]) - 3.0, 0.02, rtol=1e-3)  # 2 / sqrt(10,000)
    upload["params"] = upload["params"].at[0].set(jnp.nan)
    np.testing.assert_allclose(privatise(upload, broadcast, small, jax.random.key(0))["params"], 3.0, rtol=1e-6)


def test_the_accountant_is_right_for_one_message() -> None:
    """The Gaussian mechanism's exact curve (Balle and Wang 2018): delta = F(1/2s - es) - exp(e) F(-1/2s - es)."""
    sigma, delta = 1.5, 1e-5
    config = resolve({"dp_noise": sigma, "dp_clip": 1.0, "dp_delta": delta})

    def excess(e: float) -> float:
        a, b = 1 / (2 * sigma), e * sigma
        return float(norm.cdf(a - b) - np.exp(e) * norm.cdf(-a - b) - delta)

    exact = brentq(excess, 0.01, 50)
    found = guarantee(config, 1)
    assert found is not None
    assert found["epsilon"] == pytest.approx(exact, rel=1e-3)
    # Two Gaussian mechanisms of multiplier s are one of s / sqrt(2); another accountant bounds from above.
    both = guarantee(resolve({"dp_noise": sigma, "dp_count_noise": sigma, "dp_clip": 1.0}), 3)
    sigma = sigma / np.sqrt(6)
    assert both is not None
    assert both["epsilon"] == pytest.approx(brentq(excess, 0.01, 50), rel=1e-3)
    # One message and its counts, replaced: multipliers s/2 and s/sqrt(2) are one of s / sqrt(4 + 2).
    replaced = guarantee(resolve({"dp_noise": 1.5, "dp_count_noise": 1.5, "dp_clip": 1.0}), 1)
    assert replaced is not None
    assert replaced["epsilon_replaced"] == pytest.approx(both["epsilon"], rel=1e-6)
    assert replaced["epsilon_replaced"] > replaced["epsilon"]
    # The general accountants, which know nothing of that, agree (PLD) or bound it from above (RDP).
    for accountant, lowest in ((PLDAccountant(), 0.999), (RdpAccountant(), 1.0)):
        accountant.compose(dp_accounting.GaussianDpEvent(1.5), 6)
        assert lowest <= accountant.get_epsilon(delta) / both["epsilon"] <= 1.1
    tiny = guarantee(resolve({"dp_noise": 0.01, "dp_clip": 1.0}), 1000)
    assert tiny is not None
    assert tiny["epsilon"] > 1e6, "hardly any noise hardly hides anything, and saying so takes no time"


@pytest.mark.parametrize("lacking", ["dp_accounting", "dp_accounting.pld.privacy_loss_mechanism"])
def test_without_an_accountant_or_with_another_version_it_is_a_sentence(
    lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("dp_accounting")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, lacking, None)
    with pytest.raises(FedgenError, match=r"there is no privacy accountant .* pip install '.\[privacy\]'"):
        guarantee(resolve({"dp_noise": 1.0, "dp_clip": 1.0}), 1)


@pytest.mark.slow
def test_a_private_run_says_what_it_guarantees() -> None:
    setup = small_setup("fedgen", rounds=4, dp_noise=2.0, dp_clip=0.5, dp_count_noise=2.0)
    (row,) = run(setup)["results"]
    assert row["diverged_at"] is None
    assert row["privacy"]["messages"] == most_messages(setup.config, 0) <= 4
    assert row["privacy"]["epsilon"] == guarantee(setup.config, row["privacy"]["messages"])["epsilon"]
    assert "privacy" not in run(small_setup("fedavg", rounds=1))["results"][0]
