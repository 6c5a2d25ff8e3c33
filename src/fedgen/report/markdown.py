"""Tables in Markdown."""

from fedgen.report.table import Cell, Table, plain, published


def markdown(table: Table) -> list[str]:
    """The table's lines; published numbers are in brackets."""
    titles = " | ".join(column.title for column in table.columns)
    rows = [" | ".join(map(_cell, row)) for row in table.rows]
    return [f"| {titles} |", "|" + "---|" * len(table.columns), *(f"| {row} |" for row in rows)]


def _cell(cell: Cell) -> str:
    theirs = published(cell)
    return plain(cell) + (f" ({theirs})" if theirs else "")
