"""The network of a site that works with Flax: an ordinary classifier of images, in the site's folder."""

import flax.linen as nn
import jax


class Network(nn.Module):
    """All but the last layer is this site's extractor; the last one stands for the predictor that all sites share."""

    latent: int
    classes: int

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        x = nn.relu(nn.GroupNorm(4)(nn.Conv(8, (3, 3), strides=2)(x)))
        x = nn.relu(nn.Dense(self.latent)(x.reshape(len(x), -1)))
        return nn.Dense(self.classes)(nn.Dropout(0.1, deterministic=not train)(x))


def build(sample: tuple[int, ...], classes: int, *, latent: int) -> nn.Module:
    """The module as it is; `fedgen.from_flax` would say more exactly where its predictor begins."""
    return Network(latent, classes)
