"""The command line for data: `fedgen data show` and `fedgen data download`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedgen.cli.interrupts import raise_again
from fedgen.cli.settings import takes_settings
from fedgen.config import parse_setting, resolve
from fedgen.data.dataset import Dataset
from fedgen.data.describe import describe
from fedgen.data.download import download as fetch
from fedgen.data.locate import download_folder
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS, OFFERS
from fedgen.errors import FedgenError, unknown
from fedgen.registry import file_name, options_of

app = typer.Typer(help="Look at how data is divided, and fetch datasets.", no_args_is_help=True)
console = Console(highlight=False, markup=False)
MOST_ROWS = 30  # users listed one by one


@app.command()
@takes_settings(
    only=(
        "dataset",
        "data_dir",
        "label",
        "user",
        "user_file",
        "channels",
        "max_value",
        "partition",
        "partition_file",
        "alpha",
        "train_fraction",
        "class_limit",
        "users",
        "seed",
    ),
    lists=("alpha",),
)
def show(
    given: dict[str, Any],
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the partition or the dataset: partition.min_samples=2, dataset.split=balanced. Give it several times for several.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the paper's bubble figure, as PNG and SVG. Default: no figure.")] = None,
) -> None:  # fmt: skip
    """Show how a partition divides the data: a table of the users, and with --out the paper's bubble figure."""
    from fedgen.report.partitions import bubbles
    from fedgen.runs.division import check_finite, divide_all, keep_partition, load_dataset

    raise_again()
    settings = {**given, "seeds": 1, "active": 1, **dict(parse_setting(text) for text in set_ or ())}
    alpha = settings.pop("alpha", None)
    partition_file = settings.get("partition_file")
    alphas: list[Any] = alpha if isinstance(alpha, list) else [alpha]
    if partition_file is not None and len(alphas) > 1:
        raise FedgenError("a partition file holds one partition; give one --alpha with it")
    if len(alphas) > 1 and "alpha" not in options_of(PARTITIONERS[resolve(settings).partition]):
        raise FedgenError("this partition has no alpha, so several of them would all look the same")
    data = None
    panels = {}
    for value in alphas:
        config = resolve({**settings, **({} if value is None else {"alpha": value})})
        data = data or load_dataset(config)
        divisions = divide_all(config, data)
        if data.x_train.dtype != np.uint8:  # of which there may be more than memory holds
            check_finite(data.name, data.x_train[divisions[config.seed].index], data.x_test)
        keep_partition(config, data, divisions)
        counts = divisions[config.seed].labels
        by_alpha = "alpha" in options_of(PARTITIONERS[config.partition])
        title = f"{config.partition}, α = {config.alpha:g}" if by_alpha else config.partition
        panels[title] = counts
        console.print(_table(f"{config.dataset}, {title}, seed {config.seed}", counts, data.class_names))
    if data is not None:
        console.print(_classes(data, panels))
        for note in data.notes:
            console.print(f"note: {note}", soft_wrap=True)
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
        stem = file_name(Path(settings.get("dataset", "mnist")).stem)
        paths = bubbles(panels, out, f"partition-{stem}", data.class_names if data else ())
    except OSError as error:
        raise FedgenError(f"the figure cannot be written into {out}: {error.strerror}") from error
    console.print(f"Figure: {paths[0]} and {paths[1].name}")


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="emnist, celeba, fashion-mnist or cifar10.")],
    data_dir: Annotated[Path | None, typer.Option(help="Where to put the files. Default: $FEDGEN_DATA, or the user's cache.")] = None,
) -> None:  # fmt: skip
    """Fetch a dataset from its official place, with checksums."""
    raise_again()
    if name not in DATASETS:
        raise unknown("dataset", name, OFFERS)
    if name not in OFFERS:
        console.print(f"{name} comes with {DATASETS.package(name) or 'the package'}; there is nothing to download.")
        return
    folder = download_folder(name, str(data_dir or ""))
    paths = fetch(OFFERS[name], folder)
    console.print(f"{name}: {len(paths)} files in {folder}; use it with --dataset {name}")


def _classes(data: Dataset, panels: Mapping[str, NDArray[np.int64]]) -> Table:
    """How many samples of each class there are, and in how many users' hands."""
    table = Table(title="Classes", title_justify="left")
    for name in ("label", "class", "training samples", "test samples"):
        table.add_column(name, justify="left" if name == "class" else "right")
    for title in panels:
        table.add_column("held by users" if len(panels) == 1 else title, justify="right")
    train, test = (np.bincount(y, minlength=data.classes) for y in (data.y_train, data.y_test))
    for label, name in enumerate(data.class_names):
        if label == MOST_ROWS:
            table.add_row("…", f"({data.classes - MOST_ROWS:,} more)")
            break
        held = [f"{counts[:, label].sum():,}" for counts in panels.values()]
        table.add_row(str(label), name, f"{train[label]:,}", f"{test[label]:,}", *held)
    return table


def _table(title: str, counts: NDArray[np.int64], class_names: Sequence[str]) -> Table:
    users = describe(counts)
    table = Table(title=title, title_justify="left", show_footer=True)
    table.add_column("user", "mean", justify="right")
    for name, values, form in (
        ("samples", users.samples, ",.0f"),
        ("labels", users.labels, ".0f"),
        ("effective classes", users.effective, ".2f"),
        ("distance to all", users.distance, ".3f"),
    ):
        mean = format(float(values.mean()), ".1f" if form == ".0f" else form)
        table.add_column(name, mean, justify="right")
    table.add_column("mostly")
    rows = zip(users.samples, users.labels, users.effective, users.distance, strict=True)
    for user, (samples, labels, effective, distance) in enumerate(rows):
        if user == MOST_ROWS:
            table.add_row("…", f"({len(counts) - MOST_ROWS:,} more users)")
            break
        most = int(counts[user].argmax())
        mostly = f"{class_names[most]}, {counts[user, most] / samples:.0%}"
        table.add_row(str(user), f"{samples:,}", str(labels), f"{effective:.2f}", f"{distance:.3f}", mostly)
    return table
