"""Ditto (Li et al. 2021): beside the shared model each user trains a personal one, held near the shared one.

The user's own model v_k minimises L_k(v) + (lam/2) ||v - theta_received||^2 on the same mini-batches, at a rate that
may differ. The shared model is FedAvg's; users predict with v_k, and that is what Ditto is judged by.
"""

from typing import NamedTuple

import optax

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.losses import infer, supervised
from fedgen.core.recipe import client_optimizer
from fedgen.core.trees import is_off, squared_distance


class Personal(NamedTuple):
    """A user's own model."""

    params: fl.Params
    statistics: fl.Tree


class Two(NamedTuple):
    """The trained parameters: the shared model's and the user's own."""

    shared: fl.Tree
    own: fl.Tree


def ditto(task: fl.Task, federation: fl.Federation, *, lam: fl.Scalar = 0.1, own_lr: fl.Scalar = 0.0) -> fl.Algorithm:
    """FedAvg, and a personal model for each user, held near the shared one; `own_lr` is its rate (0: lr)."""
    base, model = fedavg(task, federation), task.model

    def inner(local: fl.Local) -> fl.Local:
        return local._replace(client=local.client.base)

    def local_start(local: fl.Local) -> tuple[Two, With]:
        params, memo = base.local_start(inner(local))
        own: Personal = local.client.own
        return Two(params, own.params), With(memo, own.statistics)

    def local_loss(params: Two, memo: With, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        loss = base.local_loss(params.shared, memo.base, batch, inner(local), step)
        own = supervised(model, params.own, memo.own, batch)
        pairs = zip(params.own, local.received.params, strict=True)
        distance = sum(squared_distance(now, then) for now, then in pairs if then is not None)
        # Neither term has a gradient in the other's model, so that their sum trains both.
        return own._replace(value=loss.value + own.value + 0.5 * lam * distance, memo=With(loss.memo, own.memo))

    def local_finish(params: Two, memo: With, local: fl.Local) -> tuple[fl.Tree, With]:
        upload, client = base.local_finish(params.shared, memo.base, inner(local))
        return upload, With(client, Personal(params.own, memo.own))

    def optimizer(rate: fl.Array) -> optax.GradientTransformation:
        own = rate if is_off(own_lr) else own_lr * rate / federation.lr  # it follows the schedule
        steps = {"shared": client_optimizer(federation, rate), "own": client_optimizer(federation, own)}
        return optax.multi_transform(steps, Two("shared", "own"))

    return wrap(base, client_init=lambda key: Personal(*model.init(key)))._replace(
        local_start=local_start,
        local_loss=local_loss,
        local_finish=local_finish,
        optimizer=optimizer,
        predict_local=lambda received, client, x: infer(model, client.own.params, client.own.statistics, x),
        personal=True,
        headline="users",
    )
