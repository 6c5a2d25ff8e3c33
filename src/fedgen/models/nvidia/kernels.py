"""Convolutions of few channels on an NVIDIA GPU, for many clients at once.

With different weights for each client, a convolution of 6 channels is thousands of tiny matrix products. The
libraries' kernels are made for large ones, and patches made for them are more than twice what is read. The kernels here
(Pallas, compiled by Triton) gather the windows while they multiply, and apply the BatchNorm and ReLU that come before
a convolution as they read. Under `vmap` each client gets separate programs.

Everything is a sum in a fixed order, so that the same call gives the same bits. Products are float32's, or three
products of the matrix units that together are as exact (`TF32_TF32_F32_X3`, relative error below 1e-6).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from fedgen.core.contract import Array

TILE = 128  # places (column and sample) of an output row that one program takes
EXACT = lax.DotAlgorithmPreset.F32_F32_F32


class Slopes(NamedTuple):
    """The gradient of a convolution's output, as what a kernel can compute it from while it reads.

    That of ReLU's output, where ReLU lets it pass (factor * output + offset > 0), goes through BatchNorm:
    passed * factor + output * curvature + level.
    """

    gradient: Array  # of ReLU's output, [out, rows, columns, sample]
    output: Array  # of the convolution, likewise
    factor: Array  # [out]
    offset: Array
    curvature: Array
    level: Array

    def of_output(self) -> Array:
        """All of it."""
        return _through_norm_and_relu(self.gradient, self.output, *(a[:, None, None, None] for a in self[2:]))


def convolve(weight: Array, x: Array, before: tuple[Array, Array] | None, interpret: bool = False) -> Array:
    """3x3 convolution of stride 2 and padding 1: weight [out, 9 * in], x [in, h, w, sample] -> [out, ...] of half size.

    With `before` (factor and offset [in]) it is that of relu(factor * x + offset).
    """
    window = _Window(x.shape)
    if window.inputs == 1 and before is None:
        return _convolve_one(window, weight, x, interpret)
    outputs, terms = weight.shape

    def kernel(weight_ref: Any, x_ref: Any, *refs: Any) -> None:
        *before_refs, y_ref = refs
        row, place = window.here()
        out, term = _column(_tile(outputs)), _row(_tile(terms))
        inside = (out < outputs) & (term < terms)
        weights = triton.load(weight_ref.at[out * terms + term], mask=inside, other=0.0)
        patches = window.patches(x_ref, before_refs, _column(_tile(terms)), row, place)
        y = _product(weights, patches, EXACT)
        at = out * window.places + row * window.across + place
        _store(y_ref, at, y, (out < outputs) & (place < window.across), interpret)

    call = _call("fedgen_convolve", kernel, window.grid, (outputs * window.places,), interpret)
    return call(weight, x, *(before or ()))[0].reshape(outputs, *window.shape)


def _convolve_one(window: "_Window", weight: Array, x: Array, interpret: bool) -> Array:
    """Of one channel as it is: nine factors for each output, too few for a product of matrices."""
    outputs, tile = len(weight), 2 * TILE

    def kernel(weight_ref: Any, x_ref: Any, y_ref: Any) -> None:
        row, place = pl.program_id(0), pl.program_id(1) * tile + lax.iota(jnp.int32, tile)
        sums = [jnp.zeros(tile)] * outputs
        for term in range(9):
            at, inside = window.at(term, row, place)
            value = triton.load(x_ref.at[at], mask=inside, other=0.0)
            sums = [total + weight_ref[9 * out + term] * value for out, total in enumerate(sums)]
        for out, total in enumerate(sums):
            at = out * window.places + row * window.across + place
            _store(y_ref, at, total, place < window.across, interpret)

    grid, sizes = (window.shape[0], pl.cdiv(window.across, tile)), (outputs * window.places,)
    return _call("fedgen_convolve_one", kernel, grid, sizes, interpret)(weight, x)[0].reshape(outputs, *window.shape)


def gradient_of_weight(
    x: Array, before: tuple[Array, Array] | None, slopes: Slopes | Array, interpret: bool = False
) -> tuple[Array, Array]:
    """The gradients of a convolution's weight, [out, 9 * in], and of its output, which may be given as it is."""
    window, known = _Window(x.shape), not isinstance(slopes, Slopes)
    if window.inputs == 1 and before is None:
        of_weight = _gradient_of_weight_of_one(window, x, slopes, interpret)
        return of_weight, slopes.of_output() if isinstance(slopes, Slopes) else slopes
    given = slopes if isinstance(slopes, Slopes) else (slopes,)
    outputs, terms = len(given[0]), 9 * window.inputs
    programs = window.grid[0] * window.grid[1]

    def kernel(x_ref: Any, *refs: Any) -> None:
        slope_refs, refs = refs[: len(given)], refs[len(given) :]
        before_refs, sum_ref = refs[: len(before or ())], refs[len(before or ())]
        row, place = window.here()
        out, term = _column(_tile(outputs)), _column(_tile(terms))
        inside = (out < outputs) & (place < window.across)
        at = out * window.places + row * window.across + place
        gradients = _slopes(slope_refs[:2], _by_channel(slope_refs[2:], out), at, inside)
        if not known:
            _store(refs[-1], at, gradients, inside, interpret)
        patches = window.patches(x_ref, before_refs, term, row, place)
        total = _product(patches, gradients.T, _three_products(interpret))
        program = pl.program_id(0) * window.grid[1] + pl.program_id(1)
        out = _row(_tile(outputs))
        inside = (out < outputs) & (term < terms)
        _store(sum_ref, (program * outputs + out) * terms + term, total, inside, interpret)

    sizes = (programs * outputs * terms, *(() if known else (given[0].size,)))
    call = _call("fedgen_gradient_of_weight", kernel, window.grid, sizes, interpret)
    sums, *of_output = call(x, *given, *(before or ()))
    return sums.reshape(programs, outputs, terms).sum(0), (given if known else of_output)[0].reshape(given[0].shape)


def _gradient_of_weight_of_one(window: "_Window", x: Array, slopes: Slopes | Array, interpret: bool) -> Array:
    """Of one channel as it is: sums for all outputs and each of the nine terms, kept in registers."""
    given = slopes if isinstance(slopes, Slopes) else (slopes,)
    outputs, tile, programs = len(given[0]), 32, window.shape[0]  # one warp for each program
    channels = pl.next_power_of_2(outputs)

    def kernel(x_ref: Any, *refs: Any) -> None:
        *slope_refs, sum_ref = refs
        row, out = pl.program_id(0), _column(channels)
        by_channel = _by_channel(slope_refs[2:], out)

        def add(part: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            place = part * tile + _row(tile)
            inside = (out < outputs) & (place < window.across)
            at = out * window.places + row * window.across + place
            gradients = _slopes(slope_refs[:2], by_channel, at, inside)
            added = []
            for term, total in enumerate(sums):
                at, inside = window.at(term, row, place)
                added.append(total + gradients * triton.load(x_ref.at[at], mask=inside, other=0.0))
            return tuple(added)

        sums = lax.fori_loop(0, pl.cdiv(window.across, tile), add, (jnp.zeros((channels, tile)),) * 9)
        out = lax.iota(jnp.int32, channels)
        for term, total in enumerate(sums):
            at = (row * outputs + out) * 9 + term
            _store(sum_ref, at, jnp.sum(total, axis=1), out < outputs, interpret)

    sizes = (programs * outputs * 9,)
    call = _call("fedgen_gradient_of_weight_one", kernel, (programs,), sizes, interpret, warps=1)
    return call(x, *given)[0].reshape(programs, outputs, 9).sum(0)


def gradient_of_input(weight: Array, of_output: Array, size: tuple[int, ...], interpret: bool = False) -> Array:
    """From the gradient of a convolution's output, [out, ...], that of its input, [in, *size, sample].

    Row 2m of the input is seen by output row m through the window's row 1; row 2m+1 by m through row 2 and by m+1
    through row 0; columns likewise. So it is a 2x2 convolution of the output's gradient, whose results are the input's
    channels for each of four phases (even or odd row, even or odd column).
    """
    outputs, rows, columns, samples = of_output.shape
    height, width = size
    inputs = weight.shape[1] // 9
    across, terms = columns * samples, 4 * outputs
    size_of_x = inputs * height * width * samples

    def kernel(weight_ref: Any, of_output_ref: Any, x_ref: Any) -> None:
        row, place = pl.program_id(0), pl.program_id(1) * TILE + _row(TILE)
        result, term = _column(_tile(4 * inputs)), _row(_tile(terms))  # result: phase and input channel
        phase, channel = result // inputs, result % inputs

        def seen_through(odd: Array, later: Array) -> Array:
            """The row (or column) of the window; below 0 where there is none."""
            return jnp.where(odd == 0, 1 - 2 * later, 2 - 2 * later)

        shift = term // outputs
        i, j = seen_through(phase // 2, shift // 2), seen_through(phase % 2, shift % 2)
        inside = (i >= 0) & (j >= 0) & (result < 4 * inputs) & (term < terms)
        at = term % outputs * (9 * inputs) + (3 * i + j) * inputs + channel
        weights = triton.load(weight_ref.at[at], mask=inside, other=0.0)

        term = _column(_tile(terms))
        later_row, later_column, out = term // outputs // 2, term // outputs % 2, term % outputs
        seen = place + later_column * samples  # along the row
        inside = (seen < across) & ((row + later_row < rows) & (term < terms)) & (place < across)
        at = (out * rows + row + later_row) * across + seen
        gradients = triton.load(of_output_ref.at[at], mask=inside, other=0.0)

        y, x = 2 * row + phase // 2, 2 * (place // samples) + phase % 2
        inside = ((result < 4 * inputs) & (y < height)) & (place < across) & (x < width)
        at = (channel * height + y) * (width * samples) + x * samples + place % samples
        product = _product(weights, gradients, _three_products(interpret))
        _store(x_ref, at, product, inside, interpret)

    grid = rows, pl.cdiv(across, TILE)
    call = _call("fedgen_gradient_of_input", kernel, grid, (size_of_x,), interpret)
    return call(weight, of_output)[0].reshape(inputs, height, width, samples)


def gradients_of_product(h: Array, weight: Array, gradient: Array, interpret: bool = False) -> tuple[Array, Array]:
    """From the gradient [sample, out] of h.T @ weight, h [in, sample], weight [in, out], those of h and of weight."""
    (inputs, samples), outputs, tile = h.shape, weight.shape[1], TILE // 2

    def kernel(h_ref: Any, weight_ref: Any, gradient_ref: Any, of_h_ref: Any, of_weight_ref: Any) -> None:
        input, sample, out = pl.program_id(0) * tile + _column(tile), _row(_tile(samples)), _row(_tile(outputs))
        in_h, in_weight = (input < inputs) & (sample < samples), (input < inputs) & (out < outputs)
        sample_down = _column(_tile(samples))
        inside = (sample_down < samples) & (out < outputs)
        gradients = triton.load(gradient_ref.at[sample_down * outputs + out], mask=inside, other=0.0)
        values = triton.load(h_ref.at[input * samples + sample], mask=in_h, other=0.0)
        of_weight = _product(values, gradients, _three_products(interpret))
        _store(of_weight_ref, input * outputs + out, of_weight, in_weight, interpret)
        weights = triton.load(weight_ref.at[input * outputs + out], mask=in_weight, other=0.0)
        of_h = _product(weights, gradients.T, _three_products(interpret))
        _store(of_h_ref, input * samples + sample, of_h, in_h, interpret)

    grid = (pl.cdiv(inputs, tile),)
    call = _call("fedgen_gradients_of_product", kernel, grid, (h.size, weight.size), interpret)
    of_h, of_weight = call(h, weight, gradient)
    return of_h.reshape(h.shape), of_weight.reshape(weight.shape)


def _slopes(refs: Sequence[Any], by_channel: Sequence[Array], at: Array, inside: Array) -> Array:
    """The gradient of a convolution's output at some places, from all that `Slopes` has or given as it is."""
    gradient = triton.load(refs[0].at[at], mask=inside, other=0.0)
    if len(refs) == 1:
        return gradient
    output = triton.load(refs[1].at[at], mask=inside, other=0.0)
    return jnp.where(inside, _through_norm_and_relu(gradient, output, *by_channel), 0.0)


def _through_norm_and_relu(
    gradient: Array, output: Array, factor: Array, offset: Array, curvature: Array, level: Array
) -> Array:
    return passed_by_relu(gradient, output, factor, offset) * factor + output * curvature + level


def passed_by_relu(gradient: Array, output: Array, factor: Array, offset: Array) -> Array:
    """What of the gradient of relu(factor * output + offset) reaches its argument."""
    return jnp.where(factor * output + offset > 0, gradient, 0.0)


def _by_channel(refs: Sequence[Any], channel: Array) -> list[Array]:
    return [triton.load(ref.at[channel], mask=channel < ref.shape[0], other=0.0) for ref in refs]


class _Window:
    """What a 3x3 window that moves by two places sees of [in, h, w, sample]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.inputs, self.height, self.width, self.samples = shape
        rows, columns = (self.height + 1) // 2, (self.width + 1) // 2
        self.shape = rows, columns, self.samples
        self.across = columns * self.samples  # places of an output row
        self.places = rows * self.across
        self.grid = rows, pl.cdiv(self.across, TILE)  # where a program takes a part of a row

    def here(self) -> tuple[Array, Array]:
        """A program's output row and its places there, [1, place]."""
        return pl.program_id(0), pl.program_id(1) * TILE + _row(TILE)

    def at(self, tap: int, row: Array, place: Array) -> tuple[Array, Array]:
        """Where the window's `tap` finds its value in the first channel, and whether there is one."""
        y, x = 2 * row + tap // 3 - 1, 2 * (place // self.samples) + (tap % 3 - 1)
        inside = (place < self.across) & (x >= 0) & (x < self.width) & (y >= 0) & (y < self.height)
        return (y * self.width + x) * self.samples + place % self.samples, inside

    def patches(self, x_ref: Any, before_refs: Sequence[Any], term: Array, row: Array, place: Array) -> Array:
        """[term, place]; a term is a tap and an input channel."""
        channel, tap = term % self.inputs, term // self.inputs
        y = 2 * row + tap // 3 - 1
        x = 2 * (place // self.samples) + (tap % 3 - 1)
        known = (term < 9 * self.inputs) & (y >= 0) & (y < self.height)
        inside = known & (place < self.across) & (x >= 0) & (x < self.width)
        at = (channel * self.height + y) * (self.width * self.samples) + x * self.samples + place % self.samples
        value = triton.load(x_ref.at[at], mask=inside, other=0.0)
        if not before_refs:
            return value
        factor, offset = _by_channel(before_refs, channel)
        normalised = factor * value + offset
        return jnp.where(inside & ~(normalised <= 0), normalised, 0.0)  # Triton's maximum would hide a NaN


def _store(ref: Any, at: Array, value: Array, inside: Array, interpret: bool) -> None:
    if interpret:  # there a masked store writes back what was at the place before, which may be another's
        at = jnp.where(inside, at, ref.shape[0])
    triton.store(ref.at[at], value, mask=inside)


def _three_products(interpret: bool) -> lax.DotAlgorithmPreset:
    return EXACT if interpret else lax.DotAlgorithmPreset.TF32_TF32_F32_X3


def _product(a: Array, b: Array, algorithm: lax.DotAlgorithmPreset) -> Array:
    return lax.dot(a, b, precision=algorithm, preferred_element_type=jnp.float32)


def _tile(size: int) -> int:
    """Sides of a product of matrices: powers of two, 16 or more."""
    return max(16, pl.next_power_of_2(size))


def _row(size: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, (1, size), 1)


def _column(size: int) -> Array:
    return lax.broadcasted_iota(jnp.int32, (size, 1), 0)


def _call(
    name: str, kernel: Any, grid: tuple[int, ...], sizes: tuple[int, ...], interpret: bool, warps: int = 4
) -> Any:
    """The kernel as a function of arrays, which it sees flat; so are its results."""
    call = pl.pallas_call(
        kernel,
        name=name,
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct((size,), jnp.float32) for size in sizes],
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
    )
    return lambda *arrays: call(*(a.reshape(-1) for a in arrays))
