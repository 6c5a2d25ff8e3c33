"""The same FedAvg in Flower's own simulation: its strategy, its messages, one Ray actor for each core."""

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedgen.bench.peers.protocol import Driver
from fedgen.bench.peers.torch_training import Samples, network, train
from fedgen.bench.peers.workload import read_workload

ROUNDS = 100_000  # more than are ever asked for


@cache
def _actor(path: str) -> tuple[Samples, torch.nn.Module, torch.optim.Optimizer]:
    """What an actor needs, made once in its process."""
    torch.set_num_threads(1)
    workload = read_workload(path)
    model = network(workload)
    return Samples(workload), model, torch.optim.SGD(model.parameters(), lr=float(workload.lr))


def client_app(path: str) -> ClientApp:
    """A client that trains as the user that the message names."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def _train(message: Message, context: Context) -> Message:
        samples, model, optimizer = _actor(path)
        config = message.content["config"]
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        rows = samples.of(config["server-round"] - 1, config["user"])
        loss = train(model, optimizer, samples, rows)
        metrics = MetricRecord({"loss": float(loss), "num-examples": 1})  # weight 1: the plain mean
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


class Strategy(FedAvg):
    """Flower's FedAvg, whose nodes train as the users of the workload's cohort, and which waits between rounds."""

    def __init__(self, driver: Driver, active: int, users: int) -> None:
        super().__init__(fraction_train=active / users, fraction_evaluate=0.0, min_available_nodes=users)
        self._driver = driver

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """As in FedAvg, and each message says which user of the cohort its node is."""
        if not self._driver.begin():
            os._exit(0)  # nothing here is worth keeping; the actors end with their parent
        messages = list(super().configure_train(server_round, arrays, config, grid))
        messages = []
        for user, message in enumerate(messages):
            own = ConfigRecord({"server-round": server_round, "user": user})
            content = RecordDict({"arrays": arrays, "config": own})
            node = message.metadata.dst_node_id
            messages.append(Message(content=content, message_type=MessageType.TRAIN, dst_node_id=node))
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        """As in FedAvg."""
        arrays, metrics = super().aggregate_train(server_round, replies)
        if metrics is None:
            raise RuntimeError("no client answered")
        self._driver.end(float(metrics["loss"]))
        return arrays, metrics


def main(path: str, cores: str) -> None:
    """Run rounds as the benchmark requests them."""
    driver = Driver()
    workload = read_workload(path)
    active = workload.rows.shape[1]
    users = 2 * active
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def _serve(grid: Grid, context: Context) -> None:
        initial = ArrayRecord(network(workload).state_dict())
        Strategy(driver, active, users).start(grid, initial, num_rounds=ROUNDS)

    run_simulation(
        server,
        client_app(path),
        num_supernodes=users,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": int(cores), "include_dashboard": False, "log_to_driver": False},
        },
    )
