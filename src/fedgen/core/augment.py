"""Augmentation: each sample of a mini-batch randomly shifted, mirrored or cropped, anew in each step.

A shifted or cropped image consists of the rows and columns of the original at other places; a crop's lie between those
of the original, and are interpolated. Gathering the pixels is faster than products with matrices of weights, on CPU and
GPU alike (docs/training.md).
"""

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Federation, Task
from fedgen.errors import FedgenError

_SHIFT = 8  # images move by up to an eighth of their side
_LEAST = 0.75  # of the side of an image is in a crop


def check_augmentation(task: Task, federation: Federation) -> None:
    """Refuse to shift, mirror or crop what is no image."""
    shape = task.sample.shape
    if federation.augment and len(shape) not in (2, 3):
        raise FedgenError(
            f"augment {', '.join(federation.augment)} is for images [height, width, channels], and these samples are of"
            f" shape {shape}; leave it out"
        )


def augmented(x: Array, federation: Federation, key: Array) -> Array:
    """The images [sample, height, width(, channel)], changed as the setting `augment` says with draws of this key."""
    kinds = federation.augment
    mirror, down, right, part, top, left = jax.random.uniform(key, (6, x.shape[0]))
    images = x[..., None] if x.ndim == 3 else x
    if "shift" in kinds or "crop" in kinds:
        rows = _places(images.shape[1], kinds, down, part, top)
        columns = _places(images.shape[2], kinds, right, part, left)
        images = _interpolated(images, rows, columns) if "crop" in kinds else _pixels(images, rows, columns)
    if "flip" in kinds:
        images = jnp.where(mirror[:, None, None, None] < 0.5, images[:, :, ::-1], images)
    return images.reshape(x.shape)


def _places(side: int, kinds: tuple[str, ...], shift: Array, part: Array, start: Array) -> Array:
    """[sample, side] where in the original each row (or column) is; beyond its edge the outermost is repeated.

    `shift`, `part` and `start` are uniform draws from [0, 1), one for each sample.
    """
    place = jnp.broadcast_to(jnp.arange(side, dtype=jnp.float32), (shift.shape[0], side))
    if "crop" in kinds:
        length = _LEAST + (1 - _LEAST) * part[:, None]
        place = start[:, None] * (1 - length) * (side - 1) + length * place
    if "shift" in kinds:
        most = max(side // _SHIFT, 1)
        place = place + jnp.minimum(jnp.floor(shift * (2 * most + 1)), 2 * most)[:, None] - most
    return jnp.clip(place, 0, side - 1)


def _pixels(images: Array, rows: Array, columns: Array) -> Array:
    """The pixels of each image at these rows [sample, row] and columns [sample, column], which are whole numbers."""
    rows, columns = rows.astype(jnp.int32), columns.astype(jnp.int32)
    return jax.vmap(lambda image, i, j: image[i[:, None], j[None, :]])(images, rows, columns)


def _interpolated(images: Array, rows: Array, columns: Array) -> Array:
    """The same at places between pixels, by linear interpolation between the four around."""
    top, left = jnp.floor(rows), jnp.floor(columns)
    bottom, right = (jnp.minimum(a + 1, n - 1) for a, n in ((top, images.shape[1]), (left, images.shape[2])))
    down, across = (rows - top)[:, :, None, None], (columns - left)[:, None, :, None]
    above = (1 - across) * _pixels(images, top, left) + across * _pixels(images, top, right)
    below = (1 - across) * _pixels(images, bottom, left) + across * _pixels(images, bottom, right)
    return (1 - down) * above + down * below
