"""What only shows when a module is called: state in Python, and logits that JAX would compute otherwise."""

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

import fedgen
from fedgen.errors import FedgenError
from fedgen.models.torch.registry import OPERATIONS


class Layer(nn.Module):
    """A function of what it gets and of itself, and then a head."""

    def __init__(self, function: Callable[["Layer", torch.Tensor], torch.Tensor], **kept: Any) -> None:
        super().__init__()
        self.function, self.head = function, nn.Linear(4, 3)
        for name, value in kept.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.function(self, x))


def _dropped(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return x if layer.training and random.random() < 1e-9 else x.relu()


def _noisy(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor(np.random.normal(size=4).astype(np.float32)) if layer.training else x


def _noisy_by_its_own(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return x + layer.rng.random() if layer.training else x


def _counted(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    layer.n += layer.training
    return x * min(1.0, layer.n / 10)


def _counted_in_evaluation(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    layer.seen["calls"].append(len(x))
    return x * len(layer.seen["calls"])


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer(_dropped), "draws from Python's random generator, .* draw with PyTorch's functions"),
        (nn.Sequential(nn.Dropout(0.5), Layer(_noisy)), "draws from NumPy's random generator"),
        (Layer(_noisy_by_its_own, rng=np.random.default_rng(0)), "changes its attribute 'rng' in each call"),
        (nn.Sequential(nn.Dropout(0.5), Layer(_counted, n=0)), r"'1\.n' in each call, .* in a buffer of floating"),
        (Layer(_counted_in_evaluation, seen={"calls": []}), "changes its attribute 'seen'"),
    ],
)
def test_state_in_python_is_refused_and_generators_are_left(layer: nn.Module, message: str) -> None:
    python, numpy, own = random.getstate(), np.random.get_state()[1].copy(), torch.random.get_rng_state()
    with pytest.raises(FedgenError, match=message):
        fedgen.from_torch(layer, sample=(4,))
    assert random.getstate() == python
    np.testing.assert_array_equal(np.random.get_state()[1], numpy)
    assert torch.equal(torch.random.get_rng_state(), own)


def _cached(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    if layer.table is None:
        layer.table, layer.length = torch.arange(4.0), 4
    layer.last = x.detach()
    return x + layer.table[: layer.length]


def test_what_is_kept_for_later_calls_is_no_state() -> None:
    layer = Layer(_cached, table=None, length=0, last=None)
    model = fedgen.from_torch(layer, sample=(4,))
    params, statistics = model.init(jax.random.key(0))
    z, _ = model.extract(params.extractor, statistics, jax.numpy.zeros((2, 4)), True)
    np.testing.assert_array_equal(z, [range(4)] * 2)
    assert layer.table is None, "a copy was called"


def _words(function: Callable[[torch.Tensor], torch.Tensor], rows: int) -> nn.Module:
    return Layer(lambda layer, x: layer.words(function(x)).mean(1), words=nn.Embedding(rows, 4))


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x: (x * 1000003 * 7919 + 12345) % 61, 61),
        (lambda x: x * 100_000_000 // 50_000_000 % 50, 50),  # beyond 32 bits for words that the embedding knows alone
    ],
)
def test_whole_numbers_of_more_than_32_bits_are_refused(function: Callable[[torch.Tensor], Any], rows: int) -> None:
    with pytest.raises(FedgenError, match=r"other logits than PyTorch .* keep whole numbers below 2\*\*31"):
        fedgen.from_torch(_words(function, rows), sample=torch.zeros(7, dtype=torch.int64))


def test_whole_numbers_of_32_bits_are_taken() -> None:
    fedgen.from_torch(_words(lambda x: (x * 1009 + 12345) % 61, 61), sample=torch.zeros(7, dtype=torch.int64))


def test_an_operation_that_is_not_torchs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.Linear(3, 2))
    known = OPERATIONS["aten.sigmoid.default"]
    monkeypatch.setitem(OPERATIONS, "aten.sigmoid.default", known._replace(function=lambda x: jax.nn.sigmoid(1.1 * x)))
    with pytest.raises(FedgenError, match="an operation that you added may differ"):
        fedgen.from_torch(module, sample=(4,))
