"""The data model of a report page, which the template renders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedgen.config import RunConfig
from fedgen.report.table import Table


@dataclass(frozen=True)
class Chart:
    """A figure that the page's script draws from `data`; `name` is unique in the page and names saved files."""

    name: str
    kind: Literal["lines", "bubbles", "panels", "matrix"]
    title: str
    caption: str
    data: Mapping[str, Any]
    save: Callable[[Path], list[Path]] | None = None  # writes its files, where they are not drawn from `data`


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


@dataclass(frozen=True)
class Reference:
    """Numbers that others published for the settings of a run."""

    about: str = ""
    numbers: Callable[[RunConfig], Mapping[str, tuple[float, float]]] = lambda config: {}  # mean, std by algorithm
