"""The examples of federations run as they stand."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from real import left_behind

from fedgen.core.aggregate import bounded, not_against
from fedgen.core.contract import Federation
from helpers import same_bits

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.waits
def test_sites_with_different_extractors(tmp_path: Path) -> None:
    """Real processes: grey images with PyTorch, colour ones with Flax, vectors with ours; all send the same arrays."""
    command = [sys.executable, "examples/different_extractors.py", tmp_path / "federation", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sent = dict(re.findall(r"(\w+) sent (\d+) bytes", done.stdout))
    predictor, counts, headers = (16 * 4 + 4) * 4, 4 * 4, 3 * 128
    assert sent == dict.fromkeys(("grey", "colour", "vectors"), str(predictor + counts + headers))
    assert not left_behind(tmp_path)
    scores = dict(re.findall(r"(\w+) recognises ([\d.]+) %", done.stdout))
    assert set(scores) == set(sent)
    assert min(map(float, scores.values())) > 30, "better than guessing one of four"


def test_what_the_preset_of_federations_sets_is_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    chosen = tomllib.loads((ROOT / "src/fedgen/tuned.toml").read_text())["mnist"]["T20"]["fedgen"]
    settings, own = attacks.chosen_by("tuned", "fedgen")
    assert {**settings, **own} == chosen
    assert {"w", "beta"} == set(own)
    assert attacks.chosen_by("paper", "fedgen") == ({}, {})


@pytest.mark.slow
def test_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ten attacks for a few rounds, or two: without a bound the mean follows, Multi-Krum does not."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    flip = "label flip × 10"
    asked = {"mean, no bound": ([flip], 1), "mean (default)": ([flip], 1), "multi-krum": (attacks.NAMES, 2)}
    narrow = {"model.hidden": 64}
    records = [
        record
        for name, (chosen, users) in asked.items()
        for record in attacks.measure("fedavg", name, [1.0], 1, [5], chosen=chosen, users=users, **narrow)
    ]
    found = attacks.table(records, 1.0, 0)
    assert set(found) == set(asked)
    scores = found["multi-krum"]
    assert {name: len(row) for name, row in scores.items()} == {
        "none": 1, **{name: 2 for name in attacks.NAMES if name != "lying counts"},
    }  # fmt: skip
    flipped = {name: row[flip][0] for name, row in found.items()}
    assert flipped["mean, no bound"] < 40 < 70 < min(flipped["mean (default)"], flipped["multi-krum"]), flipped


@pytest.mark.parametrize("attackers", [1, 2])
def test_an_ascent_is_what_the_server_takes_as_it_is(attackers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, though it is as long as may be and as far against the others as may be."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    rng = np.random.default_rng(0)
    common, side = rng.normal(size=(2, 30))
    updates = {"a": jnp.float32(common + rng.normal(size=(10, 30))), "b": jnp.float32(rng.normal(size=(10, 2, 5)))}
    start = jax.tree.map(lambda a: a[0] * 0, updates)
    honest = jnp.float32(np.arange(10) >= attackers)
    others = attacks.known(updates, honest, start, loss=lambda model: jnp.sum(model["a"] * (side - 2 * common)))
    forged = attacks.ATTACKS["ascent"](None, others)
    sent = jax.tree.map(lambda a, f: jnp.concatenate([jnp.stack([f] * attackers), a[attackers:]]), updates, forged)
    federation = Federation(users=10)
    assert same_bits(not_against(bounded(sent, start, federation), start, federation), sent)
    vector, mean = (np.asarray(ravel_pytree(tree)[0]) for tree in (forged, others.mean))
    assert np.linalg.norm(vector) == pytest.approx(float(others.longest), rel=1e-5)
    assert vector @ mean / np.linalg.norm(mean) == pytest.approx(-float(others.against), rel=1e-4)


def test_an_ascent_is_led_back_to_the_nearest_update_within_the_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other one within the rules, x, is nearer: the angle at the nearest, between the way to x and back, is wide."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    rng = np.random.default_rng(0)
    updates = {"a": jnp.float32(1 + rng.normal(size=(10, 4)))}
    others = attacks.known(updates, jnp.ones(10), {"a": jnp.zeros(4)}, most=0.5)
    unit = np.asarray(others.mean["a"]) / np.linalg.norm(others.mean["a"])

    def led(points: np.ndarray) -> np.ndarray:
        return np.asarray(jax.vmap(lambda a: attacks.within_rules({"a": a}, others)["a"])(jnp.float32(points)))

    points = 5 * rng.normal(size=(400, 4))
    nearest = led(points)
    assert 0 < others.against < others.longest
    assert np.all(np.linalg.norm(nearest, axis=1) <= float(others.longest) * (1 + 1e-6))
    assert np.all(nearest @ unit >= -float(others.against) * (1 + 1e-6))
    np.testing.assert_allclose(led(nearest), nearest, atol=1e-5)
    angles = np.einsum("pk,pqk->pq", points - nearest, nearest[None] - nearest[:, None])
    assert angles.max() < 1e-3


@pytest.mark.slow
def test_two_of_ten_do_not_break_fedgen_under_multi_krum(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the defaults, that is with honest users' gradients bounded; without, this costs most runs everything."""
    monkeypatch.syspath_prepend(ROOT / "examples")
    import attacks

    records = attacks.measure("fedgen", "multi-krum", [1.0], 1, [20], chosen=["lying counts"], users=2)
    scores = attacks.table(records, 1.0, 0)["multi-krum"]
    assert scores["none"][0] > 80
    assert min(scores["lying counts"]) > scores["none"][0] - 3, scores
