"""A plain PyTorch loop over the cohort, in this process or divided over persistent worker processes."""

import itertools
import multiprocessing
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from fedgen.bench.peers.protocol import Driver
from fedgen.bench.peers.torch_training import Samples, network, train
from fedgen.bench.peers.workload import read_workload


class Trainer:
    """Trains users one after the other and adds up what FedAvg averages: all floating-point entries of the model."""

    def __init__(self, path: str, device: str) -> None:
        torch.set_num_threads(1)
        workload = read_workload(path)
        self.samples = Samples(workload, device)
        self.model = network(workload).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=float(workload.lr))
        # The entries that are averaged; writing into these tensors is how a model is received.
        self.entries = [value for value in self.model.state_dict().values() if value.is_floating_point()]

    def first(self) -> list[Tensor]:
        """The first global model."""
        return [entry.clone() for entry in self.entries]

    def users(self, server: list[Tensor], round: int, users: range) -> tuple[list[Tensor], float]:
        """The sum of these users' models, and of their losses."""
        total = [torch.zeros_like(entry) for entry in self.entries]
        losses = []
        for user in users:
            with torch.no_grad():
                torch._foreach_copy_(self.entries, server)
            losses.append(train(self.model, self.optimizer, self.samples, self.samples.of(round, user)))
            with torch.no_grad():
                torch._foreach_add_(total, self.entries)
        return total, float(torch.stack(losses).sum())


def serve(connection: Connection, path: str, device: str) -> None:
    """A worker process: trains the users of each request until an empty one comes."""
    trainer = Trainer(path, device)
    connection.send(None)
    while (order := connection.recv()) is not None:
        server, round, users = order
        total, loss = trainer.users([torch.from_numpy(a).to(device) for a in server], round, users)
        connection.send(([a.cpu().numpy() for a in total], loss))


def main(path: str, workers_wanted: str, device: str = "cpu") -> None:
    """Run rounds as the benchmark requests them."""
    processes = int(workers_wanted)
    driver = Driver()
    trainer = Trainer(path, device)
    active = trainer.samples.rows.shape[1]
    bounds = [active * i // processes for i in range(processes + 1)]
    shares = [range(a, b) for a, b in itertools.pairwise(bounds)]
    workers: list[Connection] = []
    context = multiprocessing.get_context("spawn")
    if processes > 1:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            context.Process(target=serve, args=(theirs, path, device), daemon=True).start()
            ours.recv()
            workers.append(ours)
    server, round = trainer.first(), 0
    while driver.begin():
        if workers:
            sent = [a.cpu().numpy() for a in server]
            for worker, users in zip(workers, shares, strict=True):
                worker.send((sent, round, users))
            answers = [worker.recv() for worker in workers]
            parts = [[torch.from_numpy(a) for a in total] for total, _ in answers]
            loss = sum(loss for _, loss in answers)
            server = [sum(entries[1:], start=entries[0]) / active for entries in zip(*parts, strict=True)]
        else:
            total, loss = trainer.users(server, round, shares[0])
            server = [entry / active for entry in total]
        if device != "cpu":
            torch.cuda.synchronize()
        round += 1
        driver.end(loss / active)
    for worker in workers:
        worker.send(None)
