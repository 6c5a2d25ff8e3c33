"""FedGen's generator and its second client term against the same in PyTorch and NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from optax.tree_utils import tree_get
from scipy.special import softmax
from tiny import CLASSES, KEY, MODEL, SAMPLE, TASK, assert_like, round_of, some_model, tensor, torch_linear, torch_norm
from torch import nn

from fedgen.algorithms.fedavg import Upload as AverageUpload
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.fedgen import Upload, fedgen
from fedgen.algorithms.wrap import With
from fedgen.core.contract import Algorithm, Batch, Federation, Params
from fedgen.core.streams import stream
from fedgen.core.trees import stack
from fedgen.models.generator import draw_labels, draw_noise, generate
from helpers import local_of, same_bits, step_of

FEDERATION = Federation(users=3)
ROUNDS, STEPS, BATCH, NOISE, HIDDEN = 2, 3, 24, 2, 6
RATE, RATE_DECAY, WEIGHT_DECAY = 0.02, 0.5, 0.3
COUNTS = np.array([[6, 1, 0], [2, 2, 4], [1, 0, 8]])  # [user, label]
USERS = [some_model(1), some_model(2), some_model(3)]


def _fedgen(**options: Any) -> Algorithm:
    return fedgen(TASK, FEDERATION, noise_size=NOISE, hidden=HIDDEN, client_batch=8, **options)


@pytest.fixture(scope="module")
def servers() -> list[Any]:
    """The server before the first round and after each."""
    algorithm = _fedgen(
        generator_steps=STEPS, generator_batch=BATCH, generator_lr=RATE, generator_lr_decay=RATE_DECAY,
        generator_weight_decay=WEIGHT_DECAY, eta=0.0,
    )  # fmt: skip
    sent = stack([AverageUpload(params, statistics, None) for params, statistics in USERS])
    uploads = With(sent, Upload(jnp.asarray(COUNTS)))
    rest = round_of(0, 3)
    update = jax.jit(
        lambda server, number, key: algorithm.server_update(server, uploads, rest._replace(number=number, key=key))[0]
    )
    reached = [algorithm.server_init(KEY)]
    for round in (round_of(number, 3) for number in range(ROUNDS)):
        reached.append(update(reached[-1], round.number, round.key))
    return reached


@pytest.fixture(scope="module")
def theirs(servers: list[Any]) -> list[dict[str, torch.Tensor]]:
    """What PyTorch makes of the same start and the same draws, after each round."""
    params, statistics = servers[0].own.generator
    hidden, output = params["hidden"], params["output"]
    generator = nn.Sequential(
        torch_linear(hidden["weight"], hidden["bias"]), torch_norm(params["norm"], statistics), nn.ReLU(),
        torch_linear(output["weight"], output["bias"]),
    ).train()  # fmt: skip
    predictors = [torch_linear(p.predictor["weight"], p.predictor["bias"]) for p, _ in USERS]
    shares = tensor(COUNTS / COUNTS.sum(axis=0)).float()  # lambda, [user, label]
    prior = jnp.asarray(COUNTS.sum(axis=0) / COUNTS.sum(), jnp.float32)
    # One optimiser for all rounds. Its weight decay is in the gradient, before the two means are taken.
    optimizer = torch.optim.Adam(generator.parameters(), RATE, weight_decay=WEIGHT_DECAY)
    reached = []
    for number in range(ROUNDS):
        optimizer.param_groups[0]["lr"] = RATE * RATE_DECAY**number
        for key in jax.random.split(stream(round_of(number, 3).key, "generator"), STEPS):
            y = tensor(jnp.sort(draw_labels(key, BATCH, prior))).long()
            eps = tensor(draw_noise(key, (BATCH, NOISE), "normal"))
            z = generator(torch.cat([eps, nn.functional.one_hot(y, CLASSES)], dim=1))
            mixed = sum(share[y][:, None] * predict(z) for share, predict in zip(shares, predictors, strict=True))
            optimizer.zero_grad()
            nn.functional.cross_entropy(mixed, y).backward()
            optimizer.step()
        means = optimizer.state[generator[3].weight]
        state = {**generator.state_dict(), "exp_avg": means["exp_avg"], "exp_avg_sq": means["exp_avg_sq"]}
        reached.append({name: value.clone() for name, value in state.items()})
    return reached


@pytest.mark.parametrize("round", range(ROUNDS))
def test_the_generator_is_torchs_after_each_round(servers: list[Any], theirs: list[dict], round: int) -> None:
    """Eq. 4 by one Adam for all rounds, whose gradients have the weight decay in them."""
    params, expected = servers[round + 1].own.generator.params, theirs[round]
    for place, layer in (("0", "hidden"), ("3", "output")):
        assert_like(params[layer]["weight"], expected[f"{place}.weight"].T)
        assert_like(params[layer]["bias"], expected[f"{place}.bias"])
    assert_like(params["norm"]["scale"], expected["1.weight"])
    assert_like(params["norm"]["shift"], expected["1.bias"])
    count, mu, nu = (tree_get(servers[round + 1].own.optimizer, name) for name in ("count", "mu", "nu"))
    assert int(count) == STEPS * (round + 1)
    assert_like(mu["output"]["weight"], expected["exp_avg"].T)
    assert_like(nu["output"]["weight"], expected["exp_avg_sq"].T)


@pytest.mark.parametrize("round", range(ROUNDS))
def test_the_generators_statistics_are_kept(servers: list[Any], theirs: list[dict], round: int) -> None:
    statistics = servers[round + 1].own.generator.statistics
    assert_like(statistics["mean"], theirs[round]["1.running_mean"])
    assert_like(statistics["variance"], theirs[round]["1.running_var"])


def test_users_get_the_generator_with_its_statistics_and_not_its_optimiser(servers: list[Any]) -> None:
    received = _fedgen().broadcast(servers[-1], jnp.int32(ROUNDS)).own
    assert same_bits(received.generator, servers[-1].own.generator)
    assert received.optimizer is None


def test_the_matching_terms_target_is_a_constant() -> None:
    """beta KL(p || q), p being the answer to generated features: with p held fixed its slope is beta (q - p) / n."""
    beta, samples = 3.0, 12
    algorithm, plain = _fedgen(w=0.0, beta=beta), fedavg(TASK, FEDERATION)
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(samples, SAMPLE)).astype(np.float32), rng.integers(0, CLASSES, samples)
    batch = Batch(jnp.asarray(x), jnp.asarray(y))
    server, (params, statistics) = algorithm.server_init(KEY), some_model(5)

    def gradient(of: Algorithm, received: Any) -> Params:
        local = local_of(TASK, received, of.client_init(KEY))
        _, memo = of.local_start(local)
        step = step_of(of, batch, local, KEY)
        return jax.jit(jax.grad(lambda p: of.local_loss(p, memo, batch, local, step).value))(params)

    received = algorithm.broadcast(server, jnp.int32(1))
    added = jax.tree.map(jnp.subtract, gradient(algorithm, received), gradient(plain, received.base))
    eps = draw_noise(stream(KEY, "matched"), (samples, NOISE), "normal")
    generated, _ = generate(server.own.generator, eps, batch.y, CLASSES, False)
    z, _ = MODEL.extract(params.extractor, statistics, batch.x, True)
    p, q = (softmax(np.asarray(MODEL.predict(params.predictor, a)), axis=1) for a in (generated, z))
    slope = beta * (q - p) / samples
    np.testing.assert_allclose(added.predictor["weight"], np.asarray(z).T @ slope, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(added.predictor["bias"], slope.sum(axis=0), rtol=1e-3, atol=1e-5)
