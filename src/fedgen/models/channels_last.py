"""Convolutions of many channels on a CPU, with the channels innermost: XLA's own, and Winograd's way.

Winograd's minimal filtering (Lavin and Gray 2016) computes the outputs of a 3x3 convolution tile by tile, from fewer
products: y = A' [(G w G') * (B' x B)] A, where * is a matrix product over the channels. F(2x2, 3x3) takes 16 products
for 4 outputs, from a tile of 4x4 inputs, F(4x4, 3x3) 36 for 16, from one of 6x6; a direct convolution takes 9 for each.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import ceil, sqrt
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedgen.core.contract import Array
from fedgen.models.convolution import Window, scattered

CACHED = 2**19  # numbers of tiles: 2 MB, of one core
PATCHES_CACHED = 2**21  # numbers of patches
OF_WEIGHTS = 4  # tiles that cost as much as the weights do, which are transformed twice whatever the plane

Edges = tuple[tuple[int, int], ...]
Matrix = tuple[tuple[float, ...], ...]

_NONE: Edges = ((0, 0), (0, 0))


class Tiling(NamedTuple):
    """What a tile's inputs, the weights and the products are multiplied by on either side: for each point a row."""

    of_input: Matrix  # B'
    of_weight: Matrix  # G
    of_output: Matrix  # A'
    opposite: tuple[int, ...]  # the row of G that, read backwards, is this one

    @property
    def size(self) -> int:
        """A tile's inputs in a row."""
        return len(self.of_input)

    @property
    def outputs(self) -> int:
        """A tile's outputs in a row: the next tile begins so far on."""
        return len(self.of_output)

    @property
    def on_weight(self) -> np.ndarray:
        """What G is for all nine weights at once, [place of the tile, 9]."""
        return np.kron(self.of_weight, self.of_weight).astype(np.float32)

    def flipped(self) -> "Tiling":
        """For windows read backwards, of which the matrices that are made of the weights are the same."""
        of_input = tuple(self.of_input[k] for k in self.opposite)
        of_output = tuple(tuple(row[k] for k in self.opposite) for row in self.of_output)
        return self._replace(of_input=of_input, of_output=of_output)


_R, _H = sqrt(2), sqrt(0.5)

BY_TWO = Tiling(  # the points 0, 1, -1 and infinity
    of_input=((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    of_weight=((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1)),
    of_output=((1, 1, 1, 0), (0, 1, -1, -1)),
    opposite=(3, 1, 2, 0),
)

# The points 0, r, -r, 1/r, -1/r and infinity with r the root of 2: half the error of Lavin's 0, 1, -1, 2, -2, and as
# the inverse of each is among them, a window read backwards has the same matrices.
BY_FOUR = Tiling(
    of_input=(
        (1, 0, -2.5, 0, 1, 0),
        (0, -_H / 2, -0.25, _H, 0.5, 0),
        (0, _H / 2, -0.25, -_H, 0.5, 0),
        (0, _R, 2, -_H, -1, 0),
        (0, -_R, 2, _H, -1, 0),
        (0, 1, 0, -2.5, 0, 1),
    ),
    of_weight=(
        (1, 0, 0),
        (1 / 3, _R / 3, 2 / 3),
        (1 / 3, -_R / 3, 2 / 3),
        (2 / 3, _R / 3, 1 / 3),
        (2 / 3, -_R / 3, 1 / 3),
        (0, 0, 1),
    ),
    of_output=(
        (1, 1, 1, 1, 1, 0),
        (0, _R, -_R, _H, -_H, 0),
        (0, 2, 2, 0.5, 0.5, 0),
        (0, 2 * _R, -2 * _R, _H / 2, -_H / 2, 1),
    ),
    opposite=(5, 3, 4, 1, 2, 0),
)


def by_xla(x: Array, weight: Array, window: Window, dtype: Any = None) -> Array:
    """x [sample, *places, in], weight [*window, in / groups, out] -> [sample, *places, out]."""
    if jax.default_backend() != "cpu":  # what is said here of gradients and orders is of CPUs
        return _by_xla(x, weight, window, dtype)
    return _of_window(x, weight, window, dtype, _convolve if window.groups == 1 else _by_xla)


def _of_window(x: Array, weight: Array, window: Window, dtype: Any, convolve: Callable[..., Array]) -> Array:
    x = _made(_padded(x, [(min(a, 0), min(b, 0)) for a, b in window.padding]))
    padding = tuple((max(a, 0), max(b, 0)) for a, b in window.padding)  # XLA would read beyond x where it is negative
    at_one_place = all(n == 1 for n in window.size) and not any(any(edge) for edge in padding)
    if at_one_place and window.groups == 1:  # XLA takes three times as long for the weight's gradient
        seen = lax.slice(x, (0,) * x.ndim, x.shape, (1, *window.strides, 1))
        matrix = weight.reshape(weight.shape[-2:])
        return jnp.matmul(seen, matrix, precision=window.precision, preferred_element_type=dtype)
    return convolve(x, weight, window._replace(padding=padding), dtype)


def _by_xla(x: Array, weight: Array, window: Window, dtype: Any) -> Array:
    places = "DHW"[-len(window.size) :]
    orders = ("N" + places + "C", places + "IO", "N" + places + "C")
    return lax.conv_general_dilated(
        x, weight, window.strides, window.padding, rhs_dilation=window.dilation, dimension_numbers=orders,
        feature_group_count=window.groups, precision=window.precision, preferred_element_type=dtype,
    )  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _convolve(x: Array, weight: Array, window: Window, dtype: Any) -> Array:
    """XLA's, but for its gradients.

    Within a loop, as local training is one, XLA on a CPU computes a convolution whose axes are in another order one
    product after the other, and those that it derives are: 35 times as long for the weight of pfl's second layer.
    """
    return _by_xla(x, weight, window, dtype)


def _convolve_backward(window: Window, dtype: Any, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    gradient = _made(gradient.astype(weight.dtype))
    if all(step == 1 for step in window.strides):
        flipped = jnp.flip(weight, range(weight.ndim - 2)).swapaxes(-2, -1)
        opposite = tuple(
            ((n - 1) * d - before, (n - 1) * d - after)
            for n, d, (before, after) in zip(window.size, window.dilation, window.padding, strict=True)
        )
        # Derived again it would be XLA's own: JAX does not differentiate forwards what has a rule for backwards alone.
        of_x = _of_window(gradient, _made(flipped), window._replace(padding=opposite), None, _by_xla)
    else:
        planes = [jnp.matmul(gradient, one.T, precision=window.precision) for one in _matrices(weight)]
        of_x = scattered(jnp.stack(planes).reshape(*window.size, *planes[0].shape), window, x.shape[1:-1])

    def some(total: Array, both: tuple[Array, Array]) -> tuple[Array, None]:
        seen = _made(jnp.concatenate(_seen(both[0], window), axis=-1).reshape(-1, len(total)))
        flat = both[1].reshape(-1, weight.shape[-1])
        if jax.default_backend() == "cpu":  # of some shapes it has no product of bfloat16 that is float32
            seen, flat = seen.astype(total.dtype), flat.astype(total.dtype)
        more = jnp.matmul(seen.T, flat, precision=window.precision, preferred_element_type=total.dtype)
        return total + more, None

    wide = jnp.promote_types(weight.dtype, jnp.float32)  # in which parts are added up
    total = jnp.zeros((weight.size // weight.shape[-1], weight.shape[-1]), wide)
    if (parts := _parts(x, gradient[0].size // weight.shape[-1] * len(total), PATCHES_CACHED)) == 1:
        total, _ = some(total, (x, gradient))
    else:
        total, _ = lax.scan(some, total, (_split(x, parts), _split(gradient, parts)))
    return of_x, total.reshape(weight.shape).astype(weight.dtype)


def _matrices(weight: Array) -> Array:
    """[in, out] of each place of the window."""
    return weight.reshape(-1, *weight.shape[-2:])


def _seen(x: Array, window: Window) -> list[Array]:
    """What each place of the window sees of x."""
    x, outputs = _padded(x, window.padding), window.outputs(x.shape[1:-1])
    found = []
    for place in itertools.product(*map(range, window.size)):
        start = [i * d for i, d in zip(place, window.dilation, strict=True)]
        stop = [a + (n - 1) * s + 1 for a, n, s in zip(start, outputs, window.strides, strict=True)]
        found.append(lax.slice(x, (0, *start, 0), (x.shape[0], *stop, x.shape[-1]), (1, *window.strides, 1)))
    return found


_convolve.defvjp(lambda x, weight, *how: (_by_xla(x, weight, *how), (x, weight)), _convolve_backward)


def by_winograd(x: Array, weight: Array, window: Window, dtype: Any = None) -> Array:
    """x [sample, row, column, in], weight [3, 3, in, out] -> [sample, row, column, out]."""
    tiling = tiling_of(*window.outputs(x.shape[1:-1]))
    return _winograd(x, weight.transpose(3, 2, 0, 1), window.padding, window.precision, tiling)


def tiling_of(rows: int, columns: int) -> Tiling:
    """The one with fewer products for so many outputs, those of the weights' transforms counted."""

    def cost(tiling: Tiling) -> int:
        tiles = ceil(rows / tiling.outputs) * ceil(columns / tiling.outputs)
        return tiling.size**2 * (tiles + OF_WEIGHTS)

    return min(BY_TWO, BY_FOUR, key=cost)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _winograd(x: Array, weight: Array, padding: Edges, precision: Any, tiling: Tiling) -> Array:
    """With weights as PyTorch has them, [out, in, 3, 3]."""
    return _forward(x, weight, padding, precision, tiling)[0]


def _forward(
    x: Array, weight: Array, padding: Edges, precision: Any, tiling: Tiling
) -> tuple[Array, tuple[Array, Array]]:
    x = _made(x)
    matrices = jnp.tensordot(tiling.on_weight, weight.reshape(*weight.shape[:2], 9), ((1,), (2,)), precision=precision)

    def some(x: Array) -> Array:
        return _multiplied("kti,koi->kto", x, matrices, padding, precision, tiling)

    parts = _parts_of_tiles(x, matrices, tiling)
    y = some(x) if parts == 1 else _joined(lax.map(some, _split(x, parts)))
    return y, (x, matrices)


def _parts_of_tiles(x: Array, matrices: Array, tiling: Tiling) -> int:
    return _parts(x, tiling.size**2 * x[0].size // tiling.outputs**2, max(CACHED, matrices.size))


def _parts(x: Array, of_each: int, fit: int) -> int:
    """In how many parts the samples go, so that what is made of each part, so many numbers of a sample, fits."""
    if not isinstance(samples := x.shape[0], int):  # an export may leave it open
        return 1
    most = max(fit // of_each, 1)
    return min(parts for parts in range(1, samples + 1) if samples % parts == 0 and samples // parts <= most)


def _split(x: Array, parts: int) -> Array:
    return x.reshape(parts, -1, *x.shape[1:])


def _joined(x: Array) -> Array:
    return x.reshape(-1, *x.shape[2:])


def _multiplied(how: str, x: Array, matrices: Array, padding: Edges, precision: Any, tiling: Tiling) -> Array:
    """The tiles of x times the matrices [place of the tile, out, in], put together."""
    rows, columns = (n + before + after - 2 for n, (before, after) in zip(x.shape[1:-1], padding, strict=True))
    tiles = _tiles(x, padding, tiling)
    products = jnp.einsum(how, _flat(tiles), matrices, precision=precision).reshape(*tiles.shape[:-1], -1)
    by_rows = _made(jnp.stack([_combined(factors, list(products)) for factors in tiling.of_output], 3))
    y = jnp.stack([_combined(factors, list(by_rows)) for factors in tiling.of_output], 4)
    samples, down, m, across, _, channels = (
        y.shape
    )  # [sample, row of tiles, row in it, column of tiles, column in it, out]
    return y.reshape(samples, down * m, across * m, channels)[:, :rows, :columns]


def _backward(
    padding: Edges, precision: Any, tiling: Tiling, saved: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    x, matrices = saved
    gradient = _made(gradient)
    opposite = tuple((2 - before, 2 - after) for before, after in padding)

    def some(total: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
        x, gradient = both
        of_x = _multiplied("kto,koi->kti", gradient, matrices, opposite, precision, tiling.flipped())
        shares = _transformed(tuple(zip(*tiling.of_output, strict=True)), gradient, tiling.outputs, _NONE)
        products = jnp.einsum("kto,kti->koi", _flat(shares), _flat(_tiles(x, padding, tiling)), precision=precision)
        return total + products, of_x

    parts = _parts_of_tiles(x, matrices, tiling)
    if parts == 1:
        products, of_x = some(jnp.zeros((), x.dtype), (x, gradient))
    else:
        nothing = jnp.zeros(matrices.shape, x.dtype)
        products, of_x = lax.scan(some, nothing, (_split(x, parts), _split(gradient, parts)))
        of_x = _joined(of_x)
    # As a product of rows, transposed afterwards: four times as fast as one that XLA transposes within.
    of_weight = _made(jnp.matmul(tiling.on_weight.T, products.reshape(len(products), -1), precision=precision))
    return of_x, of_weight.T.reshape(*products.shape[1:], 3, 3)


_winograd.defvjp(_forward, _backward)


def _made(x: Array) -> Array:
    """Computed once: XLA would do it again for each place of a tile."""
    return lax.optimization_barrier(x)


def _padded(x: Array, padding: Sequence[tuple[int, int]]) -> Array:
    if not any(any(edge) for edge in padding):
        return x
    return lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0), *((before, after, 0) for before, after in padding), (0, 0, 0)]
    )


def _tiles(x: Array, padding: Edges, tiling: Tiling) -> Array:
    """B' x B of each tile: [*place in the tile, sample, row, column of tiles, in]."""
    return _transformed(tiling.of_input, x, tiling.outputs, padding)


def _transformed(matrix: Matrix, x: Array, step: int, padding: Edges) -> Array:
    """matrix @ tile @ matrix' for the tiles of x, one every `step` places; zeros are added so that they cover it.

    Rows first and then columns, each once: in one expression XLA would do the rows again for each column.
    """
    size = len(matrix[0])
    sizes = [n + before + after for n, (before, after) in zip(x.shape[1:-1], padding, strict=True)]
    edges = [(before, after + (size - n) % step) for n, (before, after) in zip(sizes, padding, strict=True)]
    x = _made(_padded(x, edges))
    rows, columns = ((n - size) // step + 1 for n in x.shape[1:-1])
    seen = [x[:, i : i + step * rows : step] for i in range(size)]
    by_rows = _made(jnp.stack([_combined(factors, seen) for factors in matrix]))
    seen = [by_rows[:, :, :, j : j + step * columns : step] for j in range(size)]
    return jnp.stack([_combined(factors, seen) for factors in matrix], 1)


def _flat(a: Array) -> Array:
    """[place of the tile, all else, channel]."""
    return _made(a.reshape(a.shape[0] * a.shape[1], -1, a.shape[-1]))


def _combined(factors: Sequence[float], terms: Sequence[Array]) -> Array:
    return reduce(add, [a if c == 1 else c * a for c, a in zip(factors, terms, strict=True) if c])
