"""Taking times: contenders take turns, and each one's median is given with its spread."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from fedgen.errors import FedgenError


class Timing(NamedTuple):
    """Seconds: the median of the repeats, and their range."""

    seconds: float
    low: float
    high: float
    repeats: int

    @classmethod
    def of(cls, seconds: list[float]) -> "Timing":
        """From the single measurements."""
        return cls(statistics.median(seconds), min(seconds), max(seconds), len(seconds))


def take_turns(
    contenders: Mapping[str, Callable[[], float]], repeats: int, absent: dict[str, str]
) -> dict[str, list[float]]:
    """The seconds of each contender, measured `repeats` times in turn, so that all run under the same conditions.

    Each goes twice and only the second counts: caches that another left cold, and threads of another that still spin
    for a while, are not its own cost. A contender that fails is left out, and `absent` gets why; the others go on.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name in list(seconds):
            try:
                contenders[name]()
                seconds[name].append(contenders[name]())
            except Exception as error:  # such as too little memory for one of them
                absent[name] = f"failed: {reason(error)}"
                del seconds[name]
    return seconds


def reason(error: Exception) -> str:
    """Why something failed, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0] if lines else ""
    return said if said and isinstance(error, FedgenError) else f"{type(error).__name__}: {said}"


def exponent(sizes: list[float], seconds: list[float]) -> float:
    """The slope of log(seconds) over log(size), by least squares: 1 is linear, 0 does not depend on the size."""
    slope, _ = np.polyfit(np.log(sizes), np.log(seconds), 1)
    return float(slope)


def as_json(value: Any) -> Any:
    """Timings as objects with names, also inside dictionaries and lists."""
    if isinstance(value, Timing):
        return value._asdict()
    if isinstance(value, Mapping):
        return {key: as_json(entry) for key, entry in value.items()}
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value
