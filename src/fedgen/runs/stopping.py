"""When a run ends early, and which of its evaluations is the best: decided by its records alone.

A run that is resumed, or computed beside others in one program, decides the same.
"""

from collections.abc import Sequence

from fedgen.runs.scores import Record, authors_at, headline

_OF_SCORE = {"seen": "accuracy_seen_labels", "matching": "accuracy_matching"}


def score_at(record: Record, score: str) -> float | None:
    """An evaluation's value of the run's score."""
    if "diverged_at" in record:
        return None
    if score == "authors":
        return authors_at(record)
    return record.get(_OF_SCORE[score]) if score in _OF_SCORE else headline(record)


def best_of(records: Sequence[Record], score: str) -> Record | None:
    """The evaluation with the highest score, the first of several."""
    scored = [r for r in records if score_at(r, score) is not None]
    return max(scored, key=lambda r: (score_at(r, score), -r["round"])) if scored else None


def out_of_patience(records: Sequence[Record], score: str, patience: int) -> bool:
    """Whether the last `patience` evaluations brought no better score than one before them; never with 0."""
    best = best_of(records, score)
    if not patience or best is None:
        return False
    return sum(r["round"] > best["round"] for r in records) >= patience


def stopped_at(records: Sequence[Record]) -> int | None:
    """The round at which a run was ended early, if it was."""
    return next((r["round"] for r in records if "stopped" in r), None)
