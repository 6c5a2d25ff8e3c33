"""FedDistill (Jeong et al. 2018): users share the mean logits of each label and no parameters at all."""

from fedgen.algorithms.feddistill_plus import feddistill_plus
from fedgen.core import contract as fl
from fedgen.errors import FedgenError


def feddistill(
    task: fl.Task,
    federation: fl.Federation,
    *,
    gamma: fl.Scalar = 0.1,
    reset: bool = True,
    unseen_as_zeros: bool = False,
    counts_start: int = 0,
) -> fl.Algorithm:
    """Share the mean logits of each label and nothing else; users keep their own models."""
    if federation.share != "all":
        raise FedgenError("feddistill shares no parameters, so --share does not apply; use feddistill+")
    return feddistill_plus(
        task,
        federation,
        "nothing",
        gamma=gamma,
        reset=reset,
        unseen_as_zeros=unseen_as_zeros,
        counts_start=counts_start,
    )
