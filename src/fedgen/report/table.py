"""A table of typed cells: built once from results, then rendered for the terminal, for Markdown or for the page."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedgen.report.styles import Style

ABSENT = "–"


@dataclass(frozen=True)
class Text:
    """A cell of words: a row's name, or a note."""

    text: str
    order: str = ""  # what the page sorts by, where not by the text
    style: Style | None = None  # of its curve


@dataclass(frozen=True)
class Difference:
    """How far a number is from another one."""

    value: float | None
    interval: Sequence[float] | None = None  # of 95 %
    less_is_better: bool = False
    alike: bool = True  # of one metric and the same data, so that it means better or worse
    repeated: bool = True  # False: of a single seed, which says nothing of chance


@dataclass(frozen=True)
class Number:
    """A cell with a number."""

    value: float | None
    std: float | None = None
    form: str = ".2f"
    missing: str = ABSENT  # the text shown without a value
    published: "Number | None" = None  # what others printed for it
    difference: Difference | None = None  # to the published, or to what the table's title says


Cell = Text | Number | Difference


@dataclass(frozen=True)
class Column:
    """A table's column."""

    title: str
    hint: str = ""  # what it means; on the page also the name of a column without a title
    number: bool = True
    optional: int = 0  # a narrow terminal leaves out the highest first, and never one of 0


@dataclass(frozen=True)
class Table:
    """A table; several of one subject have titles to choose by."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    about: str = ""  # what its numbers are
    note: str = ""  # what a reader of this table alone must know


def without_empty(table: Table) -> Table:
    """The table without the columns in which no number stands."""
    kept = [i for i in range(len(table.columns)) if any(_says_something(row[i]) for row in table.rows)]
    columns, rows = [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows]
    return replace(table, columns=columns, rows=rows)


def _says_something(cell: Cell) -> bool:
    return isinstance(cell, Text) or cell.value is not None


def plain(cell: Cell) -> str:
    """Our part of a cell as text; the published is for the renderers to place."""
    if isinstance(cell, Text):
        return cell.text
    if isinstance(cell, Difference):
        if cell.value is None:
            return ABSENT
        return f"{cell.value:+.2f}" + (" ({:+.2f} … {:+.2f})".format(*cell.interval) if cell.interval else "")
    if cell.value is None:
        return cell.missing
    return f"{cell.value:{cell.form}}" + ("" if cell.std is None else f" ±{cell.std:{cell.form}}")


def published(cell: Cell) -> str:
    """The published part of a cell, if it has one."""
    return plain(cell.published) if isinstance(cell, Number) and cell.published else ""
