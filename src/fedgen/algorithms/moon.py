"""MOON (Li et al. 2021): a user's features stay near those of the received model and away from its own last ones.

To the loss comes mu * -log(exp(sim(z, z_received) / t) / (exp(sim(z, z_received) / t) + exp(sim(z, z_last) / t))), with
cosine similarities. What the two frozen models say of the mini-batches is computed ahead.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import wrap
from fedgen.core import contract as fl
from fedgen.core.trees import is_off, shares_extractor
from fedgen.errors import FedgenError


class Last(NamedTuple):
    """A user's model after its last round; the initial one before its first."""

    params: fl.Params
    statistics: fl.Tree


class Features(NamedTuple):
    """Of a mini-batch, by the frozen models, [batch, latent]."""

    received: fl.Array
    last: fl.Array


def moon(
    task: fl.Task, federation: fl.Federation, *, mu: fl.Scalar = 1.0, temperature: fl.Above0 = 0.5
) -> fl.Algorithm:
    """FedAvg with a contrastive term between the received model's features and those of a user's last model."""
    if not shares_extractor(federation.share):
        raise FedgenError("moon compares the received extractor's features with a user's; leave out --share predictor")
    base, model = fedavg(task, federation), task.model
    if is_off(mu):
        return base

    def ahead(batch: fl.Batch, local: fl.Local, step: fl.Step) -> Features:
        inner = local._replace(received=local.received.base, client=local.client.base)
        params, statistics = base.local_start(inner)
        last: Last = local.client.own
        return Features(
            model.extract(params.extractor, statistics, batch.x, False)[0],
            model.extract(last.params.extractor, last.statistics, batch.x, False)[0],
        )

    def local_loss(loss: fl.Loss, params: fl.Params, batch: fl.Batch, local: fl.Local, step: fl.Step) -> fl.Loss:
        near = jnp.stack([_cosine(loss.z, z) for z in step.ahead]) / temperature  # [2, batch]
        return loss._replace(value=loss.value - mu * batch.mean(jax.nn.log_softmax(near, axis=0)[0]))

    return wrap(
        base,
        client_init=lambda key: Last(*model.init(key)),
        ahead=ahead,
        local_loss=local_loss,
        local_finish=lambda params, statistics, local: (None, Last(params, statistics)),
    )


def _cosine(a: fl.Array, b: fl.Array) -> fl.Array:
    lengths = jnp.sqrt(jnp.sum(a**2, axis=-1) * jnp.sum(b**2, axis=-1) + 1e-12)
    return jnp.sum(a * b, axis=-1) / lengths
