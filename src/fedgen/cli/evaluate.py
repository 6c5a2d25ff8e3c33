"""The command `fedgen evaluate`."""

from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedgen.cli.chosen import AlgorithmOption, BestOption, RunArgument, SeedOption, UserOption
from fedgen.cli.console import console_for_output
from fedgen.errors import FedgenError

if TYPE_CHECKING:
    from fedgen.use.metrics import Scores

console = console_for_output(markup=False)
MOST_CLASSES = 40  # shown one by one
PATIENCE = 20.0  # seconds, in which other measurements of the same run end writing


def evaluate(
    run: RunArgument,
    dataset: Annotated[str | None, typer.Option(help="Labelled data: a name of `fedgen list`, an .npz file (arrays x and y), a .csv or .parquet file with a column of labels, or a folder with a folder of images for each class. Default: the run's own dataset.")] = None,
    part: Annotated[str, typer.Option(metavar="test|train|all", help="Which part of a dataset that has parts.")] = "test",
    algorithm: AlgorithmOption = None,
    seed: SeedOption = None,
    user: UserOption = None,
    best: BestOption = False,
    label: Annotated[str, typer.Option(help="The column of labels in a table. Default: the run's own, or one named label, class, target or y.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON instead of tables.")] = False,
) -> None:  # fmt: skip
    """Measure a trained model on labelled data: accuracy, precision, recall, F1, AUC, confusion, calibration.

    RUN is a run's folder (--out of `fedgen run`). The numbers go to evaluation.json in it, the confusion matrix and the reliability diagram to
    evaluation/ as PNG and SVG, and all of it to report.html.
    """
    import json
    from dataclasses import asdict

    from fedgen.paper.report import write_report
    from fedgen.runs.folder import RunFolder
    from fedgen.use.evaluation import Part, keep, labelled
    from fedgen.use.evaluation import evaluate as measure
    from fedgen.use.loaded import load

    chosen = next((one for one in get_args(Part) if one == part), None)
    if chosen is None:
        raise FedgenError(f"--part must be {', '.join(get_args(Part))}, not {part}")
    loaded = load(run)
    model = loaded.model(algorithm, seed=seed, user=user, best=best)
    data = labelled(loaded, dataset, chosen, label)
    if data.note:
        Console(stderr=True, highlight=False, markup=False).print(f"note: {data.note}", soft_wrap=True)
    scores = measure(model, data)
    if json_:
        console.print(json.dumps(asdict(scores)), soft_wrap=True)
    else:
        console.print(_overall(f"{str(model).strip('<>')}, on {data.name}", scores))
        if len(scores.classes) <= MOST_CLASSES:
            console.print(_by_class(scores))
        else:
            console.print(f"{len(scores.classes)} classes: their numbers are in evaluation.json")
    with RunFolder.open(run, patience=PATIENCE) as folder:  # after the numbers: they are there even if it is in use
        figures = keep(folder, model, data, scores)
        write_report([run], run / "report.html")
    if json_:
        return
    shown = ", ".join(str(figure.relative_to(run)) for figure in figures if figure.suffix == ".png")
    console.print(f"In {run}: evaluation.json, report.html, {shown}", soft_wrap=True)


def _overall(title: str, scores: "Scores") -> Table:
    grid = Table(title=Text(title), title_justify="left")
    numbers = {
        "samples": f"{scores.samples:,}",
        "accuracy, %": _shown(scores.accuracy),
        "F1, % (mean over classes)": _shown(scores.f1),
        "AUC (mean over classes)": _shown(scores.auc, 4),
        "calibration error (ECE), %": _shown(scores.ece),
    }
    for heading in numbers:
        grid.add_column(heading, justify="right")
    grid.add_row(*numbers.values())
    return grid


def _by_class(scores: "Scores") -> Table:
    grid = Table()
    grid.add_column("class")
    for heading in ("samples", "precision, %", "recall, %", "F1, %", "AUC", "most often taken for"):
        grid.add_column(heading, justify="right")
    for label, one in enumerate(scores.classes):
        row = [count if other != label else 0 for other, count in enumerate(scores.confusion[label])]
        worst = max(range(len(row)), key=row.__getitem__)
        confused = f"{scores.classes[worst].name} ({row[worst]})" if row[worst] else ""
        numbers = [_shown(one.precision), _shown(one.recall), _shown(one.f1), _shown(one.auc, 4), confused]
        grid.add_row(Text(one.name), f"{one.samples:,}", *map(Text, numbers))
    return grid


def _shown(value: Any, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
