"""Well-known networks as ordinary PyTorch modules, of any width."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class LeNet(nn.Module):
    """LeCun et al. 1998, with its average pooling and tanh."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.avg_pool2d(torch.tanh(self.conv1(x)), 2)
        x = functional.avg_pool2d(torch.tanh(self.conv2(x)), 2)
        return self.fc3(torch.tanh(self.fc2(torch.tanh(self.fc1(torch.flatten(x, 1))))))


class VGG11(nn.Module):
    """Simonyan and Zisserman 2015, configuration A; `width` is 64 there."""

    def __init__(self, width: int = 64, hidden: int = 4096, dropout: float = 0.5, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for step in (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool"):
            if step == "pool":
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(channels, int(step) * width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = int(step) * width
        self.features, self.pool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 4, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(dropout), nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.pool(self.features(x)), 1))


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), norm(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), norm(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        inner += x if self.downsample is None else self.downsample(x)
        return functional.relu(inner)


class ResNet(nn.Module):
    """He et al. 2016; two blocks in each of four stages, and 64 channels in the first, are ResNet-18."""

    def __init__(
        self, width: int = 64, stages: int = 4, blocks: int = 2, norm: Callable[[int], nn.Module] = nn.BatchNorm2d,
        classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv1, self.bn1, self.maxpool = (
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            norm(width),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, channels = [], width
        for stage in range(stages):
            for block in range(blocks):
                outputs = width * 2**stage
                layers.append(Block(channels, outputs, 2 if stage and not block else 1, norm))
                channels = outputs
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.maxpool(functional.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, 1), 1))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        widen = [nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6(inplace=True)]
        self.conv = nn.Sequential(
            *(widen if expansion != 1 else []),
            nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False), nn.BatchNorm2d(inner),
            nn.ReLU6(inplace=True), nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """Sandler et al. 2018: (expansion, channels, blocks, stride) of each stage."""

    STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))

    def __init__(
        self, stages: tuple[tuple[int, int, int, int], ...] = STAGES, first: int = 32, last: int = 1280,
        dropout: float = 0.2, classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        layers = [nn.Conv2d(3, first, 3, 2, 1, bias=False), nn.BatchNorm2d(first), nn.ReLU6(inplace=True)]
        channels = first
        for expansion, outputs, blocks, stride in stages:
            for block in range(blocks):
                layers.append(InvertedResidual(channels, outputs, 1 if block else stride, expansion))
                channels = outputs
        layers += [nn.Conv2d(channels, last, 1, bias=False), nn.BatchNorm2d(last), nn.ReLU6(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).mean([2, 3]))


class ViT(nn.Module):
    """Dosovitskiy et al. 2021: patches, a class token, positions, encoder blocks with GELU."""

    def __init__(
        self, size: int = 16, patch: int = 4, width: int = 16, depth: int = 2, heads: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width) / 10)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth + 1))
        self.attention = nn.ModuleList(nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(depth))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        for i, (attention, mlp) in enumerate(zip(self.attention, self.mlps, strict=True)):
            normed = self.norms[2 * i](x)
            x = x + attention(normed, normed, normed, need_weights=False)[0]
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x)[:, 0])


class MLP(nn.Module):
    """With dropout after each hidden layer."""

    def __init__(self, dropout: float = 0.5, hidden: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc = nn.Linear(20, hidden), nn.Linear(hidden, hidden), nn.Linear(hidden, classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.dropout(functional.relu(self.fc2(self.dropout(functional.relu(self.fc1(x)))))))


class Text(nn.Module):
    """Embeddings, an LSTM or GRU in both directions, and the last outputs."""

    def __init__(
        self, kind: type[nn.RNNBase], layers: int = 1, words: int = 30, width: int = 6, classes: int = 10
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        self.rnn = kind(width, 5, num_layers=layers, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(10, classes)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.rnn(self.embedding(words))
        return self.fc(outputs[:, -1])
