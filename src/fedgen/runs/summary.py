"""What summary.json holds: the numbers of each algorithm and seed, and where they were computed."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.config import RunConfig
from fedgen.runs.cohort import draw_cohort
from fedgen.runs.privacy import guarantee
from fedgen.runs.scores import Record, result, table
from fedgen.runs.stopping import best_of, score_at, stopped_at
from fedgen.version import __version__


def result_row(
    algorithm: str, seed: int, records: Sequence[Record], config: RunConfig, timing: Mapping[str, float], messages: int
) -> Record:
    """A summary's numbers of one algorithm and seed; `messages` is the most that any user sent."""
    stopped, privacy = stopped_at(records), guarantee(config, messages)
    rounds = config.rounds if stopped is None else stopped
    diverged = next((r["diverged_at"] for r in records if "diverged_at" in r), None)
    best = best_of(records, config.score) if config.keeps_best else None
    return {
        "algorithm": algorithm,
        "seed": seed,
        "rounds": rounds if diverged is None else diverged,
        "diverged_at": diverged,
        **result([r for r in records if "diverged_at" not in r], rounds),
        **{key: timing[key] for key in ("seconds_compile", "seconds_train", "bytes_up", "bytes_down")},
        **({} if stopped is None else {"stopped_at": stopped}),
        **({"best": {"round": best["round"], "score": score_at(best, config.score)}} if best else {}),
        **({"privacy": privacy} if privacy else {}),
    }


def most_messages(config: RunConfig, seed: int, stopped: int | None = None) -> int:
    """How many messages the user sends that is drawn most often, in all rounds or until the run was stopped."""
    key, rounds = jax.random.key(seed), jnp.arange(config.rounds if stopped is None else stopped)
    cohorts = jax.vmap(lambda round: draw_cohort(key, round, config.users, config.active))(rounds)
    return int(np.bincount(np.asarray(cohorts).ravel()).max())


def summary_of(config: RunConfig, results: Sequence[Record], class_names: Sequence[str]) -> dict[str, Any]:
    """What summary.json holds."""
    return {
        "version": __version__,
        "config": config.model_dump(mode="json"),
        "device": device(),
        "class_names": list(class_names),
        "results": list(results),
        "table": table(results, config.score),
    }


def device() -> Mapping[str, Any]:
    """The devices that JAX uses."""
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "kind": devices[0].device_kind,
        "count": len(devices),
        "jax": jax.__version__,
    }
