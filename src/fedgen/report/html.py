"""Tables in plain HTML, for notebooks."""

from collections.abc import Iterable
from html import escape

from fedgen.report.table import Table, plain


def html(table: Table) -> str:
    """The table as an element."""
    head = _row("th", (column.title for column in table.columns))
    return f"<table>{head}{''.join(_row('td', map(plain, row)) for row in table.rows)}</table>"


def _row(kind: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{kind}>{escape(text)}</{kind}>" for text in texts) + "</tr>"
