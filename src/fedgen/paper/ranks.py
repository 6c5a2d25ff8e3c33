"""Ranks of algorithms over several settings, with their uncertainty: seeds are drawn anew with replacement."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.grid.store import rounded
from fedgen.paper.spec import Experiment

DRAWS = 2000


def rank_all(experiment: Experiment, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Each column's mean rank over the rows (1: the best) with its 95 % interval, and how often it is the best.

    Rows that are not complete are left out. A run that diverged is behind all that did not.
    """
    names = [column.name for column in experiment.columns]
    rows = [row.name for row in experiment.rows if all("values" in entries[row.name][name] for name in names)]
    if not rows:
        return {"rows": [], "columns": {}}
    scores = [_scores(entries[row], names) for row in rows]
    observed = np.mean([mean_ranks(row.mean(axis=1)) for row in scores], axis=0)
    draw = np.random.default_rng(0)
    drawn = np.empty((DRAWS, len(names)))
    best = np.zeros(len(names))
    for number in range(DRAWS):
        # A seed has its own partition, which all columns share: they are drawn together.
        ranks = [mean_ranks(row[:, draw.integers(row.shape[1], size=row.shape[1])].mean(axis=1)) for row in scores]
        drawn[number] = np.mean(ranks, axis=0)
        best[np.argmin(drawn[number])] += 1
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    columns = {
        name: {"rank": rounded(float(observed[i])), "interval": rounded([float(low[i]), float(high[i])]),
               "best": rounded(float(best[i] / DRAWS))}
        for i, name in enumerate(names)
    }  # fmt: skip
    return {"rows": rows, "columns": columns}


def mean_ranks(means: NDArray[Any]) -> NDArray[Any]:
    """The ranks of these means, the highest first; equal ones share the mean of theirs."""
    higher = np.sum(means[:, None] < means[None, :], axis=1)
    equal = np.sum(means[:, None] == means[None, :], axis=1)
    return higher + (equal + 1) / 2


def _scores(entries: Mapping[str, Any], names: list[str]) -> NDArray[Any]:
    """[column, seed]; below everything where a run diverged."""
    return np.array([[-1e6 if v is None else v for v in entries[name]["values"].values()] for name in names])
