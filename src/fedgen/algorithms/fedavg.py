"""FedAvg (McMahan et al. 2017): users train the shared model, the server averages what they send.

Sharing is a choice of subtree, so this file also carries partial sharing (FedGen's Algorithm 2, where
only the predictor travels) and no sharing at all; the other algorithms wrap what is built here.
"""

from typing import NamedTuple

import jax

from fedgen.core.aggregate import bounded, combine
from fedgen.core.contract import Algorithm, Array, Batch, Clock, Federation, Params, Round, Share, Task, Tree
from fedgen.core.losses import infer, supervised
from fedgen.core.privacy import is_private
from fedgen.core.trees import join, split
from fedgen.errors import FedgenError


class Server(NamedTuple):
    """What the server averages: the uploaded parts of the model."""

    params: Params
    statistics: Tree  # None where the extractor is not uploaded


class Broadcast(NamedTuple):
    """The shared parts, and the averaged BatchNorm statistics unless these stay with the users."""

    params: Params
    statistics: Tree


class Client(NamedTuple):
    """What a user keeps between rounds: the parts that it does not receive."""

    params: Params
    statistics: Tree


class Upload(NamedTuple):
    """The trained parts; `samples` only where the average is weighted by it."""

    params: Params
    statistics: Tree
    samples: Array | None


def fedavg(task: Task, federation: Federation) -> Algorithm:
    """Average the users' models; the baseline of all the others."""
    return averaging(task, federation, download=federation.share, upload=federation.share)


def taken(server: Server, uploads: Upload, federation: Federation) -> tuple[Params, Tree]:
    """The users' models and statistics [user, ...] as the server takes them: not too far from its own."""
    return bounded((uploads.params, uploads.statistics), (server.params, server.statistics), federation.clip)


def averaging(task: Task, federation: Federation, download: Share, upload: Share) -> Algorithm:
    """FedAvg with a choice of what travels in each direction."""
    model = task.model
    if is_private(federation) and upload == "all" and jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0))[1]):
        raise FedgenError(
            "running statistics with noise are no statistics (a variance can become negative), so differential privacy"
            " needs a model without BatchNorm (--model mlp) or --share predictor"
        )
    # BatchNorm statistics describe the extractor's features and travel with it. Where they are `local`, a
    # user goes on from its own ones; the server still averages what it is sent, for its own predictions.
    receives_statistics = download == "all" and federation.statistics == "averaged"

    def server_init(key: Array) -> Server:
        params, statistics = model.init(key)
        return Server(split(params, upload)[0], statistics if upload == "all" else None)

    def client_init(key: Array) -> Client:
        params, statistics = model.init(key)
        return Client(split(params, download)[1], None if receives_statistics else statistics)

    def broadcast(server: Server, round: Array) -> Broadcast:
        return Broadcast(split(server.params, download)[0], server.statistics if receives_statistics else None)

    def local_start(received: Broadcast, client: Client) -> tuple[Params, Tree]:
        statistics = received.statistics if receives_statistics else client.statistics
        return join(received.params, client.params), statistics

    def local_loss(
        params: Params, statistics: Tree, batch: Batch, received: Broadcast, client: Client, clock: Clock
    ) -> tuple[Array, Tree]:
        loss, forward = supervised(model, params, statistics, batch)
        return loss, forward.statistics

    def local_finish(
        params: Params, statistics: Tree, received: Broadcast, client: Client, samples: Array
    ) -> tuple[Upload, Client]:
        sent = Upload(
            split(params, upload)[0],
            statistics if upload == "all" else None,
            samples if federation.weighting == "samples" else None,
        )
        return sent, Client(split(params, download)[1], None if receives_statistics else statistics)

    def server_update(server: Server, uploads: Upload, round: Round) -> tuple[Server, dict[str, Array]]:
        params, statistics = taken(server, uploads, federation)
        return Server(*combine((params, statistics), uploads.samples, federation)), {}

    def check_upload(sent: Upload) -> dict[str, Array]:
        return {} if sent.samples is None else {"it claims to have no samples": sent.samples < 1}

    def predict_global(server: Server, x: Array) -> Array:
        return infer(model, server.params, server.statistics, x)

    def predict_local(received: Broadcast, client: Client, x: Array) -> Array:
        params, statistics = local_start(received, client)
        return infer(model, params, statistics, x)

    return Algorithm(
        server_init,
        client_init,
        broadcast,
        local_start,
        local_loss,
        local_finish,
        server_update,
        predict_global if download == "all" else None,
        None if receives_statistics else predict_local,
        check_upload=check_upload,
        predict_received=predict_local,
    )
