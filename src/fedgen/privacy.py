"""What differential privacy a run gives its users: epsilon and delta, by Google's accountant (`dp-accounting`)."""

from typing import Any

from fedgen.config import RunConfig
from fedgen.errors import FedgenError


def guarantee(config: RunConfig, messages: int) -> dict[str, Any] | None:
    """The (epsilon, delta) of a user that sent so many messages; None without noise.

    Each message is a Gaussian mechanism on the user's update and, with `dp_count_noise`, one on its counts. The server
    knows who took part, so there is no amplification by sampling. Neighbours differ in whether a user's message
    holds anything at all; against any other data of that user, both noise multipliers count half.
    """
    if config.dp_noise == 0:
        return None
    try:
        from dp_accounting import get_epsilon_gaussian
    except ModuleNotFoundError:
        raise FedgenError("the privacy accountant is not installed: pip install 'fedgen[privacy]'") from None
    # Gaussian mechanisms together are one, with multiplier 1 / sqrt(sum of 1 / multiplier^2): no bound is lost.
    precision = config.dp_noise**-2 + (config.dp_count_noise**-2 if config.dp_count_noise else 0.0)
    together = (max(messages, 1) * precision) ** -0.5
    return {
        "epsilon": float(get_epsilon_gaussian(together, config.dp_delta)),
        "delta": config.dp_delta,
        "messages": messages,
        "unit": "a user's whole data, added or removed",
    }
