"""FedAvg (McMahan et al. 2017): users train the shared model, the server averages what they send.

Sharing is a choice of subtree, so this file also has partial sharing (FedGen's Algorithm 2 and LG-FedAvg: only the
predictor travels; FedPer: only the extractor) and no sharing at all; the other algorithms wrap what is built here.
"""

from typing import NamedTuple

from fedgen.core import contract as fl
from fedgen.core.aggregate import bounded, bounds_users, clipped, combine, not_against
from fedgen.core.losses import infer, supervised
from fedgen.core.trees import join, shares_extractor, split


class Parts(NamedTuple):
    """Parts of a model: those that the server averages, those it sends, or those that a user keeps."""

    params: fl.Params
    statistics: fl.Tree  # of BatchNorm; None where they are elsewhere


class Upload(NamedTuple):
    """The trained parts; `samples` only where the average is weighted by it."""

    params: fl.Params
    statistics: fl.Tree
    samples: fl.Array | None


def fedavg(task: fl.Task, federation: fl.Federation) -> fl.Algorithm:
    """Average the users' models; the baseline of all the others."""
    return averaging(task, federation, download=federation.share, upload=federation.share)


def taken(server: Parts, uploads: Upload, federation: fl.Federation) -> Parts:
    """The users' models and statistics [user, ...], with updates of bounded length that go not far against others."""
    # Statistics have a separate bound: their changes may be far longer than those of parameters.
    sent = clipped(Parts(uploads.params, uploads.statistics), server, federation.clip)
    short = Parts(*(bounded(part, start, federation) for part, start in zip(sent, server, strict=True)))
    return short._replace(params=not_against(short.params, server.params, federation))


def averaging(task: fl.Task, federation: fl.Federation, download: fl.Share, upload: fl.Share) -> fl.Algorithm:
    """FedAvg with a choice of what travels in each direction."""
    model = task.model
    # BatchNorm statistics describe the extractor's features and travel with it. Where they are `local`, a
    # user continues with its own; the server still averages the uploaded ones, for its own predictions.
    receives_statistics = shares_extractor(download) and federation.statistics == "averaged"

    def server_init(key: fl.Array) -> Parts:
        params, statistics = model.init(key)
        return Parts(split(params, upload)[0], statistics if shares_extractor(upload) else None)

    def client_init(key: fl.Array) -> Parts:
        params, statistics = model.init(key)
        return Parts(split(params, download)[1], None if receives_statistics else statistics)

    def broadcast(server: Parts, round: fl.Array) -> Parts:
        return Parts(split(server.params, download)[0], server.statistics if receives_statistics else None)

    def model_of(received: Parts, client: Parts) -> tuple[fl.Params, fl.Tree]:
        statistics = received.statistics if receives_statistics else client.statistics
        return join(received.params, client.params), statistics

    def local_loss(params: fl.Params, statistics: fl.Tree, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        return supervised(model, params, statistics, batch)

    def local_finish(params: fl.Params, statistics: fl.Tree, local: fl.Local) -> tuple[Upload, Parts]:
        weight = local.samples if federation.weighting == "samples" else None
        sent = Upload(split(params, upload)[0], statistics if shares_extractor(upload) else None, weight)
        return sent, Parts(split(params, download)[1], None if receives_statistics else statistics)

    def server_update(server: Parts, uploads: Upload, round: fl.Round) -> tuple[Parts, fl.Metrics]:
        return combine(taken(server, uploads, federation), uploads.samples, federation), {}

    return fl.Algorithm(
        server_init,
        client_init,
        broadcast,
        lambda local: model_of(local.received, local.client),
        local_loss,
        local_finish,
        server_update,
        (lambda server, x: infer(model, server.params, server.statistics, x)) if download == "all" else None,
        lambda received, client, x: infer(model, *model_of(received, client), x),
        personal=download != "all" or not receives_statistics,
        needs=fl.Needs(individual_uploads=bounds_users(federation)),
        check_upload=lambda sent: {} if sent.samples is None else {"it claims to have no samples": sent.samples < 1},
    )
