"""What an experiment is: a grid of rows and columns, read from the TOML files in `experiments/`.

A cell of the grid is a configuration with one algorithm: the experiment's settings, then its row's, then
its column's, then what the row says for that column. Published numbers are in the rows.
"""

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedgen.config import RunConfig, resolve
from fedgen.errors import FedgenError, unknown

NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedensemble": "FedEnsemble",
    "feddistill": "FedDistill",
    "feddistill+": "FedDistill+",
    "feddfusion": "FedDFusion",
    "fedgen": "FedGen",
}
Settings = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Strict):
    """A column: an algorithm, and its settings."""

    algorithm: str
    name: str = ""  # the algorithm's, where there is one column of it
    label: str = ""
    settings: Settings = {}

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: dict[str, Any]) -> dict[str, Any]:
        name = values.get("name", values.get("algorithm", ""))
        return {**values, "name": name, "label": values.get("label", NAMES.get(name, name))}


class Row(_Strict):
    """A row: a setting of the data, with what the paper printed for it."""

    name: str
    label: str
    settings: Settings = {}
    in_column: dict[str, Settings] = {}  # further settings, by column
    published: dict[str, tuple[float, float] | Literal["not reached"]] = {}  # mean and std, by column
    target: float | None = None  # the accuracy of "rounds to target"
    x: float | None = None  # where the row lies in a figure over rows


class Figure(_Strict):
    """A figure of some rows: their accuracies over x, or (of one row) learning curves."""

    name: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()  # all, where none is named
    kind: Literal["curves", "lines"] = "curves"
    x_label: str = "round"
    log: bool = False


class Experiment(_Strict):
    """A table or a figure of the paper, or what it lacks."""

    name: str
    title: str
    about: str
    kind: Literal["grid", "prototype", "labels"] = "grid"
    metric: Literal["accuracy", "rounds", "time"] = "accuracy"
    presets: tuple[str, ...] = ("paper", "reference", "tuned")  # those it can be run with, the default first
    settings: Settings = {}
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    figures: tuple[Figure, ...] = ()
    baseline: str = "fedavg"  # the column, or else the row, that differences are taken to
    quick_rows: tuple[str, ...] = ()
    quick_columns: tuple[str, ...] = ()  # all, where none is named
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Experiment":
        rows, columns = [r.name for r in self.rows], [c.name for c in self.columns]
        for kind, names in (("row", rows), ("column", columns)):
            if len(set(names)) < len(names):
                raise ValueError(f"a {kind} is named twice")
        for row in self.rows:
            _known("column", (*row.published, *row.in_column), columns)
            if self.metric == "rounds" and row.target is None:
                raise ValueError(f"row {row.name} needs a target")
        _known("row", self.quick_rows, rows)
        _known("column", self.quick_columns, columns)
        if self.kind == "grid":
            _known("row or column", (self.baseline,), (*rows, *columns))
            if not self.quick_rows:
                raise ValueError("quick_rows says which rows --quick runs")
        for figure in self.figures:
            _known("row", figure.rows, rows)
            _known("column", figure.columns, columns)
            if figure.kind == "curves" and len(figure.rows) != 1:
                raise ValueError(f"figure {figure.name}: learning curves are of one row")
            if figure.kind == "lines" and any(self.row(name).x is None for name in figure.rows):
                raise ValueError(f"figure {figure.name}: each of its rows needs an x")
        return self

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def column(self, name: str) -> Column:
        """The column of that name."""
        return next(column for column in self.columns if column.name == name)

    def config(self, row: Row, column: Column | None, weak: Settings, strong: Settings) -> RunConfig:
        """The configuration of a cell (or of a row); `weak` and `strong` go below and above what is said here."""
        own = {**self.settings, **row.settings}
        if column is not None:
            own |= {**column.settings, **row.in_column.get(column.name, {}), "algorithms": [column.algorithm]}
        # The paper's users are honest, and its server has no bound on what they send.
        return resolve({"max_update": 0.0, **weak, **own, **strong})


def experiments() -> dict[str, Experiment]:
    """All shipped experiments, by name, in the order in which they are shown."""
    folder = files("fedgen.paper") / "experiments"
    found = [read_experiment(file.name[:-5], file.read_text(encoding="utf-8")) for file in folder.iterdir()]
    return {e.name: e for e in sorted(found, key=lambda e: (_ORDER.index(e.name) if e.name in _ORDER else 99, e.name))}


_ORDER = (
    "overview", "partial-sharing", "generator-structure", "synthetic-batch", "rounds-to-target", "heterogeneity",
    "stragglers", "curves", "labels", "prototype", "controls", "ablation", "choices", "tuning",
)  # fmt: skip


def experiment(name: str) -> Experiment:
    """The shipped experiment of that name."""
    known = experiments()
    if name not in known:
        raise unknown("experiment", name, {**known, "all": None, "list": None, "page": None})
    return known[name]


def read_experiment(name: str, text: str) -> Experiment:
    """An experiment from its TOML text."""
    try:
        return Experiment(name=name, **tomllib.loads(text))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise FedgenError(f"experiment {name}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise FedgenError(f"experiment {name}: {where + ': ' if where else ''}{first['msg']}") from None


def chosen_rows(experiment: Experiment, names: tuple[str, ...], quick: bool) -> Experiment:
    """The experiment with these rows only (all, where none is named); `quick` takes the quick ones, and columns."""
    valid: Mapping[str, Row] = {row.name: row for row in experiment.rows}
    for name in names:
        if name not in valid:
            raise unknown(f"row of {experiment.name}", name, valid)
    wanted = names or (quick and experiment.quick_rows) or tuple(valid)
    if experiment.baseline in valid and experiment.baseline not in wanted:
        wanted = (experiment.baseline, *wanted)
    rows = tuple(row for row in experiment.rows if row.name in wanted)
    kept = {experiment.baseline, *experiment.quick_columns} if quick and experiment.quick_columns else None
    columns = tuple(column for column in experiment.columns if kept is None or column.name in kept)
    names = tuple(column.name for column in columns)
    shown = tuple(
        figure.model_copy(update={"columns": tuple(name for name in figure.columns or names if name in names)})
        for figure in experiment.figures
        if set(figure.rows) <= set(wanted)
    )
    return experiment.model_copy(update={"rows": rows, "columns": columns, "figures": shown, "quick_rows": ()})


def _known(kind: str, names: tuple[str, ...], valid: list[str] | tuple[str, ...]) -> None:
    for name in names:
        if name not in valid:
            raise ValueError(f"no {kind} is named {name}; there are {', '.join(valid)}")
