"""A network of two layers and a BatchNorm, small enough to be trained again by PyTorch, and a round of a server."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn

from fedgen.core.contract import Array, Model, Params, Round, Task, Tree
from fedgen.models import layers

SAMPLE, LATENT, CLASSES = 4, 5, 3
KEY = jax.random.key(7)


def _init(key: Array) -> tuple[Params, Tree]:
    first, second = jax.random.split(key)
    norm, statistics = layers.batch_norm_init(LATENT)
    # No bias before the BatchNorm, which would take it away: its gradient is 0, and with Adam rounding decides.
    weight = layers.linear_init(first, SAMPLE, LATENT)["weight"]
    return Params({"weight": weight, "norm": norm}, layers.linear_init(second, LATENT, CLASSES)), statistics


def _extract(extractor: Tree, statistics: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
    h, statistics = layers.batch_norm(extractor["norm"], statistics, x @ extractor["weight"], train, channel=1)
    return jax.nn.relu(h), statistics


MODEL = Model(_init, _extract, layers.linear)
TASK = Task(MODEL, CLASSES, jax.ShapeDtypeStruct((SAMPLE,), jnp.float32), lambda x: x, proxy_samples=1)


def some_model(seed: int) -> tuple[Params, Tree]:
    """A model with statistics of its own, as after some training."""
    rng = np.random.default_rng(seed)
    params, _ = MODEL.init(jax.random.key(seed))
    params = jax.tree.map(lambda a: a + jnp.asarray(rng.normal(0, 0.3, a.shape), a.dtype), params)
    mean, variance = rng.normal(0, 1, LATENT), rng.uniform(0.3, 3, LATENT)
    return params, {"mean": jnp.asarray(mean, jnp.float32), "variance": jnp.asarray(variance, jnp.float32)}


def round_of(number: int, users: int, proxy: Callable[[Array, int], Array] | None = None) -> Round:
    """A round of a server that has this proxy, or none."""

    def none(key: Array, samples: int) -> Array:
        raise AssertionError("there are no proxy samples")

    return Round(jnp.int32(number), jnp.arange(users), jax.random.fold_in(KEY, number), proxy or none)


def tensor(a: Any) -> torch.Tensor:
    return torch.tensor(np.array(a))


def torch_linear(weight: Any, bias: Any = None) -> nn.Linear:
    """PyTorch's layer with these weights [in, out]."""
    made = nn.Linear(*weight.shape, bias=bias is not None)
    made.weight.data = tensor(weight).T.contiguous()
    if bias is not None:
        made.bias.data = tensor(bias)
    return made


def torch_norm(params: Tree, statistics: Tree) -> nn.BatchNorm1d:
    made = nn.BatchNorm1d(len(params["scale"]))
    made.weight.data, made.bias.data = tensor(params["scale"]), tensor(params["shift"])
    made.running_mean.data, made.running_var.data = tensor(statistics["mean"]), tensor(statistics["variance"])
    return made


def torch_model(params: Params, statistics: Tree) -> nn.Sequential:
    """The same network in PyTorch."""
    extractor, predictor = params
    return nn.Sequential(
        torch_linear(extractor["weight"]), torch_norm(extractor["norm"], statistics), nn.ReLU(),
        torch_linear(predictor["weight"], predictor["bias"]),
    )  # fmt: skip


def assert_like(ours: Any, theirs: torch.Tensor, **tolerance: float) -> None:
    np.testing.assert_allclose(ours, theirs.detach().numpy(), **{"rtol": 1e-3, "atol": 1e-4, **tolerance})
