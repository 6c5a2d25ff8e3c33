"""What the PyTorch peers share: the network, and a user's training as one would write it with care."""

import torch
from torch import Tensor, nn

from fedgen.bench.peers.torch_networks import NETWORKS
from fedgen.bench.peers.workload import Workload


class Samples:
    """The training set, normalised once and kept as tensors, so that a batch is one indexing operation."""

    def __init__(self, workload: Workload, device: str = "cpu") -> None:
        x = torch.from_numpy(workload.x).to(device).permute(0, 3, 1, 2).contiguous()
        self.x = (x.float() / 255 - 0.5) / 0.5
        self.y = torch.from_numpy(workload.y).to(device)
        self.rows = torch.from_numpy(workload.rows).to(device)  # [round, user, step, sample]

    def of(self, round: int, user: int) -> Tensor:
        """The rows of a user's mini-batches in a round, [step, sample]; after the last round the first comes again."""
        return self.rows[round % len(self.rows), user]


def network(workload: Workload) -> nn.Module:
    """The workload's network, with its weights."""
    model = NETWORKS[workload.network]()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in workload.model.items()})
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples, rows: Tensor) -> Tensor:
    """One user's round: a step of SGD for each row of `rows`; gives the mean loss, still on the device."""
    model.train()
    total = torch.zeros((), device=samples.x.device)
    for row in rows:
        loss = nn.functional.cross_entropy(model(samples.x[row]), samples.y[row])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return total / len(rows)
