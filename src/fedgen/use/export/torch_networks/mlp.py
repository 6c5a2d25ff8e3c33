"""The paper's MLP in PyTorch: a hidden layer with ReLU, then a linear layer to the latent vector."""

import torch
from torch import nn


class Network(nn.Module):
    """Samples [sample, ...], images as [sample, channel, height, width] -> logits.

    Bytes are normalised here, floats are taken as they are.
    """

    def __init__(self, inputs, hidden, latent, classes, scale, white):
        super().__init__()
        self.extractor = nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.predictor = nn.Linear(latent, classes)
        self.scale, self.white = scale, white

    def forward(self, x):
        if not torch.is_floating_point(x):
            x = x.float() / self.white
            x = (x - 0.5) / 0.5 if self.scale == "signed" else x
        return self.predictor(self.extractor(x))
