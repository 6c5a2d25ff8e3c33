"""What an experiment is: a grid of rows and columns, read from the TOML files in `experiments/`.

A cell of the grid is a configuration with one algorithm: the experiment's settings, then its row's, then
its column's, then what the row says for that column. Published numbers are in the rows.

A search has values to try in place of numbers (`over`, of the experiment, its rows and its columns); each column stands
for as many configurations as `trials` says, the same number for each algorithm.
"""

import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fedgen.config import RunConfig, resolve
from fedgen.errors import FedgenError, unknown
from fedgen.sweeps.space import Values, combinations

NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fedensemble": "FedEnsemble",
    "feddistill": "FedDistill",
    "feddistill+": "FedDistill+",
    "feddfusion": "FedDFusion",
    "fedgen": "FedGen",
    "scaffold": "SCAFFOLD",
    "feddyn": "FedDyn",
    "fedopt": "FedOpt",
    "moon": "MOON",
    "fedntd": "FedNTD",
    "fedlc": "FedLC",
    "fedsam": "FedSAM",
    "ccvr": "CCVR",
    "fedmoments": "class moments",
    "fedproto": "FedProto",
    "fedrep": "FedRep",
    "ditto": "Ditto",
}
Settings = dict[str, Any]
Over = dict[str, tuple[Any, ...]]  # the values of each setting that are tried; none: as it is


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Strict):
    """A column: an algorithm, and its settings."""

    algorithm: str
    name: str = ""  # the algorithm's, where there is one column of it
    label: str = ""
    settings: Settings = {}
    over: Over = {}

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
    over: Over = {}
    published: dict[str, tuple[float, float] | Literal["not reached"]] = {}  # mean and std, by column
    target: float | None = None  # the accuracy of "rounds to target"
    over_in: dict[str, Over] = {}  # the values of one column in this row only
    chosen_with: str = ""  # the row of a search whose configurations it has, too: the best is that of both
    x: float | None = None  # where the row lies in a figure over rows


class Figure(_Strict):
    """A figure of some rows: their accuracies over x, or (of one row) learning curves, over rounds or bytes."""

    name: str
    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...] = ()  # all, where none is named
    kind: Literal["curves", "bytes", "lines"] = "curves"
    x_label: str = "round"
    log: bool = False
    whole: bool = False  # whether it shows what lies far below the best, too


class Experiment(_Strict):
    """A table or a figure of the paper, or what it lacks."""

    name: str
    title: str
    about: str
    kind: Literal["grid", "prototype", "labels", "theory"] = "grid"
    metric: Literal["accuracy", "matching", "rounds", "time"] = "accuracy"
    also: tuple[Literal["accuracy", "authors"], ...] = ("authors",)  # further scores that have a table
    ranks: bool = False  # whether the columns are ranked over all rows
    presets: tuple[str, ...] = ("paper", "reference", "tuned")  # those it can be run with, the default first
    settings: Settings = {}
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    figures: tuple[Figure, ...] = ()
    baseline: str = "fedavg"  # the column, or else the row, that differences are taken to
    over: Over = {}
    trials: int = 0  # configurations that a search tries of each column
    quick_rows: tuple[str, ...] = ()
    quick_columns: tuple[str, ...] = ()  # all, where none is named
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _inherited(cls, values: dict[str, Any]) -> dict[str, Any]:
        """A row that chooses with another tries what that one does."""
        rows = values.get("rows", ())
        named = {row.get("name"): row for row in rows}

        def tried(row: Mapping[str, Any]) -> dict[str, Any]:
            first = named.get(row.get("chosen_with"), {})
            return {key: first[key] for key in ("over", "over_in") if key in first}

        return {**values, "rows": [{**tried(row), **row} for row in rows]}

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
            if figure.kind != "lines" and len(figure.rows) != 1:
                raise ValueError(f"figure {figure.name}: learning curves are of one row")
            if figure.kind == "lines" and any(self.row(name).x is None for name in figure.rows):
                raise ValueError(f"figure {figure.name}: each of its rows needs an x")
        apart = [row.name for row in self.rows if not row.chosen_with]
        _known("row that chooses", tuple(row.chosen_with for row in self.rows if row.chosen_with), apart)
        for row in self.rows if self.trials else ():
            for column in self.columns:
                if self.tried(row, column) != self.tried(self.row(row.chosen_with or row.name), column):
                    raise ValueError(f"{column.name} has other configurations in {row.name} than in {row.chosen_with}")
                if (number := len(self.tried(row, column))) != self.trials:
                    raise ValueError(f"{column.name} in {row.name} has {number} configurations, not {self.trials}")
        return self

    def tried(self, row: Row, column: Column) -> list[Settings]:
        """What a search tries: every combination of the values, or `trials` of them drawn at random."""
        over = self.values(row, column)
        return combinations([Values(key, values) for key, values in over.items() if values], self.trials, 0)

    def values(self, row: Row, column: Column) -> Over:
        """The values of each setting that a search tries."""
        return {**self.over, **row.over, **column.over, **row.over_in.get(column.name, {})}

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
    "stragglers", "curves", "labels", "prototype", "controls", "ablation", "choices", "feddfusion", "tuning",
    "tuning-personal", "neighbours", "long-training", "moments", "conditions", "one-shot", "personal", "theory",
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


def chosen(
    experiment: Experiment, row_names: Sequence[str] = (), column_names: Sequence[str] = (), *, quick: bool = False
) -> Experiment:
    """The experiment with these rows and columns only (all, where none is named; `mnist-*` names several).

    `quick` takes the quick ones where none is named. The baseline is always among them.
    """
    all_rows, all_columns = [row.name for row in experiment.rows], [column.name for column in experiment.columns]
    some_rows = _matching(f"row of {experiment.name}", row_names, all_rows)
    some_columns = _matching(f"column of {experiment.name}", column_names, all_columns)
    rows = some_rows or (quick and experiment.quick_rows) or all_rows
    if not quick:  # what is chosen by several rows needs all of them
        chosen_by = {row.chosen_with or row.name for row in experiment.rows if row.name in rows}
        rows = [row.name for row in experiment.rows if (row.chosen_with or row.name) in chosen_by]
    columns = some_columns or (quick and experiment.quick_columns) or all_columns
    wanted, names = (
        tuple(name for name in every if name in (*some, experiment.baseline))
        for every, some in ((all_rows, rows), (all_columns, columns))
    )
    shown = tuple(
        figure.model_copy(update={"columns": tuple(name for name in figure.columns or names if name in names)})
        for figure in experiment.figures
        if set(figure.rows) <= set(wanted)
    )
    kept = {
        "rows": tuple(row for row in experiment.rows if row.name in wanted),
        "columns": tuple(column for column in experiment.columns if column.name in names),
    }
    return experiment.model_copy(update={**kept, "figures": shown, "quick_rows": ()})


def expanded(experiment: Experiment) -> Experiment:
    """A search as a grid with a column for each configuration; the values are in the rows, where they may differ."""
    if not experiment.trials:
        return experiment
    columns = tuple(
        Column(
            algorithm=column.algorithm,
            name=trial_name(column, number),
            label=f"{column.label} {number + 1}",
            settings=column.settings,
        )
        for column in experiment.columns
        for number in range(experiment.trials)
    )
    rows = []
    for row in experiment.rows:
        tried = {
            trial_name(column, number): settings
            for column in experiment.columns
            for number, settings in enumerate(experiment.tried(row, column))
        }
        rows.append(row.model_copy(update={"in_column": tried}))
    baseline = trial_name(experiment.column(experiment.baseline), 0)
    return experiment.model_copy(update={"columns": columns, "rows": tuple(rows), "baseline": baseline})


def trial_name(column: Column, number: int) -> str:
    """The name of the column that a configuration of a search has."""
    return f"{column.name}-{number + 1:02}"


def _matching(kind: str, patterns: Sequence[str], valid: Sequence[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for pattern in patterns:
        some = [name for name in valid if fnmatchcase(name, pattern)]
        if not some:
            raise unknown(kind, pattern, valid)
        found |= dict.fromkeys(some)
    return tuple(found)


def _known(kind: str, names: tuple[str, ...], valid: list[str] | tuple[str, ...]) -> None:
    for name in names:
        if name not in valid:
            raise ValueError(f"no {kind} is named {name}; there are {', '.join(valid)}")
