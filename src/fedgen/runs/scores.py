"""From counts of recognised samples to the reported numbers: scores per evaluation, results, the table."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgen.core.settings import Headline

Record = dict[str, Any]
LAST_ROUNDS = 10  # the headline is the mean over the evaluations of these


def scores(
    global_correct: NDArray[Any] | None,
    local_correct: NDArray[Any] | None,
    totals: NDArray[Any],
    seen: NDArray[np.bool_],
) -> Record:
    """Accuracies in percent, from counts per class; `seen` [user, class] says which labels a user trained on.

    For `accuracy_seen_labels` each user is tested on all samples of the labels it holds, with its own model where it
    has one, and these are pooled.
    """
    accuracy = users = None
    if global_correct is not None:
        accuracy = float(100 * global_correct.sum() / totals.sum())
    if local_correct is not None:
        users = float(100 * np.mean(local_correct.sum(axis=1) / totals.sum()))
    each = local_correct if local_correct is not None else global_correct
    assert each is not None, "an algorithm predicts globally, locally, or both"
    tested = np.sum(totals * seen)
    restricted = float(100 * np.sum(each * seen) / tested) if tested else None
    return {"accuracy": accuracy, "accuracy_seen_labels": restricted, "accuracy_users": users}


def matching(
    global_correct: NDArray[Any] | None,
    local_correct: NDArray[Any] | None,
    totals: NDArray[Any],
    held: NDArray[Any],
) -> float:
    """The mean accuracy of the users, each on a test set with its own label distribution, in percent.

    `held` [user, class] counts the users' training samples. Weighting each class's accuracy by it is a test
    share of that distribution without the noise of drawing one. Classes without test samples are left out.
    """
    each = local_correct if local_correct is not None else global_correct
    assert each is not None, "an algorithm predicts globally, locally, or both"
    tested = totals > 0
    rate = np.divide(each, totals, out=np.zeros(np.shape(each)), where=tested)
    weight = held * tested
    users = np.sum(weight * rate, axis=1) / np.maximum(weight.sum(axis=1), 1)
    return float(100 * np.mean(users[weight.sum(axis=1) > 0]))


def slices_of(labels: NDArray[Any], users: int) -> NDArray[np.int32]:
    """Of each sample, in which of `users` equal slices of its label's samples, in their order, it is; the rest: none.

    The authors of FedGen divide the test set so: the first user that holds a label is tested on its first slice, the
    next one on the second. The slices of labels that few users hold stay unused from there on.
    """
    slices = np.full(len(labels), users, np.int32)  # beyond any user's
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        if size := len(rows) // users:
            slices[rows] = np.minimum(np.arange(len(rows)) // size, users)
    return slices


def authors(correct: NDArray[Any], totals: NDArray[Any], seen: NDArray[np.bool_], users: int) -> float | None:
    """The authors' metric in percent: each user on its slices of the labels it holds, all pooled; None: no samples.

    `correct` counts what was recognised in these slices, `seen` [user, class] is of the users that were tested.
    """
    tested = np.sum(seen * (totals // users))
    return float(100 * np.sum(correct) / tested) if tested else None


def authors_at(record: Record) -> float | None:
    """An evaluation's value of the authors' metric; in a federation, and in old records, on all samples of a label."""
    return record.get("accuracy_authors", record.get("accuracy_seen_labels"))


def headline(record: Record) -> float | None:
    """The number that counts of a record or a result: the one it names, else the global model's where there is one.

    Only where the users' own models are what counts, and there is a global one as well, does it name it.
    """
    if "headline" in record:
        return record[record["headline"]]
    value = record.get("accuracy")
    return record.get("accuracy_users") if value is None else value


def named_headline(record: Record, whose: Headline) -> Record:
    """What a record says of its headline: nothing where that is plain."""
    plain = record["accuracy"] is None or record["accuracy_users"] is None or whose == "global"
    return {} if plain else {"headline": "accuracy_users"}


def result(records: Sequence[Record], rounds: int) -> Record:
    """The numbers of one algorithm and seed, from its evaluations."""
    last = [r for r in records if r["round"] > rounds - LAST_ROUNDS]
    # In a real federation nobody may have samples to test on.
    scored = [(r["round"], value) for r in records if (value := headline(r)) is not None]

    def late(key: str) -> float | None:
        values = [r[key] for r in last if r.get(key) is not None]
        return sum(values) / len(values) if values else None

    def best5(values: list[float]) -> float | None:
        top = sorted(values)[-5:]
        return sum(top) / len(top) if top else None

    return {
        "accuracy": late("accuracy"),
        "accuracy_best5": best5([value for _, value in scored]),
        "accuracy_seen_labels": late("accuracy_seen_labels"),
        "accuracy_seen_labels_best5": best5([v for r in records if (v := r["accuracy_seen_labels"]) is not None]),
        "accuracy_authors_best5": best5([v for r in records if (v := authors_at(r)) is not None]),
        "accuracy_users": late("accuracy_users"),
        "accuracy_matching": late("accuracy_matching"),
        "curve": [list(point) for point in scored],
        "curve_seen_labels": [[r["round"], v] for r in records if (v := r["accuracy_seen_labels"]) is not None],
        **({"headline": records[-1]["headline"]} if records and "headline" in records[-1] else {}),
    }


def score_of(row: Record, score: str) -> float | None:
    """The number of a result that the table compares."""
    if row.get("diverged_at"):
        return None
    if score == "authors":
        value = row.get("accuracy_authors_best5", row["accuracy_seen_labels_best5"])
    elif score == "seen":
        value = row["accuracy_seen_labels"]
    elif score == "matching":
        value = row["accuracy_matching"]
    else:
        value = headline(row)
    return None if value is None else float(value)


def table(results: Sequence[Record], score: str) -> list[Record]:
    """Mean and standard deviation over seeds, and the paired difference to FedAvg with its 95 % interval.

    An algorithm of which a seed diverged has no mean: that of the seeds that survived would flatter it.
    """
    by_algorithm: dict[str, dict[int, float | None]] = {}
    for row in results:
        by_algorithm.setdefault(row["algorithm"], {})[row["seed"]] = score_of(row, score)
    baseline = by_algorithm.get("fedavg", {})
    rows = []
    for algorithm, by_seed in by_algorithm.items():
        values = _complete(list(by_seed.values()))
        against = _complete([baseline.get(seed) for seed in by_seed]) if algorithm != "fedavg" else []
        differences = [a - b for a, b in zip(values, against, strict=True)] if values and against else []
        mean, std = mean_and_std(list(by_seed.values()))
        rows.append(
            {
                "algorithm": algorithm,
                "mean": mean,
                "std": std,
                "diff_to_fedavg": float(np.mean(differences)) if differences else None,
                "diff_ci95": mean_interval(differences),
            }
        )
    return rows


def mean_and_std(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """What counts of an algorithm with some settings: over its seeds, and nothing where one has no score.

    The mean of the seeds that survived would flatter it. Tables compare, and settings are chosen, by this mean.
    """
    present = _complete(values)
    mean = float(np.mean(present)) if present else None
    return mean, float(np.std(present, ddof=1)) if len(present) > 1 else None


def _complete(values: Sequence[float | None]) -> list[float]:
    """The values if all are there, else none of them."""
    present = [value for value in values if value is not None]
    return present if len(present) == len(values) else []


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """The 95 % interval of a mean by Student's t; None with fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.stats import t  # slow to import, and needed only here

    half = float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))
    mean = float(np.mean(values))
    return [mean - half, mean + half]
