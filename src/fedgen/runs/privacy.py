"""The differential privacy of a run: epsilon and delta, by Google's accountant (`dp-accounting`)."""

from typing import Any

from fedgen.config import RunConfig
from fedgen.errors import FedgenError


def guarantee(config: RunConfig, messages: int) -> dict[str, Any] | None:
    """The (epsilon, delta) of a user that sent so many messages; None without noise.

    Each message is a Gaussian mechanism on the user's update and, with `dp_count_noise`, one on its counts. The server
    knows who took part, so there is no amplification by sampling. `epsilon` is against a message that holds nothing of
    the user; `epsilon_replaced` against the message of any other data: two updates of length C are up to 2 C apart, and
    counts of T * B draws up to sqrt(2) T * B, so the multipliers are divided by 2 and sqrt(2).
    """
    if config.dp_noise == 0:
        return None
    try:
        from dp_accounting import get_epsilon_gaussian
    except ModuleNotFoundError:
        raise FedgenError("there is no privacy accountant: pip install '.[privacy]' in FedGen's folder") from None

    def epsilon(apart: float, counts_apart_squared: float) -> float:
        # Gaussian mechanisms together are one, with multiplier 1 / sqrt(sum of 1 / multiplier^2): no bound is lost.
        counts = counts_apart_squared * config.dp_count_noise**-2 if config.dp_count_noise else 0.0
        precision = (apart / config.dp_noise) ** 2 + counts
        return float(get_epsilon_gaussian((max(messages, 1) * precision) ** -0.5, config.dp_delta))

    return {
        "epsilon": epsilon(1.0, 1.0),
        "epsilon_replaced": epsilon(2.0, 2.0),
        "delta": config.dp_delta,
        "messages": messages,
        "unit": "a user's whole data, present or absent (epsilon) or replaced by any other (epsilon_replaced)",
    }
