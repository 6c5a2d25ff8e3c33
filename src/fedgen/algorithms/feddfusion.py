"""FedDFusion (FedDF, Lin et al. 2020): average the models, then distil the users' ensemble into the average.

The server needs unlabelled samples of its own (the proxy); no other algorithm here does.
"""

import jax
import jax.numpy as jnp
import optax

from fedgen.algorithms.fedavg import Server, Upload, averaging, taken
from fedgen.core.aggregate import combine
from fedgen.core.contract import Algorithm, Array, Count, Federation, Params, Round, Scalar, Task, Tree
from fedgen.core.losses import infer, kl
from fedgen.core.optimise import descend
from fedgen.core.streams import stream
from fedgen.errors import FedgenError

STEPS_AT_ONCE = 10  # whose proxy samples a teacher answers in one pass


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

        keys = jax.random.split(stream(round.key, "distil"), steps)

        # The teachers do not change while the student learns: they answer before, one by one and in bulk,
        # for nothing is slower than ten small networks on a small batch in every step.
        def answers(teacher: tuple[Params, Tree]) -> Array:
            return jax.lax.map(
                lambda key: infer(model, *teacher, round.proxy(key, batch)), keys, batch_size=STEPS_AT_ONCE
            )

        logits = round.each(answers, taken(server, uploads, federation))  # [user, step, batch, class]

        def loss(params: Params, statistics: Tree, item: tuple[Array, Array]) -> tuple[Array, Tree]:
            key, taught = item
            z, statistics = model.extract(params.extractor, statistics, round.proxy(key, batch), True)
            return jnp.mean(kl(taught, model.predict(params.predictor, z))), statistics

        optimizer = optax.adam(distill_lr)
        params, statistics, _, losses = descend(
            loss,
            average.params,
            average.statistics,
            optimizer,
            optimizer.init(average.params),
            (keys, jnp.mean(logits, axis=0) if federation.aggregation == "mean" else combine(logits, None, federation)),
        )
        return Server(params, statistics), {**metrics, "distillation_loss": jnp.mean(losses)}

    return base._replace(server_update=server_update)
