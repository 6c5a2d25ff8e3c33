"""Models that `fedgen evaluate` measured, on the page and as figures: tables, confusion matrices, calibration."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedgen.errors import FedgenError
from fedgen.files import read_json
from fedgen.report.charts import lines, series
from fedgen.report.figures import new_figure
from fedgen.report.parts import Chart, Section
from fedgen.report.styles import LIGHT, style_of
from fedgen.report.table import Cell, Column, Number, Table, Text
from fedgen.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WRITTEN = 25  # classes up to which the confusion matrix's cells have numbers in them
Entry = Mapping[str, Any]  # of evaluation.json


def sections(folders: Sequence[Path]) -> list[Section]:
    """A section for each dataset on which models of a run were measured."""
    found: list[Section] = []
    for folder in folders:
        file = RunFolder(folder).evaluation_file
        entries = read_json(file, "delete it and evaluate again")["evaluations"] if file.exists() else []
        for dataset in dict.fromkeys(entry["dataset"] for entry in entries):
            own = [entry for entry in entries if entry["dataset"] == dataset]
            try:
                found.append(_section(f"evaluation-{len(found) + 1}", dataset, own, folder, len(folders) > 1))
            except (KeyError, TypeError, ValueError) as error:
                raise FedgenError(f"{file} is not as this version writes it; delete it and evaluate again") from error
    return found


def _section(name: str, dataset: str, entries: Sequence[Entry], folder: Path, several: bool) -> Section:
    titles = [title_of(entry) for entry in entries]
    place = f", {folder}" if several else ""
    return Section(
        name,
        f"Models measured on {dataset}{place}",
        f"{entries[0]['samples']:,} samples. Precision, recall and F1 of each class are in `evaluation.json`.",
        tables=[overall(entries)],
        charts=[_matrix(name, entries, titles), _reliability(name, entries, titles)],
    )


def title_of(entry: Entry) -> str:
    """Which model it is."""
    user = "" if entry["user"] is None else f", user {entry['user']}"
    return f"{entry['algorithm']}, seed {entry['seed']}{user}{', best' if entry['best'] else ''}"


def overall(entries: Sequence[Entry]) -> Table:
    """A row for each model: how good it is over all classes."""
    columns = [
        Column("model", number=False),
        Column("round", "after how many rounds"),
        Column("samples", "how many it was measured on"),
        Column("accuracy, %"),
        Column("F1, %", "the mean over the classes"),
        Column("AUC", "each class against the others, the mean over the classes"),
        Column("ECE, %", "expected calibration error: how far confidence and accuracy are apart"),
    ]
    rows: list[list[Cell]] = [
        [
            Text(title_of(entry), style=style_of(entry["algorithm"])),
            Number(entry["round"], form=".0f"),
            Number(entry["samples"], form=",.0f"),
            Number(entry["accuracy"]),
            Number(entry["f1"]),
            Number(entry["auc"], form=".4f"),
            Number(entry["ece"]),
        ]
        for entry in entries
    ]
    return Table(columns, rows)


def by_class(entry: Entry) -> Table:
    """A row for each class: how well one model recognises it, and what it takes it for."""
    columns = [
        Column("class", number=False),
        *map(Column, ("samples", "precision, %", "recall, %", "F1, %", "AUC", "most often taken for")),
    ]
    rows: list[list[Cell]] = []
    for label, one in enumerate(entry["classes"]):
        others = [count if other != label else 0 for other, count in enumerate(entry["confusion"][label])]
        most = max(range(len(others)), key=others.__getitem__)
        confused = f"{entry['classes'][most]['name']} ({others[most]})" if others[most] else ""
        numbers = [Number(one[key]) for key in ("precision", "recall", "f1")]
        samples, auc = Number(one["samples"], form=",.0f"), Number(one["auc"], form=".4f")
        rows.append([Text(one["name"]), samples, *numbers, auc, Text(confused)])
    return Table(columns, rows)


def _matrix(name: str, entries: Sequence[Entry], titles: Sequence[str]) -> Chart:
    names = [one["name"] for one in entries[0]["classes"]]
    panels = {title: entry["confusion"] for entry, title in zip(entries, titles, strict=True)}
    caption = "How many samples of each true label got each label; the colour is the share of the true label's."
    return Chart(f"{name}-confusion", "matrix", "Confusion matrix", caption, {"names": names, "panels": panels})


def _reliability(name: str, entries: Sequence[Entry], titles: Sequence[str]) -> Chart:
    curves = []
    for number, (entry, title) in enumerate(zip(entries, titles, strict=True)):
        points = [[_centre(one), *(one["accuracy"],) * 3] for one in entry["reliability"]]
        curves.append(series(title, style_of(entry["algorithm"], number), {"accuracy": points}))
    centres = sorted({_centre(one) for entry in entries for one in entry["reliability"]})
    perfect = [[x, x, x, x] for x in dict.fromkeys((0.0, *centres, 100.0))]
    curves.append(series("perfectly calibrated", (len(LIGHT) - 1, 1), {"accuracy": perfect}))
    return lines(
        f"{name}-reliability",
        "Reliability",
        "How often predictions of a confidence are right, in bins of confidence.",
        curves,
        x={"x": "confidence, %"},
        y={"accuracy": {"title": "accuracy", "axis": "accuracy, %"}},
        first="accuracy",
    )


def _centre(one: Mapping[str, Any]) -> float:
    """The middle of a bin of confidence, in percent."""
    return round(50 * (one["low"] + one["high"]), 2)


def confusion_figure(confusion: Sequence[Sequence[int]], names: Sequence[str], title: str) -> "Figure":
    """The confusion matrix: the colour is the share of a row, the numbers count samples."""
    counts = np.array(confusion)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(12.0, 3.2 + 0.42 * len(names))
    figure = new_figure(side + 0.6, side)
    axes = figure.add_subplot()
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    every = max(1, len(names) // 40)
    ticks = range(0, len(names), every)
    long = max(map(len, names)) > 3
    axes.set_xticks(ticks, [names[i] for i in ticks], rotation=90 if long else 0)
    axes.set_yticks(ticks, [names[i] for i in ticks])
    axes.set(xlabel="predicted", ylabel="true", title=title)
    if len(names) <= _WRITTEN:
        for i, j in np.argwhere(counts > 0):
            colour = "white" if share[i, j] > 0.55 else "black"
            axes.text(j, i, f"{counts[i, j]}", ha="center", va="center", fontsize=7, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true label's samples")
    return figure


def reliability_figure(bins: Sequence[Mapping[str, Any]], ece: float, title: str) -> "Figure":
    """The reliability diagram: how often predictions of a confidence are right; the dashed line is perfect."""
    figure = new_figure(5.2, 4.4)
    axes = figure.add_subplot()
    centre = [_centre(one) for one in bins]
    width = [100 * (one["high"] - one["low"]) for one in bins]
    axes.bar(centre, [one["accuracy"] for one in bins], width=width, color=LIGHT[0], alpha=0.75, edgecolor="white")
    axes.plot([0, 100], [0, 100], ls="--", color="black", lw=1)
    axes.set(xlabel="confidence, %", ylabel="accuracy, %", xlim=(0, 100), ylim=(0, 100))
    axes.set_title(f"{title}\nECE {ece:.2f} %")
    return figure
