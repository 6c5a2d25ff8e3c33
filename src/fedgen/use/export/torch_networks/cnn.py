"""The paper's CNN in PyTorch: 3x3 stride-2 convolutions with BatchNorm, then a linear layer to the latent vector."""

import torch
from torch import nn


class Network(nn.Module):
    """Images [sample, channel, height, width] -> logits; bytes are normalised here, floats are taken as they are."""

    def __init__(self, inputs, channels, pool, flat, latent, classes, scale, white):
        super().__init__()
        layers = []
        for fan_in, fan_out in zip((inputs, *channels), channels, strict=False):
            layers += [nn.Conv2d(fan_in, fan_out, 3, stride=2, padding=1), nn.BatchNorm2d(fan_out), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pool else []
        self.extractor = nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, latent))
        self.predictor = nn.Linear(latent, classes)
        self.scale, self.white = scale, white

    def forward(self, x):
        if not torch.is_floating_point(x):
            x = x.float() / self.white
            x = (x - 0.5) / 0.5 if self.scale == "signed" else x
        return self.predictor(self.extractor(x))
