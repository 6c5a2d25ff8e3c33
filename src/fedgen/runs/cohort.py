"""The draw of a round's cohort."""

import jax

from fedgen.core.contract import Array
from fedgen.core.streams import stream


def draw_cohort(seed: Array, round: Array, users: int, active: int) -> Array:
    """The users of a round, uniformly at random and without repetition."""
    return jax.random.permutation(stream(seed, "cohort", round), users)[:active]
