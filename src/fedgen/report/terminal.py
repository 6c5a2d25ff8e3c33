"""Tables in a terminal."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table as Grid
from rich.text import Text as Styled

from fedgen.report.table import Cell, Table, plain, published

_BORDERS = 3  # characters that a column takes beside its own


def terminal(table: Table, width: int, title: str = "") -> list[Grid]:
    """The table for a terminal so wide: with all its columns, or without the optional, or in several parts.

    The columns that are left out are named below it.
    """
    cells = [[_cell(cell) for cell in row] for row in table.rows]
    full = [max(_width(column.title), _widest(cells, i)) for i, column in enumerate(table.columns)]
    # Titles may be broken between words, cells may not; except in the first column, which would leave no room else.
    least = [max(*map(cell_len, c.title.split() or [""]), _widest(cells, i)) for i, c in enumerate(table.columns)]
    least[0] = min(least[0], width // 2)
    shown = list(range(len(full)))
    for i in sorted((i for i in shown if table.columns[i].optional), key=lambda i: -table.columns[i].optional):
        if _total(least, shown) > width:
            shown.remove(i)
    widths = full if _total(full, shown) <= width else least
    grids: list[Grid] = []
    for part in _parts(shown, widths, width):
        fits = _total(widths, part) <= width  # else cells must be broken after all
        grids.append(_draw(table, cells, part, [widths[i] if fits else None for i in part], "" if grids else title))
    left_out = [column.title for i, column in enumerate(table.columns) if i not in shown]
    if left_out:
        grids[-1].caption = Styled(f"no room here for: {', '.join(left_out)} (report.html has them)")
        grids[-1].caption_justify = "left"
    return grids


def _parts(shown: Sequence[int], widths: Sequence[int], width: int) -> list[list[int]]:
    """The columns of each part; the first column is in every part."""
    first, *others = shown
    parts = [[first]]
    for i in others:
        if len(parts[-1]) > 1 and _total(widths, [*parts[-1], i]) > width:
            parts.append([first])
        parts[-1].append(i)
    return parts


def _draw(
    table: Table, cells: Sequence[Sequence[Styled]], shown: Sequence[int], widths: Sequence[int | None], title: str
) -> Grid:
    grid = Grid(title=Styled(title) if title else None, title_justify="left")
    for i, room in zip(shown, widths, strict=True):
        column = table.columns[i]
        grid.add_column(Styled(column.title), justify="right" if column.number else "left", width=room)
    for row in cells:
        grid.add_row(*(row[i] for i in shown))
    return grid


def _cell(cell: Cell) -> Styled:
    """Ours, and in grey below it the published."""
    theirs = published(cell)
    return Styled.assemble(plain(cell), (f"\n{theirs}" if theirs else "", "dim"))


def _widest(cells: Sequence[Sequence[Styled]], i: int) -> int:
    return max((_width(row[i].plain) for row in cells), default=0)


def _width(text: str) -> int:
    return max(map(cell_len, text.split("\n")))


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[i] + _BORDERS for i in shown) + 1
