"""Activations between a network's convolutions: in the order of axes that suits these, BatchNorm not yet applied.

A network says in which order its axes are and what is added to and multiplied with each channel. Neither need be done
where it is said: a transposition can wait until something depends on the order, and (x - mean) * scale + shift until
something needs its values. BatchNorm, however it is written, then is two sums over a convolution's output and one pass,
its gradient two sums and one pass; a convolution's bias before it costs nothing.
"""

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array
from fedgen.models import layers


class Laid:
    """(stored - centre) * factor + shift for each channel, where each of the three may be None, in another order.

    The network's axis i is axis `axes[i]` of what is stored; where that is None, the axis has one entry and is not
    stored.
    """

    def __init__(
        self,
        stored: Array,
        axes: Sequence[int | None],
        channel: int,
        centre: Array | None = None,
        factor: Array | None = None,
        shift: Array | None = None,
    ) -> None:
        self.stored, self.axes, self.channel = stored, tuple(axes), channel
        self.centre, self.factor, self.shift = centre, factor, shift

    @property
    def shape(self) -> tuple[int, ...]:
        """As the network has it."""
        return tuple(1 if axis is None else self.stored.shape[axis] for axis in self.axes)

    @property
    def channels(self) -> int:
        """How many there are."""
        return int(self.stored.shape[self.channel])

    @cached_property
    def values(self) -> Array:
        """Centred, multiplied and shifted, in the stored order."""
        if self.centre is None and self.factor is None and self.shift is None:
            return self.stored
        return _scaled(self.stored, self.centre, self.factor, self.shift, self.channel)

    @cached_property
    def array(self) -> Array:
        """As the network has it."""
        return self.values.transpose([a for a in self.axes if a is not None]).reshape(self.shape)

    def with_values(self, values: Array) -> "Laid":
        """Others of the same form."""
        return Laid(values, self.axes, self.channel)

    def stored_like(self, a: Array) -> Array:
        """An array that the network adds, say, in the stored order; axes with one entry stay so."""
        if a.ndim == 0:
            return a
        order = sorted((stored, axis) for axis, stored in enumerate(self.axes) if stored is not None)
        kept = [axis for _, axis in order]
        return a.transpose(*kept, *(i for i in range(a.ndim) if i not in kept)).reshape([a.shape[i] for i in kept])

    def by_channel(self, a: Array) -> Array | None:
        """An array that has the same value at all places of all samples, as [channel]; of others None."""
        if a.ndim and a.shape != tuple(
            n if axis == self.channel else 1 for n, axis in zip(self.shape, self.axes, strict=True)
        ):
            return None
        return jnp.broadcast_to(a.reshape(-1) if a.ndim else a, (self.channels,))

    def plus(self, a: Array, sign: int = 1) -> "Laid":
        """With a [channel] added or subtracted."""
        if sign < 0 and self.factor is None:
            centre = a if self.shift is None else a - self.shift
            return self._with(centre if self.centre is None else self.centre + centre, None, None)
        a = a if sign > 0 else -a
        return self._with(self.centre, self.factor, a if self.shift is None else self.shift + a)

    def times(self, a: Array) -> "Laid":
        """Multiplied with a [channel]."""
        shift = None if self.shift is None else self.shift * a
        return self._with(self.centre, a if self.factor is None else self.factor * a, shift)

    def _with(self, centre: Array | None, factor: Array | None, shift: Array | None) -> "Laid":
        return Laid(self.stored, self.axes, self.channel, centre, factor, shift)

    @cached_property
    def total(self) -> Array:
        """The sum of each channel, [channel]."""
        n, total = self.stored.size // self.channels, self._stored_total
        total = total if self.centre is None else total - n * self.centre
        total = total if self.factor is None else total * self.factor
        return total if self.shift is None else total + n * self.shift

    @cached_property
    def total_of_squares(self) -> Array:
        """The sum of each channel's squares, [channel]."""
        if self.factor is not None and self.shift is not None:
            return _total(jnp.square(self.values), self.channel)
        centre = jnp.zeros(self.channels, self.stored.dtype) if self.centre is None else self.centre
        centre = centre if self.shift is None else centre - self.shift
        squares = _squares(self.stored, centre, self._stored_total, self.channel)
        return squares if self.factor is None else squares * jnp.square(self.factor)

    @property
    def _stored_total(self) -> Array:
        return _total(self.stored, self.channel)  # XLA computes once what is there twice


def _wide(a: Array, channel: int, ndim: int) -> Array:
    """[channel] so that it is added to each channel."""
    return a.reshape([-1 if axis == channel else 1 for axis in range(ndim)])


def _sum(x: Array, channel: int) -> Array:
    others = tuple(axis for axis in range(x.ndim) if axis != channel)
    if channel == 0 and x.dtype == jnp.float32:
        return layers.sum_of_channels(x, others)
    return jnp.sum(x, others)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _scaled(x: Array, centre: Array | None, factor: Array | None, shift: Array | None, channel: int) -> Array:
    return _scaled_forward(x, centre, factor, shift, channel)[0]


def _scaled_forward(
    x: Array, centre: Array | None, factor: Array | None, shift: Array | None, channel: int
) -> tuple[Array, tuple[Any, ...]]:
    wide = partial(_wide, channel=channel, ndim=x.ndim)
    y = x if centre is None else x - wide(centre)
    y = y if factor is None else y * wide(factor)
    y = y if shift is None else y + wide(shift)
    return y, (None if factor is None else x, centre, factor, shift)


def _scaled_backward(channel: int, saved: tuple[Any, ...], gradient: Array) -> tuple[Array | None, ...]:
    x, centre, factor, shift = saved
    if jax.default_backend() == "cpu":  # XLA would compute what leads to it again for each of the sums
        gradient = jax.lax.optimization_barrier(gradient)
    wide = partial(_wide, channel=channel, ndim=gradient.ndim)
    total = None if centre is None and shift is None else _sum(gradient, channel)
    of_shift = None if shift is None else total
    if factor is None:
        return gradient, None if total is None or centre is None else -total, None, of_shift
    of_factor = _sum(gradient * (x if centre is None else x - wide(centre)), channel)
    of_centre = None if total is None or centre is None else -total * factor
    return gradient * wide(factor), of_centre, of_factor, of_shift


_scaled.defvjp(_scaled_forward, _scaled_backward)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _total(x: Array, channel: int) -> Array:
    return _sum(x, channel)


# Of the saved array only the shape is wanted.
_total.defvjp(
    lambda x, channel: (_sum(x, channel), jnp.zeros((*x.shape, 0), bool)),
    lambda channel, form, gradient: (jnp.broadcast_to(_wide(gradient, channel, form.ndim - 1), form.shape[:-1]),),
)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _squares(x: Array, centre: Array, total: Array, channel: int) -> Array:
    """The sum of each channel's squared distances from the centre; `total` is the sum of x."""
    return _sum_of_squares(x, centre, channel)


def _sum_of_squares(x: Array, centre: Array, channel: int) -> Array:
    if jax.default_backend() != "cpu":
        return squares_by_pivot(x, centre, channel)
    return _sum(jnp.square(x - _wide(centre, channel, x.ndim)), channel)


def squares_by_pivot(x: Array, centre: Array, channel: int) -> Array:
    """The same without waiting for the centre, which mostly is the mean: on a GPU one kernel then finds all sums.

    Distances are from one of the channel's values, so that a large mean costs no digits, unless that value is itself
    hundreds of deviations away from the others.
    """
    pivot = x[tuple(slice(None) if axis == channel else 0 for axis in range(x.ndim))]
    n, away = x.size // pivot.size, centre - pivot
    more = x - _wide(pivot, channel, x.ndim)
    squares = _sum(jnp.square(more), channel) - 2 * away * _sum(more, channel) + n * jnp.square(away)
    return jnp.maximum(squares, 0.0)


def _squares_backward(channel: int, saved: tuple[Array, Array, Array], gradient: Array) -> tuple[Array, Array, Array]:
    x, centre, total = saved
    n = x.size // math.prod(centre.shape)
    of_x = _wide(2 * gradient, channel, x.ndim) * (x - _wide(centre, channel, x.ndim))
    return of_x, -2 * gradient * (total - n * centre), jnp.zeros_like(total)


_squares.defvjp(
    lambda x, centre, total, channel: (_sum_of_squares(x, centre, channel), (x, centre, total)), _squares_backward
)
