"""What a report page is made of; the template draws these and knows nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

ABSENT = "–"
Tone = Literal["", "better", "worse", "perhaps-better", "perhaps-worse", "even", "missing"]


@dataclass(frozen=True)
class Cell:
    """A table's cell: what is read, and what is sorted by (None goes last)."""

    text: str
    sort: float | str | None = None
    beside: str = ""  # a smaller text on the same line
    small: str = ""  # a second line
    tone: Tone = ""
    below: Sequence["Cell"] = ()  # further lines
    swatch: tuple[int, int] | None = None  # colour and dash of its curve


@dataclass(frozen=True)
class Column:
    """A table's column."""

    title: str
    hint: str = ""
    number: bool = True


@dataclass(frozen=True)
class Table:
    """A sortable table; of a section's tables one is shown at a time, chosen by its caption."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """A figure that the page's script draws from `data`; `name` is unique in the page and names saved files."""

    name: str
    kind: Literal["lines", "bubbles", "panels"]
    title: str
    caption: str
    data: Mapping[str, Any]
    origin: Mapping[str, Any] = field(default_factory=dict)  # what files of it are drawn from, where not from `data`


@dataclass(frozen=True)
class Source:
    """Where numbers come from: a folder, the device, and the text of its configuration."""

    name: str
    facts: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class Section:
    """A part of the page about things that may be compared."""

    name: str
    title: str
    lead: str = ""
    chips: Sequence[str] = ()
    notices: Sequence[str] = ()
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()
    notes: Sequence[str] = ()
    sources: Sequence[Source] = ()


@dataclass(frozen=True)
class Page:
    """The whole report."""

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=list)
    notices: Sequence[str] = ()


def number(value: float | None, form: str = ".2f", beside: str = "") -> Cell:
    """A number's cell; the sign of a negative one is a real minus."""
    if value is None:
        return Cell(ABSENT, tone="missing")
    return Cell(signed(value, form), value, beside)


def signed(value: float, form: str) -> str:
    """A number as text with a typographic minus."""
    return format(value, form).replace("-", "−")


def difference(
    value: float | None, interval: Sequence[float] | None = None, *, less_is_better: bool = False, alike: bool = True
) -> Cell:
    """A difference's cell: its sign is a triangle, filled where the 95 % interval excludes zero.

    In colour only where what is compared is `alike`, of one metric and the same data.
    """
    if value is None:
        return Cell(ABSENT, tone="missing")
    text = signed(value, "+.2f")
    if float(format(value, ".2f")) == 0:
        return Cell(f"= {text}", value, small=_interval(interval), tone="even")
    sure = interval is not None and (interval[0] > 0 or interval[1] < 0)
    mark = ("▲" if value > 0 else "▼") if sure else ("△" if value > 0 else "▽")
    if not alike:
        return Cell(f"{mark} {text}", value, small=_interval(interval), tone="even")
    good = (value > 0) is not less_is_better
    tones: tuple[Tone, Tone] = ("better", "worse") if sure else ("perhaps-better", "perhaps-worse")
    return Cell(f"{mark} {text}", value, small=_interval(interval), tone=tones[0] if good else tones[1])


def _interval(interval: Sequence[float] | None) -> str:
    return " … ".join(signed(end, "+.2f") for end in interval) if interval else ""
