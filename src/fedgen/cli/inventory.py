"""The command `fedgen list`."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedgen.algorithms import ALGORITHMS
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.presets import DESCRIPTIONS
from fedgen.registry import Registry, summary_of

console = Console(highlight=False)
if not console.is_terminal:
    console.width = 120


def list_() -> None:
    """Show the algorithms, presets, datasets, models and partitions, each with one line.

    What an installed plug-in brings is marked with its package. In place of a name, `package.module:function` can be
    given to --algorithm, --model and --dataset.
    """
    groups: dict[str, Registry[Any] | Mapping[str, str]] = {
        "Algorithms": ALGORITHMS,
        "Presets": DESCRIPTIONS,
        "Datasets": DATASETS,
        "Models": MODELS,
        "Partitions": PARTITIONERS,
    }
    for title, entries in groups.items():
        grid = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
        for name in entries:
            line = _line(entries, name) if isinstance(entries, Registry) else entries[name]
            grid.add_row(escape(name), line)
        console.print(grid)
        console.print()


def _line(registry: Registry[Any], name: str) -> str:
    """What a name stands for; a plug-in that cannot be imported is said to be one, and the others are shown."""
    try:
        text = escape(summary_of(registry[name]))
    except FedgenError as error:
        text = f"[red]{escape(str(error))}[/red]"
    notes = "; ".join(_notes(registry, name))
    return f"{text} [dim]({escape(notes)})[/dim]" if notes else text


def _notes(registry: Registry[Any], name: str) -> list[str]:
    """What else to know of a name: the package that brings it."""
    package = registry.package(name)
    return [package] if package else []
