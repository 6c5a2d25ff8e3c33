"""CCVR (Luo et al. 2021): the global predictor is fitted again, on draws from Gaussians of each label's features.

The users' sums give the mean and covariance of each label as if all features were in one place (the paper's equations
for them are those of pooled data).
"""

from typing import Literal, NamedTuple

import jax

from fedgen.algorithms.fedavg import Parts, fedavg
from fedgen.algorithms.gaussians import Sums, collecting, gaussians_of, no_sums, packed, refit, remembered
from fedgen.algorithms.wrap import With, need_predictor, with_predictor, wrap
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
    memory: fl.UpTo1 = 0.5,
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
        def fitted(predictor: fl.Tree) -> fl.Tree:
            rest = (refit_steps, refit_batch, refit_lr)
            return refit(task.model, predictor, gaussians_of(sums), round.key, *rest)

        def fitted_in_the_end(predictor: fl.Tree) -> fl.Tree:
            return jax.lax.cond(round.number == federation.rounds - 1, fitted, lambda kept: kept, predictor)

        return with_predictor(state, fitted if when == "rounds" else fitted_in_the_end)

    def server_update(server: With, average: Parts, uploads: With, round: fl.Round) -> tuple[With, fl.Metrics]:
        sums = remembered(server.own.sums, uploads.own, memory, federation)
        return With(calibrated(average, sums, round) if send else average, Known(sums)), {}

    return wrap(
        fedavg(task, federation),
        server_init=lambda key: Known(packed(no_sums(task.classes, task.latent_size()))),
        server_update=server_update,
        calibrate=None if send else lambda server, shown, round: calibrated(shown, server.own.sums, round),
        **collecting(task, federation, collect),
    )
