"""FedDFusion (FedDF, Lin et al. 2020): average the models, then distil the users' ensemble into the average.

The server needs unlabelled samples of its own (the proxy); no other algorithm here does.
"""

import jax
import jax.numpy as jnp
import optax

from fedgen.algorithms.fedavg import Server, Upload, averaging
from fedgen.core.contract import Algorithm, Array, Count, Federation, Params, Round, Scalar, Task, Tree
from fedgen.core.losses import infer, kl
from fedgen.core.optimise import descend
from fedgen.core.streams import stream
from fedgen.errors import FedgenError


def feddfusion(
    task: Task,
    federation: Federation,
    *,
    steps: int = 50,
    batch: Count = 128,
    distill_lr: Scalar = 1e-4,
) -> Algorithm:
    """FedAvg, then Adam steps on KL(softmax(mean of the users' logits) || average model) over proxy samples."""
    # Distilling needs whole models, so users upload theirs also where only the predictor comes back.
    base = averaging(task, federation, download=federation.share, upload="all")
    if steps == 0:
        return base
    if task.proxy_samples == 0:
        raise FedgenError(
            "feddfusion distils over unlabelled samples that no user holds, and there are none;"
            " give less of the training set to the users (--set train_fraction=0.5)"
        )
    model = task.model

    def server_update(server: Server, uploads: Upload, round: Round) -> tuple[Server, dict[str, Array]]:
        average, metrics = base.server_update(server, uploads, round)

        def loss(params: Params, statistics: Tree, key: Array) -> tuple[Array, Tree]:
            x = round.proxy(key, batch)
            logits = jax.vmap(lambda p, s: infer(model, p, s, x))(uploads.params, uploads.statistics)
            teacher = jnp.mean(logits, axis=0)
            z, statistics = model.extract(params.extractor, statistics, x, True)
            return jnp.mean(kl(teacher, model.predict(params.predictor, z))), statistics

        optimizer = optax.adam(distill_lr)
        keys = jax.random.split(stream(round.key, "distil"), steps)
        params, statistics, _, losses = descend(
            loss, average.params, average.statistics, optimizer, optimizer.init(average.params), keys
        )
        return Server(params, statistics), {**metrics, "distillation_loss": jnp.mean(losses)}

    return base._replace(server_update=server_update)
