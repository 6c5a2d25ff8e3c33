"""Which hyper-parameters are arguments of a compiled program, and which are fixed in it."""

from typing import Any

from fedgen.config import PER_ALGORITHM, RunConfig


def options_for(config: RunConfig, algorithm: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The hyper-parameters that are arguments of the compiled program, and those fixed in it.

    Floats are arguments, so that other values need no new compilation; but a 0 switches a term off
    and stays a constant, so that what is off costs nothing.
    """
    options = {**{key: getattr(config, key) for key in PER_ALGORITHM}, **config.of(algorithm)}
    traced = {k: v for k, v in options.items() if isinstance(v, float) and v != 0}
    return traced, {k: v for k, v in options.items() if k not in traced}
