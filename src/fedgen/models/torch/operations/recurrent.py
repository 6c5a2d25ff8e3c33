"""LSTM, GRU and plain recurrent networks: a scan over the sequence for each layer and direction."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from fedgen.core.contract import Array, Tree
from fedgen.models.torch.operations.layers import linear
from fedgen.models.torch.operations.random import Draw, dropout
from fedgen.models.torch.registry import operation

# (state, the input's share of the gates [batch, gates], the recurrent weights) -> state; its first part is the output
Cell = Callable[[tuple[Array, ...], Array, list[Array | None]], tuple[Array, ...]]


def _lstm_cell(state: tuple[Array, ...], given: Array, weights: list[Array | None]) -> tuple[Array, ...]:
    (h, c), (weight, bias, projection) = state, weights
    i, f, g, o = jnp.split(given + linear(h, weight, bias), 4, axis=-1)  # type: ignore[arg-type]
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h if projection is None else linear(h, projection), c


def _gru_cell(state: tuple[Array, ...], given: Array, weights: list[Array | None]) -> tuple[Array, ...]:
    (h,), (weight, bias, _) = state, weights
    of_r, of_z, of_n = jnp.split(linear(h, weight, bias), 3, axis=-1)  # type: ignore[arg-type]
    r, z, n = jnp.split(given, 3, axis=-1)
    r, z = jax.nn.sigmoid(r + of_r), jax.nn.sigmoid(z + of_z)
    return ((1 - z) * jnp.tanh(n + r * of_n) + z * h,)


def _plain_cell(activation: Callable[[Array], Array]) -> Cell:
    def cell(state: tuple[Array, ...], given: Array, weights: list[Array | None]) -> tuple[Array, ...]:
        (h,), (weight, bias, _) = state, weights
        return (activation(given + linear(h, weight, bias)),)  # type: ignore[arg-type]

    return cell


def _layers(params: Sequence[Array], biases: bool, projected: bool) -> list[list[Array | None]]:
    """[weight of the input, of the state, their two biases, the projection] of each layer and direction."""
    each = 2 + 2 * biases + projected
    made: list[list[Array | None]] = []
    for first in range(0, len(params), each):
        own = list(params[first : first + each])
        made.append([*own[:2], *(own[2:4] if biases else [None, None]), own[-1] if projected else None])
    return made


def _run(
    cell: Cell, x: Array, states: tuple[Array, ...], layers: list[list[Array | None]], directions: int,
    dropped: float, draw: Draw,
) -> tuple[Array, tuple[Array, ...]]:  # fmt: skip
    """x [step, batch, in] through all layers; also the last states [layer * direction, batch, out]."""
    last: list[tuple[Array, ...]] = []
    for number in range(0, len(layers), directions):
        if number and dropped:
            x = dropout(x, dropped, True, draw=draw)[0]
        outputs = []
        for direction in range(directions):
            weight, *recurrent = layers[number + direction]
            weights = [recurrent[0], recurrent[2], recurrent[3]]
            given = linear(x, weight, recurrent[1])  # type: ignore[arg-type]
            start = tuple(state[number + direction].astype(x.dtype) for state in states)

            def step(state: Tree, given: Array, weights: list[Array | None] = weights) -> tuple[Tree, Array]:
                state = cell(state, given, weights)
                return state, state[0]

            end, output = jax.lax.scan(step, start, given, reverse=direction == 1)
            last.append(end)
            outputs.append(output)
        x = outputs[0] if directions == 1 else jnp.concatenate(outputs, axis=-1)
    return x, tuple(jnp.stack(parts) for parts in zip(*last, strict=True))


def _network(
    cell: Cell, x: Array, states: Sequence[Array], params: Sequence[Array], biases: bool, dropped: float, train: bool,
    bidirectional: bool, batch_first: bool, draw: Draw,
) -> tuple[Array, ...]:  # fmt: skip
    layers = _layers(params, biases, projected=len(states) == 2 and states[0].shape[-1] != states[1].shape[-1])
    x = jnp.swapaxes(x, 0, 1) if batch_first else x
    y, last = _run(cell, x, tuple(states), layers, 2 if bidirectional else 1, dropped if train else 0.0, draw)
    return jnp.swapaxes(y, 0, 1) if batch_first else y, *last


@operation("aten.lstm.input", random=True)
def lstm(
    x: Array, states: Sequence[Array], params: Sequence[Array], biases: bool, layers: int, dropped: float, train: bool,
    bidirectional: bool, batch_first: bool, *, draw: Draw,
) -> tuple[Array, ...]:  # fmt: skip
    """LSTM: the outputs, the last hidden states and the last cell states."""
    return _network(_lstm_cell, x, states, params, biases, dropped, train, bidirectional, batch_first, draw)


def _with_one_state(cell: Cell) -> Callable[..., tuple[Array, ...]]:
    def network(
        x: Array, state: Array, params: Sequence[Array], biases: bool, layers: int, dropped: float, train: bool,
        bidirectional: bool, batch_first: bool, *, draw: Draw,
    ) -> tuple[Array, ...]:  # fmt: skip
        return _network(cell, x, [state], params, biases, dropped, train, bidirectional, batch_first, draw)

    return network


operation("aten.gru.input", random=True)(_with_one_state(_gru_cell))
operation("aten.rnn_tanh.input", random=True)(_with_one_state(_plain_cell(jnp.tanh)))
operation("aten.rnn_relu.input", random=True)(_with_one_state(_plain_cell(jax.nn.relu)))
