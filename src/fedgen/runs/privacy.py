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

    def epsilon(apart: float, counts_apart_squared: float) -> float:
        # Gaussian mechanisms together are one, with multiplier 1 / sqrt(sum of 1 / multiplier^2): no bound is lost.
        counts = counts_apart_squared * config.dp_count_noise**-2 if config.dp_count_noise else 0.0
        precision = (apart / config.dp_noise) ** 2 + counts
        return _gaussian_epsilon((max(messages, 1) * precision) ** -0.5, config.dp_delta)

    return {
        "epsilon": epsilon(1.0, 1.0),
        "epsilon_replaced": epsilon(2.0, 2.0),
        "delta": config.dp_delta,
        "messages": messages,
        "unit": "a user's whole data, present or absent (epsilon) or replaced by any other (epsilon_replaced)",
    }


def _gaussian_epsilon(multiplier: float, delta: float) -> float:
    """The least epsilon of a Gaussian mechanism: where its exact delta, which falls with epsilon, is the wanted one.

    Of the accountant only what its version 0.5 has, too: pfl, with which the benchmark compares, takes no later one.
    """
    try:
        from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
    except ImportError as error:
        raise FedgenError(
            f"there is no privacy accountant ({error}): pip install '.[privacy]' in FedGen's folder"
        ) from error
    from scipy.optimize import brentq

    loss = GaussianPrivacyLoss(multiplier)

    def excess(epsilon: float) -> float:
        return loss.get_delta_for_epsilon(epsilon) - delta

    low, high = 0.0, 1.0
    if excess(low) <= 0:
        return 0.0
    while excess(high) > 0:
        low, high = high, 10 * high
    return float(brentq(excess, low, high, xtol=1e-12))
