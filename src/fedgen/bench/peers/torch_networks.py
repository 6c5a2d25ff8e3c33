"""The networks of the benchmark as PyTorch modules; `fedgen.from_torch` brings the same ones into the simulator."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional


def paper_cnn() -> nn.Sequential:
    """The paper's CNN for MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(784, 32), nn.Linear(32, 10),
    )  # fmt: skip


def pfl_cnn() -> nn.Sequential:
    """The CNN of pfl's CIFAR-10 benchmark: 1.6 million parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[sample, channel, row, column], as everywhere."""
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.shortcut(x) + self.second_norm(self.second(inner)))


def residual(widths: Sequence[int] = (64, 128, 256)) -> nn.Sequential:
    """A residual network for images of 32x32: 2.8 million parameters; with a fourth stage of 512 it is ResNet-18."""
    blocks: list[nn.Module] = []
    inputs = widths[0]
    for stage, outputs in enumerate(widths):
        blocks += [Block(inputs, outputs, 2 if stage else 1), Block(outputs, outputs, 1)]
        inputs = outputs
    stem = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


def resnet18() -> nn.Sequential:
    """ResNet-18 for images of 32x32: 11 million parameters."""
    return residual((64, 128, 256, 512))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "paper-cnn": paper_cnn,
    "pfl-cnn": pfl_cnn,
    "residual": residual,
    "resnet18": resnet18,
}
