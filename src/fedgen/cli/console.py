"""Where the commands print."""

import os
import stat
from typing import Any

from rich.console import Console

WIDE = 120  # columns, where nobody says how many there are


def console_for_output(**options: Any) -> Console:
    """A console on stdout, as wide as its terminal, or as $COLUMNS says; a file has room for all columns of a table."""
    console = Console(highlight=False, **options)
    if not (console.is_terminal or os.environ.get("COLUMNS", "").isdigit() or _is_read_in_a_terminal()):
        console.width = WIDE
    return console


def _is_read_in_a_terminal() -> bool:
    """Whether stdout is a pipe to a program, such as `less`, in a terminal, whose width Rich finds."""
    try:
        return stat.S_ISFIFO(os.fstat(1).st_mode) and any(map(os.isatty, (0, 2)))
    except OSError:  # nobody reads
        return False
