"""CCVR (Luo et al. 2021): the global predictor is fitted again, on draws from Gaussians of each label's features.

The users' sums give the mean and covariance of each label as if all features were in one place (the paper's equations
for them are those of pooled data).
"""

from typing import Literal, NamedTuple

import jax

from fedgen.algorithms.fedavg import Parts, fedavg
from fedgen.algorithms.gaussians import Sums, check_sums, gaussians_of, no_sums, packed, refit, remembered, summing
from fedgen.algorithms.wrap import With, innermost, need_predictor, with_innermost, wrap
from fedgen.core import contract as fl
from fedgen.errors import FedgenError


class Known(NamedTuple):
    """What the server knows of the features."""

    sums: Sums


def ccvr(
    task: fl.Task,
    federation: fl.Federation,
    *,
    when: Literal["rounds", "end"] = "rounds",
    send: bool = False,
    collect: Literal["before", "after"] = "before",
    memory: fl.Scalar = 0.5,
    refit_steps: fl.Count = 50,
    refit_batch: fl.Count = 256,
    refit_lr: fl.Scalar = 1e-3,
) -> fl.Algorithm:
    """FedAvg whose predictor is fitted again on virtual features, drawn from Gaussians of each label's features."""
    need_predictor(federation, "ccvr calibrates a predictor that all users share")
    if federation.share == "predictor" and not send:
        raise FedgenError(
            "with --share predictor there is no global model that ccvr could calibrate for itself; let users receive"
            " the calibrated predictor (--set ccvr.send=true)"
        )

    def calibrated(state: fl.Tree, sums: Sums, round: fl.Round) -> fl.Tree:
        parts: Parts = innermost(state)

        def fitted() -> fl.Tree:
            gaussians, rest = gaussians_of(sums), (refit_steps, refit_batch, refit_lr)
            return refit(task.model, parts.params.predictor, gaussians, round.key, *rest)

        last = round.number == federation.rounds - 1
        predictor = fitted() if when == "rounds" else jax.lax.cond(last, fitted, lambda: parts.params.predictor)
        return with_innermost(state, parts._replace(params=parts.params._replace(predictor=predictor)))

    def server_update(server: With, average: Parts, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        sums = remembered(server.own.sums, uploads.own, memory, federation)
        return With(calibrated(average, sums, round) if send else average, Known(sums)), {}

    return wrap(
        fedavg(task, federation),
        server_init=lambda key: Known(packed(no_sums(task.classes, task.latent_size()))),
        local_finish=lambda params, memo, local: (packed(getattr(local, collect)), None),
        server_update=server_update,
        check_upload=lambda sent: check_sums(sent, 0),
        calibrate=None if send else lambda server, shown, round: calibrated(shown, server.own.sums, round),
        before=summing(task) if collect == "before" else None,
        after=summing(task) if collect == "after" else None,
    )
