"""The settings that are tried: lists of values and ranges, every combination of them, or some drawn at random."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np

from fedgen.config import parse_setting
from fedgen.errors import FedgenError

Settings = dict[str, Any]
_TRIES = 1000  # for each draw: a range of few whole numbers may not have as many values


@dataclass(frozen=True)
class Values:
    """A setting with the values to try."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A setting with the range to draw from: evenly, or evenly in its logarithm."""

    key: str
    low: float
    high: float
    log: bool
    whole: bool = False  # only whole numbers

    def draw(self, rng: np.random.Generator) -> float | int:
        """A value, with no more digits than a table shows."""
        if self.log:
            value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = float(rng.uniform(self.low, self.high))
        return round(value) if self.whole else float(f"{value:.4g}")


Axis = Values | Range


def parse_axis(text: str) -> Axis:
    """`lr=0.01,0.1` as values, `lr=0.001..0.3:log` as a range."""
    key, sign, what = (part.strip() for part in text.partition("="))
    if not sign or not key or not what:
        raise FedgenError(f"--over takes values or a range, as lr=0.01,0.1 or lr=0.001..0.3:log, not '{text}'")
    if ".." in what and not what.startswith(("[", '"', "'")):
        return _range(key, what)
    values = _list(what)
    for number, value in enumerate(values):
        if value in values[:number]:
            raise FedgenError(f"--over {text}: {value} is there twice; give each value once")
    return Values(key, tuple(values))


def _list(text: str) -> list[Any]:
    try:
        values: list[Any] = tomllib.loads(f"v = [{text}]")["v"]
        return values
    except tomllib.TOMLDecodeError:  # words
        return [parse_setting(f"v={part.strip()}")[1] for part in text.split(",") if part.strip()]


def _range(key: str, text: str) -> Range:
    bounds, _, scale = text.partition(":")
    low, _, high = bounds.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]) or scale not in ("", "log"):
        raise FedgenError(f"--over {key}={text} is no range; write the lower end first: {key}=0.001..0.3:log")
    if scale and ends[0] <= 0:
        raise FedgenError(f"--over {key}={text}: a logarithmic range begins above 0, not at {ends[0]:g}")
    return Range(key, *ends, log=bool(scale))


def combinations(axes: Sequence[Axis], trials: int, seed: int) -> list[Settings]:
    """Every combination of the values; or `trials` (where not 0) of them, drawn at random.

    A setting's draws depend on its name and the seed, so that algorithms get the same values of what they share.
    """
    lists = [axis for axis in axes if isinstance(axis, Values)]
    if len(lists) == len(axes):
        every = [
            dict(zip((a.key for a in lists), values, strict=True)) for values in product(*(a.values for a in lists))
        ]
        if not trials or trials >= len(every):
            return every
        chosen = _generator(seed, *(axis.key for axis in axes)).choice(len(every), trials, replace=False)
        return [every[number] for number in sorted(chosen)]
    generators = {axis.key: _generator(seed, axis.key) for axis in axes}
    drawn: list[Settings] = []
    for _ in range(_TRIES * trials):
        settings = {axis.key: _draw(axis, generators[axis.key]) for axis in axes}
        if settings not in drawn:
            drawn.append(settings)
        if len(drawn) == trials:
            break
    return drawn


def _draw(axis: Axis, rng: np.random.Generator) -> Any:
    return axis.draw(rng) if isinstance(axis, Range) else axis.values[int(rng.integers(len(axis.values)))]


def _generator(seed: int, *names: str) -> np.random.Generator:
    return np.random.default_rng([seed, crc32("/".join(names).encode())])
