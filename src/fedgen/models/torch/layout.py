"""From FedGen's samples to those of a PyTorch module: images with their channels first."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array
from fedgen.errors import FedgenError
from fedgen.models.network import is_pixels


def as_module_takes(x: Array, sample: Sequence[int], channels_last: bool | None) -> Array:
    """[batch, ...] of stored samples in the shape that the module takes: images [h, w, c] or [h, w] as [c, h, w].

    `channels_last` says whether samples are stored so; None decides by their shape.
    """
    have, want = tuple(x.shape[1:]), tuple(sample)
    image = len(want) == 3 and (have == (*want[1:], want[0]) or (*have, 1) == (*want[1:], want[0]))
    if channels_last is None and have == want and image and want[0] > 1:
        raise FedgenError(
            f"samples of shape {have} can be read as [channel, height, width] and as [height, width, channel];"
            " say which with channels_last=True or False"
        )
    if image and channels_last is not False:
        return jnp.moveaxis(x.reshape(-1, *want[1:], want[0]), -1, 1)
    if have == want and not channels_last:
        return x
    stored = f"{want} or, as images are stored, {(*want[1:], want[0])}" if len(want) == 3 else f"{want}"
    raise FedgenError(f"the module takes samples of shape {want}, so the data must have {stored}, not {have}")


def taken_by_module(stored: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape in which a module takes samples that are stored so: images channels first, others as they are."""
    if len(stored.shape) == 3:
        return (stored.shape[2], *stored.shape[:2])
    return (1, *stored.shape) if len(stored.shape) == 2 and is_pixels(stored.dtype) else tuple(stored.shape)
