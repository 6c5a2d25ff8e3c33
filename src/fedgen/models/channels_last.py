"""Convolutions of many channels on a CPU, with the channels innermost: XLA's own, and Winograd's way.

Winograd's minimal filtering (Lavin and Gray 2016, F(2x2, 3x3)) computes four outputs of a 3x3 convolution from sixteen
products instead of thirty-six: y = A' [(G w G') * (B' x B)] A for each tile of 4x4 inputs, where * is a matrix product
over the channels.
"""

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedgen.core.contract import Array
from fedgen.models.convolution import Window

_OF_INPUT = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))  # B'
_OF_WEIGHT = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))  # G
_OF_OUTPUT = ((1, 1, 1, 0), (0, 1, -1, -1))  # A'

Grid = Sequence[Sequence[Array]]
Matrix = Sequence[Sequence[float]]


def by_xla(x: Array, weight: Array, window: Window, dtype: Any = None) -> Array:
    """x [sample, *places, in], weight [*window, in / groups, out] -> [sample, *places, out]."""
    dimensions = len(window.size)
    at_one_place = all(n == 1 for n in window.size) and not any(any(edge) for edge in window.padding)
    if at_one_place and window.groups == 1:  # XLA takes three times as long for the weight's gradient
        seen = lax.slice(x, (0,) * x.ndim, x.shape, (1, *window.strides, 1))
        matrix = weight.reshape(weight.shape[-2:])
        return jnp.matmul(seen, matrix, precision=window.precision, preferred_element_type=dtype)
    places = "DHW"[-dimensions:]
    orders = ("N" + places + "C", places + "IO", "N" + places + "C")
    return lax.conv_general_dilated(
        x, weight, window.strides, window.padding, rhs_dilation=window.dilation, dimension_numbers=orders,
        feature_group_count=window.groups, precision=window.precision, preferred_element_type=dtype,
    )  # fmt: skip


def by_winograd(x: Array, weight: Array, window: Window, dtype: Any = None) -> Array:
    """x [sample, row, column, in], weight [3, 3, in, out] -> [sample, row, column, out]."""
    edges = [(0, 0, 0), *((before, after, 0) for before, after in window.padding), (0, 0, 0)]
    return _winograd(lax.pad(x, jnp.zeros((), x.dtype), edges), weight, window.precision)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _winograd(x: Array, weight: Array, precision: Any) -> Array:
    """Without padding."""
    rows, columns = x.shape[1] - 2, x.shape[2] - 2
    tiles = _tiles(x)
    products = jnp.matmul(_flat(tiles), _flat(_transformed(_OF_WEIGHT, _grid(weight))), precision=precision)
    products = products.reshape(4, 4, *tiles.shape[2:-1], -1)
    y = _transformed(_OF_OUTPUT, _grid(products))  # [row, column in the tile, sample, row, column of tiles, out]
    y = y.transpose(2, 3, 0, 4, 1, 5).reshape(len(x), 2 * y.shape[3], 2 * y.shape[4], -1)
    return y[:, :rows, :columns]


def _backward(precision: Any, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weight = saved
    turned = weight[::-1, ::-1].swapaxes(2, 3)
    of_x = _winograd(jnp.pad(gradient, ((0, 0), (2, 2), (2, 2), (0, 0))), turned, precision)
    tiles, even = _tiles(x), _even(gradient)
    shares = _transformed(tuple(zip(*_OF_OUTPUT, strict=True)), _phases(even, 2, even.shape[1] // 2, even.shape[2] // 2))
    products = jnp.einsum("kti,kto->kio", _flat(tiles), _flat(shares), precision=precision)
    products = products.reshape(4, 4, *products.shape[1:])
    return of_x, _transformed(tuple(zip(*_OF_WEIGHT, strict=True)), _grid(products))


_winograd.defvjp(lambda x, weight, precision: (_winograd(x, weight, precision), (x, weight)), _backward)


def _even(x: Array) -> Array:
    """With rows and columns in even number, zeros added."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))


def _tiles(x: Array) -> Array:
    """B' x B of each tile: [4, 4, sample, row, column of tiles, in]."""
    x = _even(x)
    return _transformed(_OF_INPUT, _phases(x, 4, x.shape[1] // 2 - 1, x.shape[2] // 2 - 1))


def _phases(x: Array, size: int, rows: int, columns: int) -> Grid:
    """What each place of a tile sees: every second row and column from there on."""
    return [[x[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for j in range(size)] for i in range(size)]


def _grid(a: Array) -> Grid:
    return [[a[i, j] for j in range(a.shape[1])] for i in range(a.shape[0])]


def _flat(a: Array) -> Array:
    """[place of the tile, all else, channel], computed once: XLA would do it again within the product."""
    return lax.optimization_barrier(a.reshape(a.shape[0] * a.shape[1], -1, a.shape[-1]))


def _transformed(matrix: Matrix, grid: Grid) -> Array:
    """matrix @ grid @ matrix', stacked: [row, column, ...]."""
    rows = [[_combined(factors, [row[j] for row in grid]) for j in range(len(grid[0]))] for factors in matrix]
    return jnp.stack([jnp.stack([_combined(factors, row) for factors in matrix]) for row in rows])


def _combined(factors: Sequence[float], terms: Sequence[Array]) -> Array:
    return reduce(add, [a if c == 1 else c * a for c, a in zip(factors, terms, strict=True) if c])
