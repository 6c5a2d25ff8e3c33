"""Differential privacy of what a user sends: updates of bounded length and Gaussian noise, counts with noise.

Each message is a Gaussian mechanism at the level of the user: it hides what all of the user's data did to it
(Geyer et al. 2017; McMahan et al. 2018). The user adds the noise itself, so that the server need not be trusted.
"""

import jax
import jax.numpy as jnp

from fedgen.core.contract import Algorithm, Array, Federation, Task, Tree
from fedgen.core.streams import stream
from fedgen.core.trees import is_off, named
from fedgen.core.wires import shapes
from fedgen.errors import FedgenError


def is_private(federation: Federation) -> bool:
    """Whether users add noise to what they send."""
    return not is_off(federation.dp_noise)


def privatise(upload: Tree, broadcast: Tree, federation: Federation, key: Array) -> Tree:
    """What may be sent instead of an upload.

    Numbers that have a counterpart in the broadcast are sent as that plus an update: all of these updates
    together are cut to the length `dp_clip` and get noise of standard deviation `dp_noise * dp_clip`. Counts of
    drawn labels, T * B in all, get noise of standard deviation `dp_count_noise * T * B`.
    """
    start = named(broadcast)
    places = named(upload)
    floats = {p: a - start[p] for p, a in places.items() if jnp.issubdtype(a.dtype, jnp.floating)}
    length = jnp.sqrt(sum((jnp.sum(a**2) for a in floats.values()), jnp.float32(0.0)))
    factor = jnp.minimum(1.0, federation.dp_clip / jnp.maximum(length, 1e-12))
    sound = jnp.isfinite(length)  # an update that is not finite becomes none at all, under the same noise
    draws = federation.local_steps * federation.batch_size
    sent = []
    for number, (place, leaf) in enumerate(places.items()):
        noise = jax.random.normal(stream(key, "noise", number), leaf.shape)
        if place in floats:
            scale = federation.dp_noise * federation.dp_clip
            sent.append(start[place] + jnp.where(sound, factor * floats[place], 0.0) + scale * noise)
        else:
            noisy = leaf + federation.dp_count_noise * draws * noise
            sent.append(jnp.maximum(jnp.round(noisy), 0).astype(leaf.dtype))
    return jax.tree.unflatten(jax.tree.structure(upload), sent)


def check_privacy(algorithm: Algorithm, task: Task, federation: Federation) -> None:
    """Refuse an algorithm of which something would leave the user without noise."""
    if not is_private(federation):
        if not is_off(federation.dp_count_noise):
            raise FedgenError("dp_count_noise hides counts only beside noise on the updates: set dp_noise, too")
        return
    if is_off(federation.dp_clip):
        raise FedgenError("dp_noise needs dp_clip, the greatest length of an update")
    if federation.weighting != "uniform":
        raise FedgenError("a user's number of samples is not hidden by noise; leave out weighting='samples'")
    forms = shapes(algorithm, task)
    down, up = named(forms.broadcast), named(forms.upload)
    for place, leaf in up.items():
        if ".statistics" in place:
            raise FedgenError(
                "running statistics with noise are no statistics (a variance can become negative), so differential"
                " privacy needs a model without BatchNorm (--model mlp) or --share predictor"
            )
        if leaf.dtype == jnp.bool_:
            raise FedgenError(
                f"differential privacy does not cover {place}, which says what a user has; use another algorithm"
            )
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            if place not in down or down[place].shape != leaf.shape:
                raise FedgenError(
                    f"differential privacy bounds updates, and {place} is not one: users do not receive it"
                )
        elif federation.local_epochs:
            raise FedgenError(f"{place} has counts that add up to a user's number of samples; use local_steps instead")
        elif is_off(federation.dp_count_noise):
            raise FedgenError(f"set dp_count_noise, too: {place} has counts of a user's labels")
