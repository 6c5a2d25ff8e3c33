"""FedRep (Collins et al. 2021): users share the extractor, and train their own predictors first, then the extractor.

FedPer (Arivazhagan et al. 2019), which trains both together, is `fedavg` with `--share extractor`.
"""

from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from annotated_types import Lt

from fedgen.algorithms.fedavg import averaging
from fedgen.core import contract as fl
from fedgen.core.recipe import client_optimizer
from fedgen.errors import FedgenError


def fedrep(task: fl.Task, federation: fl.Federation, *, head: Annotated[fl.Above0, Lt(1)] = 0.5) -> fl.Algorithm:
    """Share the extractor; users train their own predictors in the first steps of a round, and then the extractor."""
    if federation.share == "predictor":
        raise FedgenError("fedrep shares the extractor, and predictors stay with the users; leave out --share")

    def local_gradient(gradient: fl.Params, params: fl.Params, local: fl.Local, step: fl.Step) -> fl.Params:
        first = step.number < head * local.steps
        extractor = jax.tree.map(lambda g: jnp.where(first, 0.0, g), gradient.extractor)
        return fl.Params(extractor, jax.tree.map(lambda g: jnp.where(first, g, 0.0), gradient.predictor))

    return averaging(task, federation, download="extractor", upload="extractor")._replace(
        local_gradient=local_gradient, optimizer=lambda rate: by_turns(client_optimizer(federation, rate))
    )


def by_turns(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimiser for each part of the model alone; a part without any gradient rests, its momentum included."""

    def init(params: fl.Params) -> tuple[fl.Tree, ...]:
        return tuple(optimizer.init(part) for part in params)

    def update(
        gradient: fl.Params, state: tuple[fl.Tree, ...], params: fl.Params | None = None
    ) -> tuple[fl.Params, tuple[fl.Tree, ...]]:
        assert params is not None
        moves, states = [], []
        for part, before, now in zip(gradient, state, params, strict=True):
            turn = jnp.any(jnp.stack([jnp.any(g != 0) for g in jax.tree.leaves(part)]))
            move, after = optimizer.update(part, before, now)
            moves.append(jax.tree.map(lambda m, turn=turn: jnp.where(turn, m, 0.0), move))
            states.append(jax.tree.map(lambda new, old, turn=turn: jnp.where(turn, new, old), after, before))
        return fl.Params(*moves), tuple(states)

    return optax.GradientTransformation(init, update)
