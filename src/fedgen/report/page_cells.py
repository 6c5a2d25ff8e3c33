"""Tables' cells as the page shows them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedgen.report.styles import Style
from fedgen.report.table import ABSENT, Cell, Difference, Text

Tone = Literal["", "better", "worse", "perhaps-better", "perhaps-worse", "even", "missing"]


@dataclass(frozen=True)
class Shown:
    """A cell's text, and its sort key (None is last)."""

    text: str
    sort: float | str | None = None
    beside: str = ""  # a smaller text on the same line
    small: str = ""  # a second line
    tone: Tone = ""
    below: Sequence["Shown"] = ()  # further lines
    swatch: Style | None = None  # colour and dash of its curve


def shown(cell: Cell) -> Shown:
    """A cell of any kind."""
    if isinstance(cell, Text):
        return Shown(cell.text, cell.order or cell.text or None, swatch=cell.style)
    if isinstance(cell, Difference):
        return _difference(cell)
    theirs = shown(cell.published) if cell.published else None
    below = [Shown(f"published {theirs.text}", beside=theirs.beside)] if theirs else []
    if cell.value is None:
        return Shown(cell.missing, tone="missing", below=below)
    below += [_difference(cell.difference)] if cell.difference else []
    std = "" if cell.std is None else f"± {cell.std:{cell.form}}"
    return Shown(_signed(cell.value, cell.form), cell.value, std, below=below)


def _difference(cell: Difference) -> Shown:
    """Its sign is a triangle, filled where the interval excludes zero; in colour where it means better or worse."""
    if cell.value is None:
        return Shown(ABSENT, tone="missing")
    interval = " … ".join(_signed(end, "+.2f") for end in cell.interval or ())
    text = _signed(cell.value, "+.2f")
    if float(f"{cell.value:.2f}") == 0:
        return Shown(f"= {text}", cell.value, small=interval, tone="even")
    sure = cell.interval is not None and (cell.interval[0] > 0 or cell.interval[1] < 0)
    mark = ("▲" if cell.value > 0 else "▼") if sure else ("△" if cell.value > 0 else "▽")
    tones: tuple[Tone, Tone] = ("better", "worse") if sure else ("perhaps-better", "perhaps-worse")
    good = (cell.value > 0) is not cell.less_is_better
    tone: Tone = (tones[0] if good else tones[1]) if cell.alike and cell.repeated else "even"
    return Shown(f"{mark} {text}", cell.value, small=interval, tone=tone)


def _signed(value: float, form: str) -> str:
    """A number as text with a typographic minus."""
    return format(value, form).replace("-", "−")
