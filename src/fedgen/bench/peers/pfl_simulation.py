"""The same FedAvg in Apple's pfl: its algorithm, its simulated backend, its PyTorch model, in one process."""

from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from fedgen.bench.peers.protocol import Driver
from fedgen.bench.peers.torch_training import Samples, network
from fedgen.bench.peers.workload import read_workload

ROUNDS = 100_000  # more than are ever asked for


class Network(nn.Module):
    """The network with the loss that pfl asks for, which is also remembered."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.losses: list[Tensor] = []

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a mini-batch."""
        self.train()
        loss = nn.functional.cross_entropy(self.layers(x), y)
        self.losses.append(loss.detach().clone())
        return loss

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Nothing: only training is measured."""
        return {}


class Turns(TrainingProcessCallback):
    """Waits between rounds."""

    def __init__(self, driver: Driver, network: Network) -> None:
        self._driver, self._network = driver, network

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Before the first round."""
        self._driver.begin()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After each round."""
        self._driver.end(float(torch.stack(self._network.losses).mean()))
        self._network.losses.clear()
        return not self._driver.begin(), Metrics()


def main(path: str, device: str = "cpu") -> None:
    """Run rounds as the benchmark requests them."""
    driver = Driver()
    torch.set_num_threads(1)
    workload = read_workload(path)
    samples = Samples(workload, device)
    active, _, batch = workload.rows.shape[1:]
    drawn = 0

    def next_user() -> int:
        nonlocal drawn
        drawn += 1
        return drawn - 1

    def dataset(number: int) -> Dataset:
        rows = samples.of(number // active, number % active).reshape(-1)  # one epoch over it in order is the T batches
        return Dataset(raw_data=(samples.x[rows], samples.y[rows]), user_id=str(number))

    layers = Network(network(workload)).to(device)
    model = PyTorchModel(layers, torch.optim.SGD, torch.optim.SGD(layers.parameters(), lr=1.0))
    data = FederatedDataset(dataset, next_user)
    FederatedAveraging().run(
        # val_cohort_size 0 and no evaluation of users: training alone
        NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=ROUNDS, train_cohort_size=active, val_cohort_size=0
        ),
        SimulatedBackend(data, data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=float(workload.lr), local_batch_size=batch),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Turns(driver, layers)],
    )
