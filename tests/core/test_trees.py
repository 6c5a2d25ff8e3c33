"""Averaging, splitting and measuring parameter trees."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.core.contract import Params
from fedgen.core.trees import all_finite, is_off, join, mean, nbytes, split, squared_distance, stack

TREE = Params({"w": jnp.arange(6.0).reshape(2, 3)}, {"w": jnp.ones(3), "b": jnp.zeros(1)})


@pytest.mark.parametrize(
    ("share", "shared"), [("all", (True, True)), ("predictor", (False, True)), ("nothing", (False, False))]
)
def test_each_part_is_on_exactly_one_side(share: str, shared: tuple[bool, bool]) -> None:
    ours, theirs = split(TREE, share)
    assert tuple(part is not None for part in ours) == shared
    assert tuple(part is None for part in theirs) == shared
    assert join(ours, theirs) == TREE


def test_average_of_identical_trees_is_the_tree() -> None:
    for a, b in zip(mean(stack([TREE] * 4)).extractor.values(), TREE.extractor.values(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_average_does_not_depend_on_the_order() -> None:
    a = jnp.array(np.random.default_rng(0).normal(size=(5, 7)), jnp.float32)
    np.testing.assert_allclose(mean({"a": a})["a"], mean({"a": a[::-1]})["a"], rtol=1e-6)


def test_weighted_average_by_hand() -> None:
    # (1 * 10 + 3 * 2) / 4 = 4, and for the statistics beside it (1 * 0 + 3 * 8) / 4 = 6
    stacked = {"params": jnp.array([10.0, 2.0]), "statistics": jnp.array([0.0, 8.0])}
    averaged = mean(stacked, jnp.array([1, 3]))
    assert (float(averaged["params"]), float(averaged["statistics"])) == (4.0, 6.0)


def test_an_absent_part_stays_absent() -> None:
    assert mean(Params(None, None)) == Params(None, None)
    assert mean(None) is None


def test_squared_distance() -> None:
    assert float(squared_distance({"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([0.0, 4.0])})) == 5.0


def test_finiteness_ignores_integers() -> None:
    assert bool(all_finite({"a": jnp.ones(2), "n": jnp.arange(2)}))
    assert not bool(all_finite({"a": jnp.array([1.0, jnp.inf])}))


def test_bytes_count_every_leaf_by_its_type() -> None:
    assert nbytes({"a": jnp.ones((2, 3), jnp.float32), "b": jnp.ones(5, jnp.int8)}) == 29


def test_only_the_constant_zero_is_off() -> None:
    assert is_off(0)
    assert is_off(0.0)
    assert not is_off(1e-9)
    assert not is_off(jnp.zeros(()))
