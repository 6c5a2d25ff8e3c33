"""Convolutions of many channels on a CPU, with the channels innermost: XLA's own, and Winograd's way.

Winograd's minimal filtering (Lavin and Gray 2016, F(2x2, 3x3)) computes four outputs of a 3x3 convolution from sixteen
products instead of thirty-six: y = A' [(G w G') * (B' x B)] A for each tile of 4x4 inputs, where * is a matrix product
over the channels.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedgen.core.contract import Array
from fedgen.models.convolution import Window, scattered

_OF_INPUT = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))  # B'
_OF_WEIGHT = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))  # G
_OF_OUTPUT = ((1, 1, 1, 0), (0, 1, -1, -1))  # A'

_ON_WEIGHT = np.kron(_OF_WEIGHT, _OF_WEIGHT).astype(np.float32)  # what it is for all nine weights at once, [16, 9]

CACHED = 2**19  # numbers of tiles: 2 MB, of one core
PATCHES_CACHED = 2**21  # numbers of patches

Edges = tuple[tuple[int, int], ...]
Grid = Sequence[Sequence[Array]]
Matrix = Sequence[Sequence[float]]


def by_xla(x: Array, weight: Array, window: Window, dtype: Any = None) -> Array:
    """x [sample, *places, in], weight [*window, in / groups, out] -> [sample, *places, out]."""
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
    return _winograd(x, weight.transpose(3, 2, 0, 1), window.padding, window.precision)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _winograd(x: Array, weight: Array, padding: Edges, precision: Any) -> Array:
    """With weights as PyTorch has them, [out, in, 3, 3]."""
    return _forward(x, weight, padding, precision)[0]


def _forward(x: Array, weight: Array, padding: Edges, precision: Any) -> tuple[Array, tuple[Array, Array]]:
    x = _made(x)
    matrices = jnp.tensordot(_ON_WEIGHT, weight.reshape(*weight.shape[:2], 9), ((1,), (2,)), precision=precision)

    def some(x: Array) -> Array:
        return _multiplied("kti,koi->kto", x, matrices, padding, precision, (0, 1, 2, 3))

    parts = _parts(x, 4 * x[0].size, max(CACHED, matrices.size))
    y = some(x) if parts == 1 else _joined(lax.map(some, _split(x, parts)))
    return y, (x, matrices)


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


def _multiplied(how: str, x: Array, matrices: Array, padding: Edges, precision: Any, places: tuple[int, ...]) -> Array:
    """The tiles of x times the matrices [place of the tile, out, in], put together; `places` is which is whose."""
    x = _padded(x, padding)
    rows, columns = x.shape[1] - 2, x.shape[2] - 2
    tiles = _tiles(x, places)
    products = jnp.einsum(how, _flat(tiles), matrices, precision=precision).reshape(4, 4, *tiles.shape[2:-1], -1)
    of_output = [[row[place] for place in places] for row in _OF_OUTPUT]
    y = _transformed(of_output, _grid(products))  # [row, column in the tile, sample, row, column of tiles, out]
    y = y.transpose(2, 3, 0, 4, 1, 5).reshape(x.shape[0], 2 * y.shape[3], 2 * y.shape[4], -1)
    return y[:, :rows, :columns]


def _backward(padding: Edges, precision: Any, saved: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, matrices = saved
    gradient = _made(gradient)
    opposite = tuple((2 - before, 2 - after) for before, after in padding)

    def some(total: Array, both: tuple[Array, Array]) -> tuple[Array, Array]:
        x, gradient = both
        # A flipped window has the same matrices, of other places of the tile.
        of_x = _multiplied("kto,koi->kti", gradient, matrices, opposite, precision, (3, 1, 2, 0))
        even = _even(gradient)
        shares = _transformed(_transposed(_OF_OUTPUT), _phases(even, 2, even.shape[1] // 2, even.shape[2] // 2))
        tiles = _flat(_tiles(_padded(x, padding)))
        return total + jnp.einsum("kto,kti->koi", _flat(shares), tiles, precision=precision), of_x

    parts = _parts(x, 4 * x[0].size, max(CACHED, matrices.size))
    if parts == 1:
        products, of_x = some(jnp.zeros((), x.dtype), (x, gradient))
    else:
        nothing = jnp.zeros(matrices.shape, x.dtype)
        products, of_x = lax.scan(some, nothing, (_split(x, parts), _split(gradient, parts)))
        of_x = _joined(of_x)
    of_weight = jnp.tensordot(products, _ON_WEIGHT, ((0,), (0,)), precision=precision)
    return of_x, of_weight.reshape(*of_weight.shape[:2], 3, 3)


_winograd.defvjp(_forward, _backward)


def _transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))


def _made(x: Array) -> Array:
    """Computed once: XLA would do it again for each place of a tile."""
    return lax.optimization_barrier(x)


def _even(x: Array) -> Array:
    """With rows and columns in even number, zeros added."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, x.shape[2] % 2), (0, 0)))


def _padded(x: Array, padding: Sequence[tuple[int, int]]) -> Array:
    if not any(any(edge) for edge in padding):
        return x
    return lax.pad(
        x, jnp.zeros((), x.dtype), [(0, 0, 0), *((before, after, 0) for before, after in padding), (0, 0, 0)]
    )


def _tiles(x: Array, places: Sequence[int] = (0, 1, 2, 3)) -> Array:
    """B' x B of each tile: [4, 4, sample, row, column of tiles, in]."""
    x = _even(x)
    return _transformed([_OF_INPUT[place] for place in places], _phases(x, 4, x.shape[1] // 2 - 1, x.shape[2] // 2 - 1))


def _phases(x: Array, size: int, rows: int, columns: int) -> Grid:
    """What each place of a tile sees: every second row and column from there on."""
    return [[x[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for j in range(size)] for i in range(size)]


def _grid(a: Array) -> Grid:
    return [[a[i, j] for j in range(a.shape[1])] for i in range(a.shape[0])]


def _flat(a: Array) -> Array:
    """[place of the tile, all else, channel]."""
    return _made(a.reshape(a.shape[0] * a.shape[1], -1, a.shape[-1]))


def _transformed(matrix: Matrix, grid: Grid) -> Array:
    """matrix @ grid @ matrix', stacked: [row, column, ...]."""
    rows = [[_combined(factors, [row[j] for row in grid]) for j in range(len(grid[0]))] for factors in matrix]
    return jnp.stack([jnp.stack([_combined(factors, row) for factors in matrix]) for row in rows])


def _combined(factors: Sequence[float], terms: Sequence[Array]) -> Array:
    return reduce(add, [a if c == 1 else c * a for c, a in zip(factors, terms, strict=True) if c])
