"""Sums of features, the Gaussians made of them, CCVR and class moments: against NumPy and PyTorch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as tf
from rounds_in_torch import (
    BATCH,
    CLASSES,
    COHORTS,
    KEY,
    STEPS,
    TASK,
    FedDyn,
    Reference,
    Scaffold,
    Weights,
    X,
    Y,
    copy,
    follow,
    forward,
)

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.gaussians import (
    RIDGE,
    Gaussians,
    Sums,
    check_sums,
    draw,
    factors,
    gaussians_of,
    no_sums,
    packed,
    remembered,
    sums_of,
    unpacked,
    with_noise,
    within,
)
from fedgen.algorithms.wrap import innermost
from fedgen.core.client import train_client
from fedgen.core.contract import Algorithm, Federation, Round
from fedgen.core.recipe import Shard
from fedgen.core.streams import stream
from fedgen.core.trees import all_finite, nbytes
from fedgen.core.wires import shapes
from fedgen.errors import FedgenError
from fedgen.models.generator import draw_labels
from helpers import built, play, same_bits, small_setup

LATENT = 4
rng = np.random.default_rng(8)
Z = rng.normal(2.0, 1.5, (90, LATENT)).astype(np.float32) @ rng.normal(size=(LATENT, LATENT)).astype(np.float32)
LABELS = np.repeat([0, 1, 2], [50, 39, 1])
NOBODY = 3  # a label without samples


def _sums(rows: Any) -> Sums:
    return packed(sums_of(jnp.asarray(Z[rows]), jax.nn.one_hot(LABELS[rows], 4)))


def test_gaussians_are_numpys_of_all_features_together() -> None:
    """Three users' sums, in two rounds with full memory; label 2 has one sample, label 3 none."""
    first, second = np.split(rng.permutation(90), [60])
    sums = packed(no_sums(4, LATENT))
    for users in (np.array_split(first, 2), [second]):
        uploads = jax.tree.map(lambda *a: jnp.stack(a), *map(_sums, users))
        sums = remembered(sums, uploads, 1.0, Federation(users=3))
    found = gaussians_of(sums)
    np.testing.assert_allclose(sums.counts, [50, 39, 1, 0])
    np.testing.assert_array_equal(found.known, [1, 1, 1, 0])
    root, spread = np.asarray(factors(found)), []
    for label in (0, 1, 2):
        own = Z[label == LABELS].astype(np.float64)
        covariance = np.cov(own.T) if len(own) > 1 else np.zeros((LATENT, LATENT))
        np.testing.assert_allclose(found.mean[label], own.mean(axis=0), rtol=1e-4)
        expected = np.linalg.cholesky(covariance + 1e-3 * np.eye(LATENT))
        np.testing.assert_allclose(root[label], expected, rtol=1e-3, atol=2e-3)
        spread.append(np.trace(covariance) / LATENT + 1e-3)
    np.testing.assert_array_equal(root[NOBODY], 0)
    assert float(found.spread) == pytest.approx(np.mean(spread), rel=1e-4)


def test_pooling_is_the_papers_formula() -> None:
    """CCVR's equations: the covariance of all from each user's number, mean and covariance."""
    parts = [Z[:20], Z[20:45], Z[45:50]]
    counts = np.array([len(p) for p in parts])
    means = np.array([p.mean(axis=0) for p in parts])
    total, mean = counts.sum(), counts @ means / counts.sum()
    covariance = sum((n - 1) / (total - 1) * np.cov(p.T) for n, p in zip(counts, parts, strict=True))
    covariance += sum(n / (total - 1) * np.outer(m, m) for n, m in zip(counts, means, strict=True))
    covariance -= total / (total - 1) * np.outer(mean, mean)
    found = gaussians_of(_sums(np.arange(50)))
    root = factors(found)[0]
    np.testing.assert_allclose(root @ root.T - RIDGE * np.eye(LATENT), covariance, rtol=1e-3, atol=1e-3)


def test_memory_halves_what_was_and_forgets_no_label() -> None:
    federation, sums = Federation(users=1), _sums(np.arange(90))
    one = jax.tree.map(lambda a: a[None], _sums(np.flatnonzero(LABELS == 0)))
    for _ in range(200):
        sums = remembered(sums, one, 0.5, federation)
    np.testing.assert_allclose(sums.counts, [100, 1, 1, 0], rtol=1e-5)
    found = gaussians_of(sums)
    np.testing.assert_allclose(found.mean[1], Z[LABELS == 1].mean(axis=0), rtol=1e-3)
    halved = remembered(_sums(np.arange(90)), one, 0.5, federation)
    np.testing.assert_allclose(halved.counts, [75, 19.5, 1, 0])


def test_virtual_features_have_the_gaussians_moments_and_known_labels() -> None:
    found = gaussians_of(_sums(np.arange(90)))
    z, y = draw(found, factors(found), KEY, 60_000)
    assert set(np.unique(y)) == {0, 1, 2}
    np.testing.assert_allclose(np.bincount(y) / len(y), 1 / 3, atol=0.01)
    for label in (0, 1):
        own, theirs = z[y == label], Z[label == LABELS]
        np.testing.assert_allclose(own.mean(axis=0), theirs.mean(axis=0), atol=0.1)
        np.testing.assert_allclose(np.cov(own.T), np.cov(theirs.T), rtol=0.05, atol=0.3)


def _odd_sums() -> dict[str, Sums]:
    whole = _sums(np.arange(90))

    def changed(**parts: Any) -> Sums:
        return whole._replace(**parts)

    noise = jnp.asarray(rng.normal(size=whole.second.shape), jnp.float32)
    short = jax.tree.map(lambda a: a.astype(jnp.bfloat16).astype(jnp.float32), whole)
    far = packed(sums_of(jnp.asarray(Z) + 1e3, jax.nn.one_hot(LABELS, 4)))
    return {
        "of nobody": packed(no_sums(4, LATENT)),
        "of one sample": _sums(np.array([89])),
        "of one sample, far from zero": packed(sums_of(jnp.full((1, LATENT), 1e4), jnp.eye(4)[:1])),
        "in bfloat16": short,
        "far from zero": far,
        "with noise": changed(second=whole.second + 100 * noise, first=whole.first - 50, counts=whole.counts - 20.0),
        "of negative counts": changed(counts=-whole.counts),
        "huge": jax.tree.map(lambda a: a * 1e12, whole),
        "tiny": jax.tree.map(lambda a: a * 1e-12, whole),
    }


@pytest.mark.parametrize("what", _odd_sums())
def test_whatever_the_sums_are_gaussians_are_finite(what: str) -> None:
    found = gaussians_of(_odd_sums()[what])
    assert bool(all_finite(found))
    root = np.asarray(factors(found), np.float64)
    assert bool(all_finite(draw(found, factors(found), KEY, 50)[0]))
    assert float(found.spread) > 0
    variances = np.einsum("lij,lij->li", root, root)[np.asarray(found.known) > 0]
    assert variances.min(initial=1) > 0.99 * RIDGE
    assert float(found.spread) == pytest.approx(variances.mean() if variances.size else 1.0, rel=1e-2)


def test_what_no_honest_user_sends() -> None:
    honest = _sums(np.arange(90))
    assert not any(map(bool, check_sums(honest, 90).values()))
    assert any(map(bool, check_sums(honest, 91).values()))
    assert any(map(bool, check_sums(honest._replace(counts=honest.counts - 2), 0).values()))
    diagonal = [0, 2, 5, 9]  # of a triangle of 4 rows
    for place in range(10):
        for value in (-1.0, -1e-3):
            negative = honest._replace(second=honest.second.at[0, place].set(value))
            assert any(map(bool, check_sums(negative, 0).values())) == (place in diagonal)
        large = honest._replace(second=honest.second.at[0, place].set(3e38))
        assert any(map(bool, check_sums(large, 0).values())) == (place not in diagonal)


def test_products_are_bounded_by_squares() -> None:
    """Cauchy and Schwarz, in each pair of numbers, and no honest user is at the edge by more than rounding."""
    line = jnp.asarray(rng.normal(size=(90, 1)) * [1.0, -2.0, 1e-3, 50.0] * 1e3, jnp.float32)  # correlation 1
    edge = packed(sums_of(line, jax.nn.one_hot(LABELS, 4)))
    assert not any(map(bool, check_sums(edge, 90).values()))
    wrong = check_sums(edge._replace(second=edge.second.at[2, 1].multiply(1.02)), 90)
    assert [name for name, found in wrong.items() if found] == ["its products are larger than their squares allow"]


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("size", [1e15, 1e20, 3e38])
def test_sums_so_large_that_they_have_no_squares_are_refused(size: float, noise: float) -> None:
    """Also where the counts and the squares are so large that their product is infinite; else the mean is too far."""
    honest = _sums(np.arange(90))
    squares = jnp.full_like(honest.second, min(size, 1e30))
    counts = jnp.full_like(honest.counts, 1.0 if noise == 0 else size**0.5)
    forged = Sums(counts, jnp.full_like(honest.first, size), squares)
    refused = [name for name, found in check_sums(forged, 0, 2.0, noise).items() if found]
    assert any("its sums are longer" in name for name in refused)


def test_noise_hides_no_more_than_it_must() -> None:
    """Honest sums with noise are never refused, and what is far beyond the noise always is."""
    reach, noise = 2.0, 3.0
    honest = packed(sums_of(within(jnp.asarray(Z), reach), jax.nn.one_hot(LABELS, 4)))
    check = jax.jit(lambda sums: check_sums(sums, 90, reach, noise))
    drawn = jax.vmap(lambda key: with_noise(honest, key, reach, noise))(jax.random.split(KEY, 20_000))
    assert not any(np.any(wrong) for wrong in jax.vmap(check)(drawn).values())
    sent = jax.tree.map(lambda a: a[0], drawn)
    for forged in (
        sent._replace(counts=sent.counts.at[0].set(-50.0)),
        sent._replace(counts=sent.counts + 50.0),
        sent._replace(first=sent.first.at[1].set(1e3)),
        sent._replace(second=sent.second.at[1].set(1e4)),
        sent._replace(second=sent.second.at[1].set(-1e4)),
        jax.tree.map(lambda a: -1000 * a, sent),
    ):
        assert any(map(bool, check(forged).values()))


def test_only_the_triangle_travels() -> None:
    algorithm, _ = build(ALGORITHMS["fedmoments"], TASK, Federation(users=3), {})
    own = shapes(algorithm, TASK).upload.own
    assert nbytes(own) == CLASSES * (1 + LATENT + LATENT * (LATENT + 1) // 2) * 4


@pytest.mark.parametrize(("w", "lam", "numbers"), [(0.1, 0.03, "all"), (0.0, 0.03, "means"), (0.0, 0.0, "none")])
def test_only_what_users_need_of_the_gaussians_is_broadcast(w: float, lam: float, numbers: str) -> None:
    means = CLASSES * (1 + LATENT) + 1  # known and mean of each label, the spread
    sent = {"all": means + CLASSES * LATENT * (LATENT + 1) // 2, "means": means, "none": 0}
    algorithm, _ = build(ALGORITHMS["fedmoments"], TASK, Federation(users=3), {"w": w, "lam": lam})
    assert nbytes(shapes(algorithm, TASK).broadcast.own) == 4 * sent[numbers]


def test_what_is_not_broadcast_changes_nothing() -> None:
    """With a weight that is an argument of the program, and so not known to be 0, all is sent: the rounds are equal."""
    quiet = play(small_setup("fedmoments", active=6, **{"fedmoments.w": 0.0}), 3)
    all_sent = play(small_setup("fedmoments", active=6, **{"fedmoments.w": 1e-30}), 3)
    for a, b in zip(jax.tree.leaves(quiet.server), jax.tree.leaves(all_sent.server), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "options"), [("fedmoments", {}), ("fedmoments", {"control": True}), ("ccvr", {})])
def test_the_server_learns_from_the_total_alone(name: str, options: dict[str, Any]) -> None:
    """Two users' uploads are replaced by others with the same sum: other models, and features dealt out otherwise."""
    chosen = {f"{name}.{option}": value for option, value in options.items()}
    setup, made = built(name, active=4, ema=0.5, max_update=0.0, **chosen)
    assert not made.needs.individual_uploads
    z, labels = rng.normal(2, 1, (80, 6)).astype(np.float32), rng.integers(0, 4, 80)

    def uploads(order: Any) -> Any:
        own = [sums_of(jnp.asarray(z[rows]), jax.nn.one_hot(labels[rows], 4)) for rows in np.split(order, 4)]
        form = shapes(made, setup.task).upload
        drawn = np.random.default_rng(1)
        base = jax.tree.map(lambda a: jnp.asarray(drawn.normal(3, 1, (4, *a.shape)), a.dtype), form.base)
        return type(form)(base, jax.tree.map(lambda *a: jnp.stack(a), *map(packed, own)))

    first = np.arange(80)
    second = np.concatenate([np.roll(first[:40], 7), first[40:]])  # users 0 and 1 exchange some samples
    sent, other = uploads(first), uploads(second)
    assert not same_bits(sent.own, other.own)
    moved = jax.tree.map(lambda a: jnp.asarray(rng.normal(0, 1, a.shape[1:]), a.dtype), sent.base)
    other = type(other)(jax.tree.map(lambda a, m: a.at[1].add(m).at[3].add(-m), sent.base, moved), other.own)
    round = Round(jnp.int32(0), jnp.arange(4), KEY, lambda key, n: None)
    update = jax.jit(lambda u: made.server_update(made.server_init(KEY), u, round)[0])
    one, two = update(sent), update(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    without = update(type(sent)(sent.base, jax.tree.map(lambda a: a.at[1].set(a[0]), sent.own)))
    assert not np.allclose(one.base.own.sums.second, without.base.own.sums.second, rtol=1e-2)


def test_noise_on_the_sums_is_in_multiples_of_what_a_sample_adds() -> None:
    """No vector is longer than `reach`; the noise has the deviations 1, reach and its square times `noise`."""
    bounded = within(jnp.asarray(Z), 2.0)
    lengths = np.linalg.norm(Z, axis=1)
    np.testing.assert_allclose(np.linalg.norm(bounded, axis=1), np.minimum(lengths, 2.0), rtol=1e-5)
    np.testing.assert_allclose(bounded * lengths[:, None], Z * np.minimum(lengths, 2.0)[:, None], rtol=1e-4)
    np.testing.assert_array_equal(within(jnp.asarray(Z), 0.0), Z)
    sums, keys = _sums(slice(None)), jax.random.split(KEY, 4000)
    drawn = jax.vmap(lambda k: with_noise(sums, k, 3.0, 0.5))(keys)
    for part, clean, deviation in zip(drawn, sums, (0.5, 1.5, 4.5), strict=True):
        np.testing.assert_allclose(np.mean(part, axis=0), clean, atol=5 * deviation / np.sqrt(4000))
        np.testing.assert_allclose(np.std(part, axis=0), deviation, rtol=0.1)


def test_users_add_noise_to_their_sums_and_to_nothing_else() -> None:
    """With the same mini-batches the rest of the upload is the same to the bit; a secret key gives other noise."""

    x, y = jnp.asarray(rng.integers(0, 255, (20, 8, 8, 1)), jnp.uint8), jnp.asarray(rng.integers(0, 4, 20))
    shard = Shard(x, y, jnp.arange(20), jnp.int32(0), jnp.int32(20), jnp.bincount(y, length=4))

    def upload(key: Any = None, **options: float) -> Any:
        setup, made = built("fedmoments", **{f"fedmoments__{name}": value for name, value in options.items()})
        received, client = made.broadcast(made.server_init(KEY), jnp.int32(0)), made.client_init(KEY)
        who = (shard, jnp.int32(0), jnp.int32(0), KEY)
        how = {"largest": 20, "noise": key}
        return train_client(made, setup.task, setup.federation, received, client, *who, **how).upload

    clean, noisy = upload(reach=50.0), upload(reach=50.0, noise=2.0)
    assert same_bits(clean.base, noisy.base)
    assert not any(np.array_equal(a, b) for a, b in zip(clean.own, noisy.own, strict=True))
    assert not same_bits(noisy.own, upload(jax.random.key(9), reach=50.0, noise=2.0).own)
    with pytest.raises(FedgenError, match="needs reach, the greatest length"):
        upload(noise=1.0)


def _refitted(weights: Weights, gaussians: Gaussians, key: jax.Array, steps: int, batch: int) -> torch.Tensor:
    """PyTorch's Adam on the same draws, which NumPy makes of the same normal numbers."""
    head = weights[1].detach().clone().requires_grad_(True)
    optimizer = torch.optim.Adam([head], lr=0.01)
    for k in jax.random.split(stream(key, "refit"), steps):
        z, y = _virtual(gaussians, k, batch)
        optimizer.zero_grad()
        tf.cross_entropy(z @ head, y).backward()
        optimizer.step()
    return head.detach()


def _virtual(gaussians: Gaussians, key: jax.Array, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    y = np.asarray(draw_labels(key, samples, gaussians.known))
    noise = np.asarray(jax.random.normal(stream(key, "noise"), (samples, LATENT)))
    root = np.asarray(factors(gaussians))
    z = np.array([np.asarray(gaussians.mean)[c] + root[c] @ e for c, e in zip(y, noise, strict=True)])
    return torch.tensor(z.astype(np.float32)), torch.tensor(y).long()


class Ccvr(Reference):
    """FedAvg, and the pooled features of the models that users received, computed with NumPy from their data."""

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.sums = [np.zeros(CLASSES), np.zeros((CLASSES, LATENT)), np.zeros((CLASSES, LATENT, LATENT))]
        self.number = 0

    def server(self, mean: Weights, active: int) -> Weights:
        self.sums = [0.5 * part for part in self.sums]  # no label has so few samples here that one would be left
        for user in COHORTS[self.number]:
            z = forward(self.theta, torch.tensor(X[user]))[0].detach().numpy().astype(np.float64)
            for label in range(CLASSES):
                own = z[Y[user] == label]
                parts = len(own), own.sum(axis=0), own.T @ own
                self.sums = [s + np.eye(CLASSES)[label].reshape(-1, *(1,) * (s.ndim - 1)) * p
                             for s, p in zip(self.sums, parts, strict=True)]  # fmt: skip
        self.number += 1
        return mean


def test_ccvr_is_pytorchs() -> None:
    """The predictor that the server predicts with, three rounds in a row; users receive FedAvg's."""
    options = {"refit_steps": 7, "refit_batch": 12, "refit_lr": 0.01, "collect": "before", "memory": 0.5}
    x = X.reshape(-1, 2)

    def after(algorithm: Algorithm, server: Any, theirs: Ccvr) -> None:
        sums = server.base.own.sums
        ours = sums.counts, sums.first, unpacked(sums.second)
        for our, their in zip(ours, theirs.sums, strict=True):
            np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-4)
        key = jax.random.fold_in(KEY, theirs.number - 1)
        head = _refitted(theirs.theta, gaussians_of(sums), key, 7, 12)
        logits = forward([theirs.theta[0], head, *theirs.theta[2:]], torch.tensor(x))[1].detach()
        np.testing.assert_allclose(algorithm.predict_global(server, jnp.asarray(x)), logits, rtol=1e-3, atol=1e-4)
        assert not np.allclose(head, theirs.theta[1].detach(), atol=1e-3)

    follow("ccvr", options, Ccvr, after)


@pytest.mark.slow
def test_ccvr_that_sends_the_calibrated_predictor_and_that_waits_for_the_end() -> None:
    def after_a_round(number: int, **options: Any) -> tuple[Algorithm, Any]:
        settings = {f"ccvr__{key}": value for key, value in options.items()}
        setup, made = built("ccvr", rounds=3, **settings)
        uploads = jax.tree.map(
            lambda a: jnp.asarray(np.abs(np.random.default_rng(0).normal(2, 1, (2, *a.shape))), a.dtype),
            shapes(made, setup.task).upload,
        )
        round = Round(jnp.int32(number), jnp.arange(2), KEY, lambda key, n: None)
        return made, jax.jit(lambda s: made.server_update(s, uploads, round)[0])(made.server_init(KEY))

    kept = after_a_round(0)[1]
    sent_by, sent = after_a_round(0, send=True)
    assert same_bits(innermost(kept.own.calibrated).params.predictor, innermost(sent).params.predictor)
    assert same_bits(
        sent_by.broadcast(sent, jnp.int32(1)).base.params.predictor, innermost(kept.own.calibrated).params.predictor
    )
    for number in (1, 2):
        waiting = after_a_round(number, when="end")[1]
        same = same_bits(innermost(waiting.own.calibrated).params, innermost(waiting.base).params)
        assert same == (number < 2)


@pytest.mark.parametrize(
    ("settings", "message"), [({"share": "extractor"}, "extractor"), ({"share": "predictor"}, "send")]
)
def test_ccvr_says_what_it_cannot_calibrate(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FedgenError, match=message):
        small_setup("ccvr", **settings)


class _Terms(Reference):
    """The formulas of the page, with w = 0.4, lambda = 0.2, a memory of `memory` and a reach of `reach`."""

    memory = 0.5
    reach = 0.0

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.number = self.step = 0
        self.gaussians: Gaussians | None = None
        self.sums = packed(no_sums(CLASSES, LATENT))
        self.seen: list[tuple[np.ndarray, np.ndarray]] = []

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        self.step = 0
        return super().local(user, batches)

    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z, logits = forward(weights, x, train=True)
        self.seen.append((_reached(z.detach().numpy().astype(np.float64), self.reach), y.numpy()))
        value = tf.cross_entropy(logits, y)
        if self.gaussians is not None:
            key = jax.random.fold_in(stream(KEY, "local", self.number, user), self.step)
            virtual, labels = _virtual(self.gaussians, key, 5)
            value = value + 0.4 * tf.cross_entropy(virtual @ weights[1], labels)
            mean, known = (torch.tensor(np.asarray(a)) for a in (self.gaussians.mean, self.gaussians.known))
            distance = torch.sum((z - mean[y]) ** 2, dim=1) / LATENT / float(self.gaussians.spread)
            value = value + 0.2 * torch.mean(distance * known[y])
        self.step += 1
        return value

    def server(self, mean: Weights, active: int) -> Weights:
        z, y = (np.concatenate(part) for part in zip(*self.seen, strict=True))
        assert len(z) == active * STEPS * BATCH
        new = Sums(
            np.bincount(y, minlength=CLASSES),
            np.array([z[y == c].sum(axis=0) for c in range(CLASSES)]),
            np.array([(z[y == c].T @ z[y == c])[np.tril_indices(LATENT)] for c in range(CLASSES)]),
        )
        self.sums = Sums(*(self.memory * np.asarray(old) + now for old, now in zip(self.sums, new, strict=True)))
        self.gaussians = gaussians_of(jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), self.sums))
        self.seen, self.number = [], self.number + 1
        return super().server(mean, active)


class Moments(_Terms, FedDyn):
    """With FedDyn's 0.3."""


class ControlledMoments(_Terms, Scaffold):
    """With control variates, another memory, of features no longer than 1.2."""

    memory = 0.2
    reach = 1.2


def _reached(z: np.ndarray, reach: float) -> np.ndarray:
    """Features that are no longer than `reach`, where it is not 0."""
    return z * np.minimum(1.0, reach / np.linalg.norm(z, axis=1, keepdims=True)) if reach else z


@pytest.mark.parametrize(
    ("own", "reference"), [({"dyn": 0.3}, Moments), ({"control": True, "reach": 1.2}, ControlledMoments)]
)
def test_class_moments_are_pytorchs(own: dict[str, Any], reference: type[_Terms]) -> None:
    """Three rounds: what users receive, the server's sums, and the refitted running mean that it predicts with."""
    options = {**own, "w": 0.4, "lam": 0.2, "memory": reference.memory, "virtual": 5, "ema": 0.6}
    options |= {"refit_steps": 4, "refit_batch": 12, "refit_lr": 0.01}
    sent: list[Weights] = []
    x = X.reshape(-1, 2)

    def after(algorithm: Algorithm, server: Any, theirs: _Terms) -> None:
        for our, their in zip(server.base.own.sums, theirs.sums, strict=True):
            np.testing.assert_allclose(our, their, rtol=1e-3, atol=1e-3)
        sent.append(copy(theirs.theta, False))
        weights = [0.6 ** (len(sent) - 1 - i) for i in range(len(sent))]
        mean = [
            sum(w * m for w, m in zip(weights, part, strict=True)) / sum(weights) for part in zip(*sent, strict=True)
        ]
        head = _refitted(mean, theirs.gaussians, jax.random.fold_in(KEY, theirs.number - 1), 4, 12)
        logits = forward([mean[0], head, *mean[2:]], torch.tensor(x))[1]
        np.testing.assert_allclose(algorithm.predict_global(server, jnp.asarray(x)), logits, rtol=1e-3, atol=1e-3)

    follow("fedmoments", options, reference, after)
    assert len(sent) == 3


@pytest.mark.parametrize(("collect", "reach"), [("before", 0.0), ("after", 1.2)])
def test_class_moments_over_all_of_a_users_data(collect: str, reach: float) -> None:
    """The features of the received model, or of the trained one, of each sample once, none longer than `reach`."""
    options = {"w": 0.0, "lam": 0.0, "dyn": 0.0, "collect": collect, "refit_steps": 0, "memory": 0.0}
    options |= {"reach": reach}
    models: dict[int, Weights] = {}

    class Watched(Reference):
        def finished(self, user: int, weights: Weights) -> None:
            models[user] = copy(self.theta if collect == "before" else weights, False)

        def server(self, mean: Weights, active: int) -> Weights:
            self.before = dict(models)
            models.clear()
            return mean

    def after(algorithm: Algorithm, server: Any, theirs: Watched) -> None:
        first = np.zeros((CLASSES, LATENT))
        for user, weights in theirs.before.items():
            z = _reached(forward(weights, torch.tensor(X[user]))[0].numpy(), reach)
            first += np.array([z[Y[user] == c].sum(axis=0) for c in range(CLASSES)])
        if not seen:
            np.testing.assert_allclose(server.own.sums.first, first, rtol=1e-3, atol=1e-4)
        seen.append(first)

    seen: list[np.ndarray] = []
    follow("fedmoments", options, Watched, after)
    assert len(seen) == 3


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(("control", "name"), [(False, "fedavg"), (True, "scaffold")])
def test_without_its_terms_it_is_what_it_is_built_on_to_the_bit(control: bool, name: str) -> None:
    off = {"w": 0.0, "lam": 0.0, "dyn": 0.0, "refit_steps": 0, "control": control}
    moments = play(small_setup("fedmoments", **{f"fedmoments__{key}": value for key, value in off.items()}), 2)
    assert same_bits(moments.server.base, play(small_setup(name), 2).server)


def test_control_variates_take_the_place_of_feddyns_correction() -> None:
    """Of three rounds the first has neither; a weight of FedDyn changes nothing then."""
    found = [
        play(small_setup("fedmoments", fedmoments__control=control, fedmoments__dyn=dyn), 3).server
        for control, dyn in ((True, 0.1), (True, 0.5), (False, 0.5))
    ]
    assert same_bits(found[0], found[1])
    assert not np.allclose(*(jax.tree.leaves(innermost(one).params)[0] for one in found[1:]), atol=1e-4)
