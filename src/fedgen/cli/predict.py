"""The command `fedgen predict`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from fedgen.cli.chosen import AlgorithmOption, BestOption, RunArgument, SeedOption, UserOption
from fedgen.cli.console import console_for_output

if TYPE_CHECKING:
    from fedgen.use.predictions import Prediction

console = console_for_output(markup=False)
MOST_ROWS = 50  # shown; the file has all


def predict(
    run: RunArgument,
    inputs: Annotated[list[Path], typer.Argument(metavar="INPUT...", help="Images, folders of images, .npz or .npy files (array x), or .csv or .parquet files with a sample in each row; as the run's data was.")],
    algorithm: AlgorithmOption = None,
    seed: SeedOption = None,
    user: UserOption = None,
    best: BestOption = False,
    out: Annotated[Path | None, typer.Option(help="Also write all predictions, with the probability of each class, to this .csv or .json file.")] = None,
    label: Annotated[str, typer.Option(help="The column of a table that is no number of the sample. Default: the run's own, or one named label, class, target or y.")] = "",
) -> None:  # fmt: skip
    """Predict the labels of images or arrays with a trained model.

    RUN is a run's folder (--out of `fedgen run`). An INPUT is an image, a folder of images, an .npz or .npy file (array
    x), or a .csv or .parquet file with a sample in each row. Images are resized to the run's size, and all is
    normalised as in the run.
    """
    from fedgen.use.inputs import columns_of, read_inputs
    from fedgen.use.loaded import load
    from fedgen.use.predictions import check_target, predictions, write_predictions

    if out is not None:
        check_target(out)
    loaded = load(run)
    model = loaded.model(algorithm, seed=seed, user=user, best=best)
    found = read_inputs(inputs, loaded.form, label, columns_of(loaded.config))
    rows = predictions(model, found.names, found.x)
    console.print(str(model).strip("<>"), soft_wrap=True)
    console.print(_table(rows))
    if len(rows) > MOST_ROWS:
        more = "" if out else "; --out writes all"
        console.print(f"{len(rows) - MOST_ROWS:,} more of {len(rows):,}{more}")
    if out is not None:
        write_predictions(out, rows, model.class_names)
        console.print(f"Predictions: {out}", soft_wrap=True)


def _table(rows: "Sequence[Prediction]") -> Table:
    grid = Table()
    grid.add_column("input", overflow="fold")
    grid.add_column("label")
    grid.add_column("probability", justify="right")
    for row in rows[:MOST_ROWS]:
        grid.add_row(Text(row.input), Text(row.name), f"{row.probability:.4f}")
    return grid
