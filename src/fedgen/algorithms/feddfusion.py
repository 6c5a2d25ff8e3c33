"""FedDFusion (FedDF, Lin et al. 2020): average the models, then distil the users' ensemble into the average.

The server needs unlabelled proxy samples; no other algorithm here does.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from fedgen.algorithms.fedavg import Parts, Upload, averaging, taken
from fedgen.core import contract as fl
from fedgen.core.aggregate import combine
from fedgen.core.losses import infer, kl
from fedgen.core.optimise import descend
from fedgen.core.streams import stream

STEPS_AT_ONCE = 10  # steps whose proxy samples go through a teacher in one forward pass


def feddfusion(
    task: fl.Task,
    federation: fl.Federation,
    *,
    steps: int = 50,
    batch: fl.Count = 128,
    distill_lr: fl.Scalar = 1e-4,
    distill_optimizer: Literal["adam", "sgd"] = "adam",
    distill_schedule: Literal["constant", "cosine"] = "constant",
    student: Literal["training", "evaluation"] = "training",
    teacher: Literal["logits", "probabilities"] = "logits",
) -> fl.Algorithm:
    """FedAvg, then Adam steps on KL(softmax(mean of the users' logits) || average model) over proxy samples.

    `distill_schedule` is that of a round's steps: cosine from `distill_lr` to 0. `student` is the mode of the average
    model's BatchNorm (in evaluation mode its statistics stay the averaged ones); with `teacher` probabilities the mean
    is that of softmax(logits).
    """
    # Distilling needs whole models, so users upload theirs also where only the predictor comes back.
    base = averaging(task, federation, download=federation.share, upload="all")
    if steps == 0:
        return base._replace(needs=base.needs._replace(whole_uploads=True))
    model = task.model

    def server_update(server: Parts, uploads: Upload, round: fl.Round) -> tuple[Parts, fl.Metrics]:
        average, metrics = base.server_update(server, uploads, round)
        keys = jax.random.split(stream(round.key, "distil"), steps)

        # The teachers do not change while the student learns, so their logits are computed before, one teacher after
        # the other on large batches: ten small networks on a small batch in every step would be far slower.
        def answers(teacher: Parts) -> fl.Array:
            return jax.lax.map(
                lambda key: infer(model, *teacher, round.proxy(key, batch)), keys, batch_size=STEPS_AT_ONCE
            )

        logits = round.each(answers, taken(server, uploads, federation))  # [user, step, batch, class]

        def loss(params: fl.Params, statistics: fl.Tree, item: tuple[fl.Array, fl.Array]) -> tuple[fl.Array, fl.Tree]:
            key, taught = item
            x, drawn = round.proxy(key, batch), jax.random.fold_in(key, 1)
            if student == "training":
                z, statistics = model.extract_in_training(params.extractor, statistics, x, drawn)
            else:
                z, _ = model.extract(params.extractor, statistics, x, False)
            return jnp.mean(kl(taught, model.predict(params.predictor, z))), statistics

        rate = distill_lr if distill_schedule == "constant" else optax.cosine_decay_schedule(distill_lr, steps)
        optimizer = optax.adam(rate) if distill_optimizer == "adam" else optax.sgd(rate)
        if teacher == "logits":
            taught = combine(logits, None, federation)
        else:  # the logarithm, of which softmax makes the mean of the probabilities again
            taught = jnp.log(jnp.maximum(combine(jax.nn.softmax(logits), None, federation), 1e-30))
        learned = descend(
            loss, average.params, average.statistics, optimizer, optimizer.init(average.params), (keys, taught)
        )
        return Parts(learned.params, learned.memo), {**metrics, "distillation_loss": learned.loss}

    needs = fl.Needs(proxy=True, whole_uploads=True, individual_uploads=True)
    return base._replace(server_update=server_update, needs=needs)
