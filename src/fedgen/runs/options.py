"""One algorithm's part of a configuration: its hyper-parameters, and its headline."""

from typing import Any

from fedgen.config import PER_ALGORITHM, RunConfig
from fedgen.core.contract import Algorithm
from fedgen.errors import FedgenError


def options_for(config: RunConfig, algorithm: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The hyper-parameters that are arguments of the compiled program, and those fixed in it.

    Floats are arguments, so that other values need no new compilation; but a 0 switches a term off
    and stays a constant, so that what is off costs nothing.
    """
    options = {**{key: getattr(config, key) for key in PER_ALGORITHM}, **config.of(algorithm)}
    traced = {k: v for k, v in options.items() if isinstance(v, float) and v != 0}
    return traced, {k: v for k, v in options.items() if k not in traced}


def check_headline(name: str, algorithm: Algorithm, config: RunConfig) -> None:
    """Refuse a headline that this algorithm cannot report."""
    if config.headline == "global" and algorithm.predict_global is None:
        raise FedgenError(f"{name} has no global model with these settings; leave out headline, or use headline users")
    if config.headline == "users" and not algorithm.personal:
        raise FedgenError(
            f"the users of {name} have no models of their own with these settings; leave out headline, or use global"
        )
