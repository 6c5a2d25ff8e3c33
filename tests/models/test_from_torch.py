"""PyTorch modules as models: forward, gradients and statistics are PyTorch's, and the weights go back."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedgen
from fedgen.core.contract import Model, Params
from fedgen.core.losses import cross_entropy
from torch_networks import MLP, VGG11, LeNet, MobileNetV2, ResNet, Text, ViT

KEY = jax.random.key(0)
IMAGE = (3, 32, 32)
TOKENS = torch.zeros(7, dtype=torch.int64)
SMALL_STAGES = ((1, 4, 1, 1), (6, 6, 2, 2), (6, 8, 1, 2))

# name -> the module, and its samples
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "lenet": (LeNet, (1, 28, 28)),
    "vgg-11": (lambda: VGG11(width=4, hidden=16, dropout=0.0), IMAGE),
    "resnet-18": (lambda: ResNet(width=4), IMAGE),
    "mobilenet-v2": (lambda: MobileNetV2(SMALL_STAGES, 4, 16, dropout=0.0), IMAGE),
    "resnet, group norm": (lambda: ResNet(width=4, stages=2, blocks=1, norm=lambda n: nn.GroupNorm(2, n)), IMAGE),
    "vit": (ViT, (3, 16, 16)),
    "mlp": (lambda: MLP(dropout=0.0), (20,)),
    "lstm": (lambda: Text(nn.LSTM), TOKENS),
    "gru": (lambda: Text(nn.GRU), TOKENS),
}
FULL_SIZE: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "vgg-11": (lambda: VGG11(hidden=512, dropout=0.0), IMAGE),
    "resnet-18": (ResNet, IMAGE),
    "mobilenet-v2": (lambda: MobileNetV2(dropout=0.0), IMAGE),
}


def _made(factory: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A module with running statistics and biases that are not those of the start."""
    torch.manual_seed(seed)
    module = factory()
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if "running" in name or name.endswith("bias"):
            tensor.data = tensor.data + torch.rand_like(tensor) / 5
    return module


def _batch(sample: Any, count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    shape = tuple(sample.shape if isinstance(sample, torch.Tensor) else sample)
    y = torch.arange(count) % 10
    if isinstance(sample, torch.Tensor):
        return torch.randint(0, 30, (count, *shape)), y
    return torch.randn(count, *shape), y


def _stored(x: torch.Tensor) -> jax.Array:
    """As FedGen stores samples: images with their channels last, tokens as numbers."""
    return jnp.asarray(np.moveaxis(x.numpy(), 1, -1) if x.ndim == 4 else x.numpy())


def _ours(model: Model, x: torch.Tensor, y: torch.Tensor, train: bool) -> tuple:
    """Logits, gradients by name, and statistics after the batch."""
    params, statistics = model.init(KEY)

    @jax.jit
    def run(params: Params) -> tuple:
        def loss(params: Params) -> tuple:
            key = (KEY,) if model.random and train else ()
            z, after = model.extract(params.extractor, statistics, _stored(x), train, *key)
            logits = model.predict(params.predictor, z)
            return jnp.mean(cross_entropy(logits, y.numpy())), (logits, after)

        return jax.grad(loss, has_aux=True)(params)

    gradients, (logits, after) = run(params)
    return logits, {**gradients.extractor, **gradients.predictor}, after


def _theirs(module: nn.Module, x: torch.Tensor, y: torch.Tensor, train: bool) -> tuple:
    """The same by PyTorch, in float64."""
    module = module.double().train(train)
    logits = module(x.double() if x.is_floating_point() else x)
    functional.cross_entropy(logits, y).backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in module.named_parameters()}
    return logits.detach().numpy(), gradients, {name: buffer.numpy() for name, buffer in module.named_buffers()}


def _assert_close(ours: Any, theirs: np.ndarray, what: str, scale: float = 0.0, rounding: float = 2e-4) -> None:
    """Within float32's rounding, by the array's largest number, or by a thousandth of `scale` if that is more."""
    largest = max(np.abs(theirs).max(), scale / 1000)
    assert np.abs(np.asarray(ours) - theirs).max() <= rounding * largest, what


def _assert_like_torch(factory: Callable[[], nn.Module], sample: Any) -> None:
    model = fedgen.from_torch(_made(factory), sample=sample)
    torch.manual_seed(1)
    x, y = _batch(sample)
    for train in (False, True):
        logits, gradients, after = _ours(model, x, y, train)
        their_logits, their_gradients, buffers = _theirs(_made(factory), x, y, train)
        _assert_close(logits, their_logits, f"logits, train {train}")
        assert gradients.keys() == their_gradients.keys()
        scale = max(np.abs(g).max() for g in their_gradients.values())
        for name, gradient in gradients.items():
            _assert_close(gradient, their_gradients[name], f"gradient of {name}, train {train}", scale)
        assert set(after) == {name for name in buffers if "running" in name}
        for name, statistic in after.items():
            _assert_close(statistic, buffers[name], f"{name}, train {train}", rounding=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_gradients_and_statistics_are_torchs(name: str) -> None:
    _assert_like_torch(*NETWORKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_networks_are_torchs(name: str) -> None:
    _assert_like_torch(*FULL_SIZE[name])
