"""The network of a site that works with PyTorch: an ordinary classifier of images, in the site's folder."""

from torch import nn


def build(sample: tuple[int, ...], classes: int, *, latent: int) -> nn.Module:
    """All but the last layer is this site's extractor; the last one stands for the predictor that all sites share."""
    height, width, channels = sample
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * (height // 2) * (width // 2), latent),
        nn.ReLU(),
        nn.Linear(latent, classes),
    )
