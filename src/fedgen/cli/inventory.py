"""The command `fedgen list`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from fedgen.algorithms import ALGORITHMS
from fedgen.cli.console import console_for_output
from fedgen.data.partition import PARTITIONERS
from fedgen.data.sources import DATASETS
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.presets import DESCRIPTIONS
from fedgen.registry import Registry, summary_of

if TYPE_CHECKING:
    from fedgen.core.contract import Needs

console = console_for_output()

NEEDS = {
    "proxy": "unlabelled samples at the server",
    "whole_uploads": "whole models whatever is shared",
    "individual_uploads": "each upload by itself",
}  # a field of `Needs` -> in words
ACCUMULATES = "its server accumulates"


def list_() -> None:
    """Show the algorithms, presets, datasets, models and partitions, each with one line.

    What an installed plug-in brings is marked with its package. An algorithm that needs each upload by itself, not only
    their sum, does not go with secure aggregation (nor does any, unless max_update is 0). Where the server accumulates, one
    user can do harm over many rounds, unless the aggregation is robust. In place of a name, `package.module:function` can
    be given to --algorithm, --model and --dataset.
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
        if entries is ALGORITHMS:
            console.print("[dim]With max_update (on by default) the server of each looks at single uploads, too.[/dim]")
        console.print()


def _line(registry: Registry[Any], name: str) -> str:
    """The description of a name; a plug-in that cannot be imported is said to be one, and the others are shown."""
    try:
        text, notes = escape(summary_of(registry[name])), "; ".join(_notes(registry, name))
    except FedgenError as error:
        text, notes = f"[red]{escape(str(error))}[/red]", registry.package(name) or ""
    return f"{text} [dim]({escape(notes)})[/dim]" if notes else text


def _notes(registry: Registry[Any], name: str) -> list[str]:
    """What else to know of a name: the package that brings it, and what an algorithm needs."""
    package = registry.package(name)
    notes = [package] if package else []
    if registry is ALGORITHMS:
        try:
            needs = needs_of(registry[name])
        except Exception as error:  # whatever a plug-in does, the list goes on
            return [*notes, f"cannot be built: {str(error).splitlines()[0]}"]
        said = [words for field, words in NEEDS.items() if getattr(needs, field)]
        notes += [f"needs {', '.join(said)}"] if said else []
        notes += [ACCUMULATES] if needs.accumulates else []
    return notes


def needs_of(builder: Callable[..., Any]) -> "Needs":
    """What an algorithm declares to need at its default options and without bounds on users (max_update)."""
    import jax

    from fedgen.algorithms import build
    from fedgen.core.contract import Federation, Task
    from fedgen.models.classifiers import mlp

    task = Task(
        mlp((2,), 2, hidden=2, latent=2), 2, jax.ShapeDtypeStruct((2,), "float32"), lambda x: x, proxy_samples=1
    )
    return build(builder, task, Federation(max_update=0), {})[0].needs
