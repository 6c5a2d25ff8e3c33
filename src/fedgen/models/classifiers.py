"""The paper's classifiers (supplement, table of network architectures); the last layer is the predictor."""

import math
from collections.abc import Sequence

import jax

from fedgen.core.contract import Array, Count, Model, Params, Tree
from fedgen.errors import FedgenError
from fedgen.models import dispatch, layers


def cnn(
    sample: Sequence[int],
    classes: int,
    *,
    channels: Sequence[Count] | None = None,
    pool: bool | None = None,
    latent: Count = 32,
) -> Model:
    """The paper's CNN: 3x3 stride-2 convolutions with BatchNorm, then a linear layer to the latent vector.

    Images smaller than 64x64 get the MNIST network (6 and 16 channels), larger ones the CelebA network
    (16, 32 and 64, each followed by a 2x2 max pool), unless `channels` and `pool` say otherwise.
    """
    if len(sample) not in (2, 3) or min(sample[:2]) < 8:
        raise FedgenError(f"model 'cnn' needs images of at least 8x8, not samples of shape {tuple(sample)}; use 'mlp'")
    height, width, inputs = (*sample, 1)[:3]
    large = min(height, width) >= 64
    widths = tuple(channels) if channels else ((16, 32, 64) if large else (6, 16))
    pooling = large if pool is None else pool
    for _ in widths:
        height, width = (height + 1) // 2, (width + 1) // 2
        if pooling:
            height, width = height // 2, width // 2
    if min(height, width) < 1:
        raise FedgenError(
            f"model 'cnn' with {len(widths)} {'pooled ' if pooling else ''}convolutions leaves nothing of"
            f" {sample[0]}x{sample[1]} images; use fewer channels"
        )

    def init(key: Array) -> tuple[Params, Tree]:
        keys = jax.random.split(key, len(widths) + 2)
        extractor: dict[str, Tree] = {}
        statistics: dict[str, Tree] = {}
        for i, (fan_in, fan_out) in enumerate(zip((inputs, *widths), widths, strict=False)):
            extractor[f"conv{i}"] = layers.conv_init(keys[i], fan_in, fan_out)
            extractor[f"norm{i}"], statistics[f"norm{i}"] = layers.batch_norm_init(fan_out)
        extractor["linear"] = layers.linear_init(keys[-2], widths[-1] * height * width, latent)
        return Params(extractor, layers.linear_init(keys[-1], latent, classes)), statistics

    def extract(params: Tree, statistics: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
        x = layers.measurements(x, params["linear"]["weight"])
        h = x.reshape(-1, *sample[:2], inputs).transpose(3, 1, 2, 0)  # samples innermost, see layers
        updated: dict[str, Tree] = {}
        numbers = range(len(widths))
        for group in [[i] for i in numbers] if pooling else [numbers]:  # what stands between two pools
            convs, norms = [f"conv{i}" for i in group], [f"norm{i}" for i in group]
            layer = [params[name] for name in convs], [params[name] for name in norms], [statistics[n] for n in norms]
            h, new = dispatch.conv_norm_relu(*layer, h, train)
            updated |= dict(zip(norms, new, strict=True))
            if pooling:
                h = layers.max_pool(h)
        return dispatch.linear_of_columns(params["linear"], h.reshape(-1, h.shape[-1]), train), updated

    variances = layers.variances(f"norm{i}" for i in range(len(widths)))
    return Model(init, extract, layers.linear, never_negative=variances)


def mlp(sample: Sequence[int], classes: int, *, hidden: Count = 200, latent: Count = 32) -> Model:
    """The paper's MLP for MNIST: a hidden layer of 200 with ReLU, then a linear layer to the latent vector."""
    inputs = math.prod(sample)

    def init(key: Array) -> tuple[Params, Tree]:
        first, second, last = jax.random.split(key, 3)
        extractor = {
            "hidden": layers.linear_init(first, inputs, hidden),
            "latent": layers.linear_init(second, hidden, latent),
        }
        return Params(extractor, layers.linear_init(last, latent, classes)), ()

    def extract(params: Tree, statistics: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
        x = layers.measurements(x, params["hidden"]["weight"])
        h = jax.nn.relu(layers.linear(params["hidden"], x.reshape(x.shape[0], inputs)))
        return layers.linear(params["latent"], h), statistics

    return Model(init, extract, layers.linear)
