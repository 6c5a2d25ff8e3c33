"""Curves over rounds: the mean over seeds, and the range they span."""

from collections.abc import Mapping, Sequence

from fedgen.runs.scores import Record, headline

Point = tuple[float, float, float, float]  # x, mean, lowest, highest

HEADLINE = "headline"
# What the evaluations are called in figures. Others, such as an algorithm's own losses, go by their names.
TITLES = {
    HEADLINE: "accuracy, full test set",
    "accuracy": "accuracy, global models only",
    "accuracy_users": "accuracy, users' own models only",
    "accuracy_seen_labels": "accuracy, labels a user trained on",
    "accuracy_authors": "accuracy, the authors' slices of labels a user trained on",
    "accuracy_matching": "accuracy, each user's own label distribution",
    "train_loss": "training loss",
}
_OF_SCORE = {
    "accuracy": (HEADLINE,),
    "authors": ("accuracy_authors", "accuracy_seen_labels"),  # the second in a federation, and in old records
    "seen": ("accuracy_seen_labels",),
    "matching": ("accuracy_matching",),
}
_NOT_METRICS = {"algorithm", "seed", "round", "diverged_at", "headline", "stopped"}


def shown_first(score: str, records: Sequence[Record]) -> str:
    """The metric of a run's score, as far as its evaluations have it."""
    *better, last = _OF_SCORE[score]
    return next((metric for metric in better if any(r.get(metric) is not None for r in records)), last)


def spread(curves: Sequence[Sequence[Sequence[float]]]) -> list[Point]:
    """The mean and the range of several curves [point, (x, y)], where all of them have a value.

    A curve that ends early (a seed that diverged) ends the mean too: it would jump otherwise.
    """
    values = [{point[0]: point[1] for point in curve} for curve in curves]
    common = sorted(set.intersection(*map(set, values))) if values else []
    at = {x: [curve[x] for curve in values] for x in common}
    return [(x, sum(ys) / len(ys), min(ys), max(ys)) for x, ys in at.items()]


def metrics_of(records: Sequence[Record]) -> list[str]:
    """The metrics that some evaluation has a value of, the usual ones first."""
    present = {key for r in records for key, value in r.items() if value is not None} - _NOT_METRICS
    if present & {"accuracy", "accuracy_users"}:
        present.add(HEADLINE)
    return [*(key for key in TITLES if key in present), *sorted(present - set(TITLES))]


def curve_of(records: Sequence[Record], metric: str) -> list[list[float]]:
    """One metric over the rounds, from the evaluations of one algorithm and seed."""
    good = [r for r in records if "diverged_at" not in r]
    if metric == HEADLINE:  # a federation's server may have nothing to test with
        return [[r["round"], value] for r in good if (value := headline(r)) is not None]
    return [[r["round"], r[metric]] for r in good if r.get(metric) is not None]


def all_spreads(records: Mapping[int, Sequence[Record]], metrics: Sequence[str]) -> dict[str, list[Point]]:
    """Each metric's points over the seeds."""
    return {metric: spread([curve_of(one, metric) for one in records.values()]) for metric in metrics}
