"""A residual network in PyTorch: stages of 3x3 convolutions with BatchNorm and shortcuts."""

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions beside a shortcut, which halves the image where they do."""

    def __init__(self, fan_in, fan_out, stride):
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1), nn.BatchNorm2d(fan_out))
        self.b = nn.Sequential(nn.Conv2d(fan_out, fan_out, 3, padding=1), nn.BatchNorm2d(fan_out))
        self.shortcut = nn.Conv2d(fan_in, fan_out, 1, stride=2) if stride == 2 else nn.Identity()

    def forward(self, x):
        return torch.relu(self.shortcut(x) + self.b(torch.relu(self.a(x))))


class Network(nn.Module):
    """Images [sample, channel, height, width] -> logits; bytes are normalised here, floats are taken as they are."""

    def __init__(self, inputs, widths, blocks, latent, classes, scale, white):
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(inputs, widths[0], 3, padding=1), nn.BatchNorm2d(widths[0]), nn.ReLU())
        layers, fan_in = [], widths[0]
        for stage, fan_out in enumerate(widths):
            for block in range(blocks):
                layers.append(Block(fan_in, fan_out, 2 if stage and block == 0 else 1))
                fan_in = fan_out
        self.extractor = nn.Sequential(stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(fan_in, latent))
        self.predictor = nn.Linear(latent, classes)
        self.scale, self.white = scale, white

    def forward(self, x):
        if not torch.is_floating_point(x):
            x = x.float() / self.white
            x = (x - 0.5) / 0.5 if self.scale == "signed" else x
        return self.predictor(self.extractor(x))
