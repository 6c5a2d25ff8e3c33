"""Predictions as rows, for a table, a CSV file or a JSON file."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.use.classifier import Classifier


class Prediction(NamedTuple):
    """What a model says of one sample."""

    input: str
    label: int
    name: str  # the class's
    probability: float
    probabilities: tuple[float, ...]  # of all classes


def predictions(model: Classifier, names: Sequence[str], x: Any) -> list[Prediction]:
    """The predictions of samples that have these names."""
    found = model.predict_proba(x)
    rows = []
    for name, p in zip(names, found, strict=True):
        label = int(np.argmax(p))
        rows.append(Prediction(name, label, model.class_names[label], float(p[label]), tuple(map(float, p))))
    return rows


def check_target(path: Path) -> None:
    """Refuse a file of another kind before anything is computed."""
    if path.suffix.lower() not in (".csv", ".json"):
        raise FedgenError(f"predictions are written as .csv or .json, not as {path.name}")


def write_predictions(path: Path, rows: Sequence[Prediction], names: Sequence[str]) -> None:
    """Write them as CSV or JSON, as the file's name says."""
    check_target(path)
    if path.suffix.lower() == ".json":
        entries = [{**row._asdict(), "probabilities": dict(zip(names, row.probabilities, strict=True))} for row in rows]
        write_whole(path, (json.dumps(entries, indent=1, ensure_ascii=False) + "\n").encode())
        return
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["input", "label", "class", "probability", *(f"p({name})" for name in names)])
    for row in rows:
        table.writerow([row.input, row.label, row.name, row.probability, *row.probabilities])
    write_whole(path, text.getvalue().encode())
