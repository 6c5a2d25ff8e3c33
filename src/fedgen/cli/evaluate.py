"""The command `fedgen evaluate`."""

from typing import Annotated, get_args

import typer
from rich.console import Console

from fedgen.cli.chosen import AlgorithmOption, BestOption, RunArgument, SeedOption, UserOption
from fedgen.cli.console import console_for_output
from fedgen.errors import FedgenError

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

    from fedgen.full_report import write_report
    from fedgen.report.evaluations import by_class, overall
    from fedgen.report.terminal import terminal
    from fedgen.runs.folder import RunFolder
    from fedgen.use.evaluation import Part, entry_of, keep, labelled
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
        entry = entry_of(model, data, scores)
        console.print(*terminal(overall([entry]), console.width, f"{str(model).strip('<>')}, on {data.name}"))
        if len(scores.classes) <= MOST_CLASSES:
            console.print(*terminal(by_class(entry), console.width))
        else:
            console.print(f"{len(scores.classes)} classes: their numbers are in evaluation.json")
    with RunFolder.open(run, patience=PATIENCE) as folder:  # after the numbers: they are there even if it is in use
        figures = keep(folder, model, data, scores)
        write_report([run], run / "report.html")
    if json_:
        return
    shown = ", ".join(str(figure.relative_to(run)) for figure in figures if figure.suffix == ".png")
    console.print(f"In {run}: evaluation.json, report.html, {shown}", soft_wrap=True)
