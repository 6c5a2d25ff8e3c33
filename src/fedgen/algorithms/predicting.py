"""What the server predicts with: a running mean of its states (`ema`), calibrated where the algorithm does that.

With weight b the mean after t rounds is sum_i b^(t-i) S_i / sum_i b^(t-i) over rounds 1 to t: the initial state is not
in it, and few rounds are not biased towards it (as Adam's moments). What users receive stays the same.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedgen.algorithms.wrap import With, wrap
from fedgen.core import contract as fl
from fedgen.core.trees import is_off
from fedgen.errors import FedgenError


class Predicting(NamedTuple):
    """States of the algorithm that its server predicts with, and never sends."""

    mean: fl.Tree  # the running mean; None without `ema`
    calibrated: fl.Tree  # what the algorithm makes of that, or of its last state; None where it makes nothing


def predicting(base: fl.Algorithm, federation: fl.Federation) -> fl.Algorithm:
    """The same algorithm with another state to predict with, as the setting `ema` and its `calibrate` say."""
    weight, calibrate, predict = federation.ema, base.calibrate, base.predict_global
    averages = not is_off(weight)
    if predict is None:
        if averages:
            raise FedgenError(
                "ema is a running mean of the global model, and with these settings there is none; leave it out, or"
                " switch it off for this algorithm (--set NAME.ema=0)"
            )
        return base
    if not averages and calibrate is None:
        return base

    def server_init(key: fl.Array) -> Predicting:
        start = base.server_init(key)
        return Predicting(start if averages else None, start if calibrate else None)

    def server_update(server: With, new: fl.Tree, uploads: fl.Tree, round: fl.Round) -> tuple[With, fl.Metrics]:
        part = (1 - weight) / (1 - jnp.power(jnp.asarray(weight, jnp.float32), round.number + 1))

        def moved(mean: fl.Array, last: fl.Array) -> fl.Array:
            return mean + part * (last - mean) if jnp.issubdtype(last.dtype, jnp.floating) else last

        mean = jax.tree.map(moved, server.own.mean, new) if averages else None
        shown = mean if averages else new
        return With(new, Predicting(mean, calibrate(new, shown, round) if calibrate else None)), {}

    def predict_global(server: With, x: fl.Array) -> fl.Array:
        return predict(server.own.calibrated if calibrate else server.own.mean, x)

    return wrap(
        base, server_init=server_init, server_update=server_update, predict_global=predict_global, calibrate=None
    )
