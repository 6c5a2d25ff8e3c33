"""What the server predicts with: `ema` against the sum that defines it, and what stays the same beside it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from rounds_in_torch import FedDyn, Reference, X, follow, forward
from tiny import KEY, SAMPLE, TASK, assert_like, round_of, some_model, tensor, torch_model

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.fedavg import Upload
from fedgen.algorithms.wrap import With, innermost, wrap
from fedgen.core.contract import Algorithm, Federation, Task
from fedgen.core.trees import stack
from fedgen.errors import FedgenError
from helpers import play, same_bits, small_setup

WEIGHT = 0.6


def _weighted(values: list[Any]) -> Any:
    """sum_i b^(t-i) v_i / sum_i b^(t-i)."""
    weights = np.array([WEIGHT ** (len(values) - 1 - i) for i in range(len(values))])
    return sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True))


@pytest.mark.parametrize(("name", "options", "reference"), [("fedavg", {}, Reference), ("feddyn", {"mu": 0.3}, FedDyn)])
def test_predicts_with_the_weighted_mean_of_the_models_that_it_sent(name: str, options: Any, reference: Any) -> None:
    """Three rounds beside PyTorch; `follow` itself compares what users receive, which does not change."""
    sent: list[list[torch.Tensor]] = []
    x = X.reshape(-1, 2)

    def after(algorithm: Algorithm, server: Any, theirs: Any) -> None:
        sent.append([w.detach().clone() for w in theirs.theta])
        mean = [_weighted(part) for part in zip(*sent, strict=True)]
        logits = forward([m.float() for m in mean], torch.tensor(x))[1]
        np.testing.assert_allclose(algorithm.predict_global(server, jnp.asarray(x)), logits, rtol=1e-4, atol=1e-5)

    follow(name, {**options, "ema": WEIGHT}, reference, after)
    assert len(sent) == 3


def test_batchnorms_statistics_are_averaged_with_it() -> None:
    algorithm, _ = build(ALGORITHMS["fedavg"], TASK, Federation(users=2), {"ema": WEIGHT})
    server, x = algorithm.server_init(KEY), jax.random.normal(KEY, (7, SAMPLE))
    sent = [some_model(seed) for seed in (1, 2, 3)]
    for number, model in enumerate(sent):
        server, _ = algorithm.server_update(server, stack([Upload(*model, None)] * 2), round_of(number, 2))
    mean = torch_model(*jax.tree.map(lambda *a: _weighted([np.asarray(v) for v in a]).astype(np.float32), *sent)).eval()
    assert_like(algorithm.predict_global(server, x), mean(tensor(x)))
    received = algorithm.broadcast(server, jnp.int32(3))
    assert same_bits((received.params, received.statistics), sent[-1])


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("algorithm", ["fedgen", "fedensemble"])
def test_what_users_do_is_the_same_to_the_bit(algorithm: str) -> None:
    plain, averaged = (play(small_setup(algorithm, ema=ema), 2) for ema in (0.0, 0.5))
    assert same_bits(plain.server, averaged.server.base)
    assert same_bits(plain.clients, averaged.clients)
    assert not same_bits(innermost(averaged.server.own.mean), innermost(averaged.server.base))


def test_a_plug_in_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def number(task: Task, federation: Federation) -> Algorithm:
        base = ALGORITHMS["fedavg"](task, federation)
        return base._replace(
            server_init=lambda key: {"value": jnp.float32(8), "rounds": jnp.int32(0)},
            server_update=lambda s, u, r: ({"value": jnp.mean(u), "rounds": s["rounds"] + 1}, {}),
            predict_global=lambda s, x: s["value"] + 0 * x,
        )

    algorithm, _ = build(number, TASK, Federation(users=2), {"ema": WEIGHT})
    server = algorithm.server_init(KEY)
    for round, value in enumerate((1.0, 3.0)):
        server, _ = algorithm.server_update(server, jnp.full(2, value), round_of(round, 2))
    assert float(algorithm.predict_global(server, jnp.zeros(()))) == pytest.approx((WEIGHT * 1 + 3) / (WEIGHT + 1))
    assert int(server.own.mean["rounds"]) == 2, "what is no float is the last"


def test_calibration_is_of_the_mean_and_stays_in_its_layer() -> None:
    """An algorithm that calibrates, wrapped by another with a state of its own."""
    base = ALGORITHMS["fedavg"](TASK, Federation(users=2))

    def calibrate(server: Any, shown: Any, round: Any) -> Any:
        return shown._replace(params=shown.params._replace(predictor=jax.tree.map(jnp.zeros_like, server.params[1])))

    def layered(task: Task, federation: Federation) -> Algorithm:
        return wrap(base._replace(calibrate=calibrate), server_init=lambda key: jnp.float32(5))

    for ema in (0.0, WEIGHT):
        algorithm, _ = build(layered, TASK, Federation(users=2), {"ema": ema})
        server, _ = algorithm.server_update(
            algorithm.server_init(KEY), stack([Upload(*some_model(1), None)] * 2), round_of(0, 2)
        )
        np.testing.assert_array_equal(algorithm.predict_global(server, jnp.ones((2, SAMPLE))), np.zeros((2, 3)))
        assert same_bits(innermost(server.base).params, some_model(1)[0])
        assert isinstance(server.own.calibrated, With)
        assert float(server.own.calibrated.own) == 5


def test_without_a_global_model_it_is_refused() -> None:
    with pytest.raises(FedgenError, match=r"ema .* there is none"):
        small_setup("fedavg", share="predictor", ema=0.9)
