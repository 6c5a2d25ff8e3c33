"""What is tried: values, ranges, every combination of them or some, drawn alike for all algorithms."""

import numpy as np
import pytest

from fedgen.errors import FedgenError
from fedgen.sweeps.space import Range, Values, combinations, parse_axis


@pytest.mark.parametrize(
    ("text", "axis"),
    [
        ("lr=0.01,0.1", Values("lr", (0.01, 0.1))),
        ("local_steps=5, 10", Values("local_steps", (5, 10))),
        ("optimizer=sgd,adam", Values("optimizer", ("sgd", "adam"))),
        ("nesterov=true,false", Values("nesterov", (True, False))),
        ("lr_milestones=[5],[5,10]", Values("lr_milestones", ([5], [5, 10]))),
        ("my.module:f.part=0.5", Values("my.module:f.part", (0.5,))),
        ("lr=0.001..0.3:log", Range("lr", 0.001, 0.3, log=True)),
        ("momentum=0..0.9", Range("momentum", 0.0, 0.9, log=False)),
    ],
)
def test_what_is_written_is_read(text: str, axis: Values | Range) -> None:
    assert parse_axis(text) == axis


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "--over takes values or a range"),
        ("lr=", "--over takes values or a range"),
        ("lr=0.3..0.1", "write the lower end first"),
        ("lr=a..b", "is no range"),
        ("lr=0.1..0.3:cubic", "is no range"),
        ("lr=0..0.3:log", "begins above 0, not at 0"),
        ("lr=0.1,0.2,0.1", "0.1 is there twice"),
    ],
)
def test_what_cannot_be_read_is_answered_in_a_sentence(text: str, message: str) -> None:
    with pytest.raises(FedgenError, match=message):
        parse_axis(text)


def test_every_combination_and_some_of_them() -> None:
    axes = [Values("a", (1, 2, 3)), Values("b", ("x", "y"))]
    every = combinations(axes, 0, seed=0)
    assert every == [{"a": a, "b": b} for a in (1, 2, 3) for b in ("x", "y")]
    assert combinations(axes, 99, seed=0) == every
    some = combinations(axes, 4, seed=0)
    assert len(some) == 4
    assert [one for one in every if one in some] == some, "distinct, in the grid's order"
    assert some == combinations(axes, 4, seed=0)
    assert any(combinations(axes, 4, seed=s) != some for s in range(1, 5))
    assert combinations([], 0, seed=0) == [{}]


def test_draws_follow_the_range_and_are_shared() -> None:
    rate = Range("lr", 0.001, 1.0, log=True)
    drawn = np.array([one["lr"] for one in combinations([rate], 300, seed=1)])
    # evenly in the logarithm: a third of them in each of the three decades, within four standard deviations
    counts, _ = np.histogram(np.log10(drawn), bins=[-3, -2, -1, 0])
    assert np.all(np.abs(counts - 100) < 4 * np.sqrt(300 * (1 / 3) * (2 / 3)))
    even = np.array([one["m"] for one in combinations([Range("m", 0.0, 0.9, log=False)], 300, seed=1)])
    assert abs(even.mean() - 0.45) < 4 * 0.9 / np.sqrt(12 * 300)
    with_weight = combinations([rate, Values("fedgen.w", (0.1, 1.0))], 50, seed=1)
    assert [one["lr"] for one in with_weight] == drawn[:50].tolist(), "another setting does not change its draws"


def test_whole_numbers_stay_whole_and_few_of_them_end() -> None:
    steps = Range("local_steps", 2, 4, log=False, whole=True)
    drawn = combinations([steps], 50, seed=0)
    assert sorted(one["local_steps"] for one in drawn) == [2, 3, 4]
    assert all(type(one["local_steps"]) is int for one in drawn)
