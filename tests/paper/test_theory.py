"""The measured theorem: the distance against known answers, and a small run of the experiment."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image
from scipy.stats import norm

from fedgen.algorithms.fedgen import Server
from fedgen.algorithms.gaussians import gaussians_of, packed, sums_of
from fedgen.algorithms.wrap import With
from fedgen.errors import FedgenError
from fedgen.models.generator import generator_init
from fedgen.paper import theory as module
from fedgen.paper.tables import tables
from fedgen.paper.theory import generate_features, over_users, proxy_distance, theory
from fedgen.paper.theory_figure import SHOWN, theory_chart, theory_figure
from helpers import small_config, small_data, small_setup

RNG = np.random.default_rng


@pytest.mark.parametrize("apart", [0.5, 1.0, 2.0])
def test_the_distance_of_two_gaussians_is_that_of_the_best_rule(apart: float) -> None:
    """Of N(0, I) and N(m, I) with |m| = d the best rule is linear and errs with probability Phi(-d / 2)."""
    rng = RNG(0)
    a, b = rng.normal(size=(2, 20_000, 8))
    b += apart * np.array([0.6, 0.8, 0, 0, 0, 0, 0, 0])
    expected = 2 * (1 - 2 * norm.cdf(-apart / 2))
    # 20,000 held-out samples: a standard deviation of at most 4 * 0.5 / sqrt(20,000) = 0.014
    assert proxy_distance(a, b, rng) == pytest.approx(expected, abs=0.05)


def test_like_features_have_no_distance_and_separable_ones_the_largest() -> None:
    rng = RNG(1)
    a, b = rng.normal(size=(2, 4000, 16))
    assert abs(np.mean([proxy_distance(a, b, RNG(seed)) for seed in range(5)])) < 0.08
    assert proxy_distance(a, b + 20, rng) == 2.0
    assert proxy_distance(np.zeros((10, 3)), np.zeros((10, 3)), rng) == 0.0, "constant features do no harm"


def test_the_distance_is_symmetric_and_mixing_half_of_the_other_in_halves_it() -> None:
    """As in the corollary's proof: with D_A = D, d((D_k + D) / 2, D) is half of d(D_k, D)."""
    rng = RNG(2)
    own, all_users, others = rng.normal(size=(3, 20_000, 4))
    own += 1.0
    whole = proxy_distance(own, all_users, rng)
    assert proxy_distance(all_users, own, rng) == pytest.approx(whole, abs=0.05)
    mixed = np.concatenate([own[:10_000], others[:10_000]])
    assert proxy_distance(mixed, all_users, rng) == pytest.approx(whole / 2, abs=0.07)


def test_features_are_drawn_from_what_users_receive() -> None:
    task, rng = small_setup("fedmoments").task, RNG(3)
    latent = task.latent_size()
    z = rng.normal(2.0, 0.5, (400, latent)).astype(np.float32)
    gaussians = gaussians_of(packed(sums_of(z, np.eye(task.classes, dtype=np.float32)[np.zeros(400, int)])))
    drawn = generate_features(With(None, gaussians), task, jax.random.key(0), 4000)
    np.testing.assert_allclose(drawn.mean(axis=0), z.mean(axis=0), atol=0.05)
    np.testing.assert_allclose(drawn.std(axis=0), z.std(axis=0), atol=0.05)
    generator = generator_init(jax.random.key(1), task.classes, 4, 8, latent)
    made = generate_features(With(None, Server(generator, None, np.eye(task.classes)[1])), task, jax.random.key(0), 7)
    assert made.shape == (7, latent)
    assert generate_features(None, task, jax.random.key(0), 7) is None


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    names = ["fedavg", "fedgen", "fedmoments"]
    settings = {"algorithms": names, "users": 3, "active": 2, "rounds": 2, "seeds": 2, "train_fraction": 1.0}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST", 20)
        return theory(small_config("fedavg", **settings), small_data())


def test_everything_is_measured_after_each_round_for_each_user(result: dict[str, Any]) -> None:
    assert (result["rounds"], result["seeds"]) == ([1, 2], [0, 1])
    for name, runs in result["measured"].items():
        for seed, run in enumerate(runs):
            assert set(run) == set(SHOWN) - ({"augmented", "generated"} if name == "fedavg" else set())
            users = len(result["users"][str(seed)])
            assert all(len(values) == users for key in ("own", "ideal", "risk") for values in run[key])
            assert all(-2 <= value <= 2 for key in ("own", "ideal") for values in run[key] for value in values)
            assert np.ravel(run["test_risk"]).min() > 0
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_risks_are_those_of_the_trained_model(result: dict[str, Any]) -> None:
    """Against `fedgen.simulate` with its model after one and after two rounds."""
    import fedgen

    data = small_data()
    config = small_config("fedavg", users=3, active=2, rounds=2, train_fraction=1.0)
    settings = {key: getattr(config, key) for key in ("users", "active", "local_steps", "batch_size", "alpha")}
    options = {"model.hidden": 12, "model.latent": 6, "partition.min_samples": 2}
    run = fedgen.simulate(
        "fedavg", data=data, model="mlp", rounds=2, train_fraction=1.0, options=options, progress=False, **settings
    )
    chosen = run.model("fedavg", seed=0).predict_proba(data.x_test)[np.arange(len(data.y_test)), data.y_test]
    measured = result["measured"]["fedavg"][0]
    assert measured["test_risk"][1] == pytest.approx(-np.log(chosen).mean(), abs=1e-3)
    assert measured["global_risk"] == measured["test_risk"], "without a running mean they are of one model"


def test_a_user_needs_samples_to_be_compared() -> None:
    with pytest.raises(FedgenError, match="no user has 100 samples"):
        theory(small_config("fedavg"), small_data())


def test_the_table_has_the_corollarys_bound(result: dict[str, Any]) -> None:
    (table,) = tables({"theory": result})
    titles = [column.title for column in table.columns]
    rows = {row[0].text: row for row in table.rows}
    own, bound, generated = (
        rows["FedGen, round 2"][titles.index(title)].value
        for title in ("distance of a user", "Corollary's bound of it", "distance of the generated")
    )
    assert bound == pytest.approx((own + generated) / 2)
    assert own == pytest.approx(over_users(result, "fedgen", "own")[:, 1].mean())
    assert rows["FedAvg, round 1"][titles.index("with generated")].value is None


def test_the_picture_and_the_page_have_every_curve(result: dict[str, Any], tmp_path: Path) -> None:
    png, svg = theory_figure(json.loads(json.dumps(result)), tmp_path, "theory.tuned")
    assert "</svg>" in svg.read_text()
    assert np.asarray(Image.open(png).convert("L")).min() < 100
    chart = theory_chart(result, "theory.tuned")
    points = {one["name"]: set(one["points"]) for one in chart.data["series"]}
    assert points["FedGen"] == set(SHOWN)
    assert points["FedAvg"] == set(SHOWN) - {"augmented", "generated"}
