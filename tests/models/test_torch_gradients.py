"""Where PyTorch's gradient is not the derivative of the operations: under no_grad it is ours, otherwise it is said."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction, checkpoint

import fedgen
from fedgen.errors import FedgenError


class Net(nn.Module):
    """Two layers side by side, before a function of their results and a head."""

    def __init__(self, joined: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.one, self.other, self.fc, self.joined = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3), joined

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.joined(x, self.one, self.other))


def _within(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(one(x))
    return torch.tanh(other(x)) * gate


@torch.no_grad()
def _without(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    return torch.sigmoid(layer(x))


def _nested(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        gate = _without(x, one) + 1
        passed = other
    return torch.tanh(passed(x)) + gate


def _spectral(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    return one(x) + other(x)


def _net(joined: Callable[..., torch.Tensor]) -> Net:
    torch.manual_seed(0)
    net = Net(joined)
    if joined is _spectral:
        nn.utils.parametrizations.spectral_norm(net.one)
    return net


def _written(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    h, shifted = one(x).clone(), torch.zeros_like(x)
    h[:, 2] *= 2
    h[:, 3:] = 0
    h[h > 1] = 0.5
    shifted[:, 1:] = other(x)[:, :-1]
    shifted[:, 0] = h.sum(1)
    return h + shifted


@pytest.mark.parametrize("joined", [_within, _nested, _spectral])
def test_no_gradient_goes_through_what_is_under_no_grad(joined: Callable[..., torch.Tensor]) -> None:
    _assert_gradients_are_torchs(_net(joined))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_computed_again_for_the_gradient_has_torchs(reentrant: bool) -> None:
    def joined(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
        return checkpoint(lambda h: torch.tanh(other(h)), one(x), use_reentrant=reentrant)

    before = CheckpointFunction.apply
    _assert_gradients_are_torchs(_net(joined))
    assert CheckpointFunction.apply == before


@pytest.mark.filterwarnings("ignore")
def test_a_checkpoint_that_stops_gradients_in_torch_is_refused() -> None:
    def joined(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
        return checkpoint(one, x, use_reentrant=True) + other(x)

    with pytest.raises(FedgenError, match=r"gradient of 'one\.weight' is not the derivative"):
        fedgen.from_torch(_net(joined), sample=(4,))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reentrant", [True, False])
def test_statistics_of_what_is_computed_again_move_once(reentrant: bool) -> None:
    """PyTorch moves them again when it computes them again, for the gradient."""

    def joined(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
        return checkpoint(other, one(x), use_reentrant=reentrant)

    net = _net(joined)
    net.other = nn.BatchNorm1d(4)
    model = fedgen.from_torch(net, sample=(4,))
    params, statistics = model.init(jax.random.key(0))
    x = torch.randn(5, 4)
    _, after = model.extract(params.extractor, statistics, jnp.asarray(x.numpy()), True)
    logits = net.train()(x)
    np.testing.assert_allclose(after["other.running_mean"], net.other.running_mean, atol=1e-6)
    once = net.other.running_mean.clone()
    logits.sum().backward()
    assert not torch.allclose(net.other.running_mean, once)


def test_gradients_go_through_what_is_written_in_place() -> None:
    _assert_gradients_are_torchs(_net(_written))


def _assert_gradients_are_torchs(net: Net) -> None:
    model = fedgen.from_torch(net, sample=(4,))
    params, statistics = model.init(jax.random.key(0))
    x = torch.randn(5, 4)
    (net.train()(x) ** 2).sum().backward()

    def loss(params: fedgen.Params) -> jax.Array:
        z, _ = model.extract(params.extractor, statistics, jnp.asarray(x.numpy()), True)
        return jnp.sum(model.predict(params.predictor, z) ** 2)

    gradients = jax.grad(loss)(params)
    for name, gradient in {**gradients.extractor, **gradients.predictor}.items():
        theirs = net.get_parameter(name).grad
        np.testing.assert_allclose(gradient, np.zeros_like(gradient) if theirs is None else theirs, atol=1e-5)


class Straight(torch.autograd.Function):
    """The sign, with the identity's derivative."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.sign()

    @staticmethod
    def backward(_: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _straight(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    return Straight.apply(one(x)) + other(x)


def _hooked(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    h = one(x)
    if h.requires_grad:
        h.register_hook(lambda gradient: 3 * gradient)
    return h + other(x)


def _in_place(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    h = one(x)
    with torch.no_grad():
        h.mul_(2)
    return h + other(x)


def _plain(x: torch.Tensor, one: nn.Module, other: nn.Module) -> torch.Tensor:
    return one(x) + other(x)


def _with_a_hook_on_a_weight() -> Net:
    net = _net(_plain)
    net.one.weight.register_hook(lambda gradient: 3 * gradient)
    return net


def _with_a_hook_on_a_module() -> Net:
    net = _net(_plain)
    net.one.register_full_backward_pre_hook(lambda _, gradients: tuple(3 * g for g in gradients))
    return net


def _with_a_head_of_zeros() -> Net:
    net = _net(_straight)
    nn.init.zeros_(net.fc.weight)
    return net


MAKERS: list[Callable[[], Net]] = [
    lambda: _net(_straight),
    lambda: _net(_hooked),
    lambda: _net(_in_place),
    _with_a_hook_on_a_weight,
    _with_a_hook_on_a_module,
    _with_a_head_of_zeros,
    lambda: nn.Sequential(nn.Dropout(0.5), _net(_straight)),
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("made", [True, False])
def test_a_gradient_that_is_not_the_derivative_is_refused(make: Callable[[], nn.Module], made: bool) -> None:
    with pytest.raises(FedgenError, match=r"gradient of '(1\.)?one\.weight' is not the derivative .* detach\(\)"):
        fedgen.from_torch(make() if made else make, sample=(4,))


def test_the_comparison_leaves_the_module_and_generators_as_they_were() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    before = torch.random.get_rng_state()
    model = fedgen.from_torch(net, sample=(4,))
    assert torch.equal(before, torch.random.get_rng_state())
    for name, array in model.state_dict(*model.init(jax.random.key(0))).items():
        np.testing.assert_array_equal(array, state[name])


def test_words_are_compared_by_those_that_the_module_knows() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.fc = nn.Embedding(2, 4, padding_idx=0), nn.Linear(4, 2)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            return self.fc(Straight.apply(self.embedding(words)).mean(1))

    with pytest.raises(FedgenError, match=r"'embedding\.weight'"):
        fedgen.from_torch(Words(), sample=torch.zeros(3, dtype=torch.int64))
