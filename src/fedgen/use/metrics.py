"""How good predictions are: accuracy, precision, recall, F1, AUC, the confusion matrix and calibration."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS = 15  # of confidence, for the calibration


@dataclass(frozen=True)
class ClassScores:
    """One class against all others; in percent, but for the AUC. None where it is not defined."""

    name: str
    samples: int
    precision: float | None  # of the samples said to be of the class, how many are
    recall: float | None  # of the samples of the class, how many are found
    f1: float | None
    auc: float | None  # the probability that a sample of the class has a higher score for it than another has


@dataclass(frozen=True)
class Bin:
    """Predictions of similar confidence."""

    low: float
    high: float
    samples: int
    confidence: float  # the mean, in percent
    accuracy: float  # in percent


@dataclass(frozen=True)
class Scores:
    """All numbers of one model on one set of samples; in percent, but for the AUC."""

    samples: int
    accuracy: float
    f1: float | None  # the mean over the classes that have samples, as for the AUC
    auc: float | None
    ece: float  # expected calibration error
    classes: tuple[ClassScores, ...]
    confusion: tuple[tuple[int, ...], ...]  # [true label][predicted label]
    reliability: tuple[Bin, ...]  # the bins that have samples


def scores_of(probabilities: NDArray[Any], labels: NDArray[Any], names: tuple[str, ...]) -> Scores:
    """The numbers for probabilities [sample, class] and labels [sample]."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(labels)
    predicted = np.argmax(p, axis=1)
    matrix = confusion_matrix(y, predicted, len(names))
    each = tuple(_class_scores(name, label, matrix, p, y) for label, name in enumerate(names))
    bins = reliability(p, y)
    present = [one for one in each if one.samples]
    areas = [one.auc for one in present if one.auc is not None]
    return Scores(
        samples=len(y),
        accuracy=float(100 * np.mean(predicted == y)),
        f1=float(np.mean([one.f1 for one in present])),
        auc=float(np.mean(areas)) if areas else None,
        ece=calibration_error(bins),
        classes=each,
        confusion=tuple(tuple(int(n) for n in row) for row in matrix),
        reliability=bins,
    )


def confusion_matrix(labels: NDArray[Any], predicted: NDArray[Any], classes: int) -> NDArray[np.int64]:
    """How many samples of each label [true] were given each label [predicted]."""
    flat = np.bincount(labels.astype(np.int64) * classes + predicted, minlength=classes * classes)
    return flat.reshape(classes, classes)


def auc(scores: NDArray[Any], positive: NDArray[np.bool_]) -> float | None:
    """The area under the ROC curve: the rank-sum statistic, with the mean rank for ties. None with one kind only."""
    n, m = int(positive.sum()), int((~positive).sum())
    if n == 0 or m == 0:
        return None
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the highest rank of each value
    ranks = last - (counts - 1) / 2
    return float((ranks[inverse][positive].sum() - n * (n + 1) / 2) / (n * m))


def reliability(probabilities: NDArray[Any], labels: NDArray[Any], bins: int = BINS) -> tuple[Bin, ...]:
    """Predictions by their confidence, in bins of equal width; a bin has its upper end, not its lower."""
    confidence = np.max(probabilities, axis=1)
    right = np.argmax(probabilities, axis=1) == labels
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    found = []
    for number in range(bins):
        inside = place == number
        if inside.any():
            mean, share = 100 * confidence[inside].mean(), 100 * right[inside].mean()
            found.append(Bin(number / bins, (number + 1) / bins, int(inside.sum()), float(mean), float(share)))
    return tuple(found)


def calibration_error(bins: tuple[Bin, ...]) -> float:
    """The mean distance between confidence and accuracy, over the samples."""
    total = sum(one.samples for one in bins)
    return float(sum(one.samples * abs(one.confidence - one.accuracy) for one in bins) / total)


def _class_scores(name: str, label: int, matrix: NDArray[np.int64], p: NDArray[Any], y: NDArray[Any]) -> ClassScores:
    hits, said, there = int(matrix[label, label]), int(matrix[:, label].sum()), int(matrix[label].sum())
    return ClassScores(
        name,
        there,
        precision=100 * hits / said if said else None,
        recall=100 * hits / there if there else None,
        f1=200 * hits / (said + there) if said + there else None,
        auc=auc(p[:, label], y == label),
    )
