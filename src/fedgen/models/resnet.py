"""A residual network (He et al. 2016) for small images, larger than the paper's networks: 2.8 million parameters."""

from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Count, Model, Params, Tree
from fedgen.errors import FedgenError
from fedgen.models import layers


def resnet(
    sample: Sequence[int],
    classes: int,
    *,
    widths: Sequence[Count] = (64, 128, 256),
    blocks: Count = 2,
    latent: Count = 32,
) -> Model:
    """A residual network: stages of 3x3 convolutions with BatchNorm and shortcuts, for CIFAR-size images.

    Each stage after the first halves the image and has its own width; each block is two convolutions.
    """
    if len(sample) not in (2, 3) or min(sample[:2]) < 2 ** len(widths) or not widths:
        raise FedgenError(
            f"model 'resnet' with {len(widths)} stages needs images of at least {2 ** len(widths)} pixels a side,"
            f" not samples of shape {tuple(sample)}"
        )
    inputs = (*sample, 1)[2]
    # name of a block -> (channels in, channels out, stride)
    shapes = {
        f"stage{stage}block{block}": (fan_in if block == 0 else fan_out, fan_out, 2 if stage and block == 0 else 1)
        for stage, (fan_in, fan_out) in enumerate(pairwise((widths[0], *widths)))
        for block in range(blocks)
    }

    def init(key: Array) -> tuple[Params, Tree]:
        keys = iter(jax.random.split(key, 3 + 3 * len(shapes)))
        extractor: dict[str, Tree] = {"stem": layers.conv_init(next(keys), inputs, widths[0])}
        statistics: dict[str, Tree] = {}
        extractor["stem-norm"], statistics["stem-norm"] = layers.batch_norm_init(widths[0])
        for name, (fan_in, fan_out, stride) in shapes.items():
            for half, channels in (("a", fan_in), ("b", fan_out)):
                extractor[f"{name}{half}"] = layers.conv_init(next(keys), channels, fan_out)
                norm = f"{name}{half}-norm"
                extractor[norm], statistics[norm] = layers.batch_norm_init(fan_out)
            shortcut = next(keys)
            if stride == 2:
                extractor[f"{name}-shortcut"] = layers.linear_init(shortcut, fan_in, fan_out)
        extractor["linear"] = layers.linear_init(next(keys), widths[-1], latent)
        return Params(extractor, layers.linear_init(next(keys), latent, classes)), statistics

    def extract(params: Tree, statistics: Tree, x: Array, train: bool) -> tuple[Array, Tree]:
        updated = {}

        def convolved(name: str, norm: str, h: Array, stride: int) -> Array:
            conv = params[name]
            weight = conv["weight"].reshape(-1, 3, 3, len(h))
            product = jax.lax.conv_general_dilated(
                h, weight, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=("CHWN", "OHWI", "CHWN")
            )
            h, updated[norm] = layers.batch_norm(params[norm], statistics[norm], product, train, bias=conv["bias"])
            return h

        x = layers.measurements(x, params["linear"]["weight"])
        h = x.reshape(-1, *sample[:2], inputs).transpose(3, 1, 2, 0)  # samples innermost, see layers
        h = jax.nn.relu(convolved("stem", "stem-norm", h, 1))
        for name, (_, _, stride) in shapes.items():
            inner = jax.nn.relu(convolved(f"{name}a", f"{name}a-norm", h, stride))
            if stride == 2:
                half = h[:, ::2, ::2]
                shortcut = params[f"{name}-shortcut"]
                h = jnp.tensordot(shortcut["weight"].T, half, 1) + shortcut["bias"][:, None, None, None]
            h = jax.nn.relu(h + convolved(f"{name}b", f"{name}b-norm", inner, 1))
        return layers.linear(params["linear"], jnp.mean(h, axis=(1, 2)).T), updated

    norms = ["stem-norm", *(f"{name}{half}-norm" for name in shapes for half in "ab")]
    return Model(init, extract, layers.linear, never_negative=layers.variances(norms))
