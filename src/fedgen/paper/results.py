"""The files of a reproduction beside its cells: `EXPERIMENT.PRESET.json`, all that a table or figure shows.

Reports need nothing else. `.quick` in the name marks a small run, and other rounds or seeds than the experiment's own
are named too.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.files import read_json, write_whole
from fedgen.paper.spec import experiments
from fedgen.version import __version__

FORMAT = 1
FULL_TEST = "the full test set"
# Of labels alone where a file says nothing else: it is from before the authors' slices were known.
AUTHORS = "the authors' metric, %: {} a user trained on, mean of the five best rounds"
_HEAD = {"title", "about", "preset", "quick", "overrides", "versions", "notes"}  # what every file has
_PRESETS = ("paper", "reference", "tuned")

Results = dict[str, Any]  # an experiment's, as `assemble` makes them and as the file has them


def results_name(results: Mapping[str, Any]) -> str:
    """The name of an experiment's files, without an ending: one of other rounds or seeds takes no other's place."""
    parts = [results["experiment"], results["preset"], *(["quick"] if results["quick"] else [])]
    return ".".join([*parts, *(f"{key}{value}" for key, value in sorted(results["overrides"].items()))])


def write_results(folder: Path, results: Results) -> None:
    """Write an experiment's results."""
    path = folder / f"{results_name(results)}.json"
    write_whole(path, (json.dumps(results, allow_nan=False) + "\n").encode())


def results_like(folder: Path, head: Mapping[str, Any]) -> Results | None:
    """The results that have the same name as these would have, if this version can read them."""
    path = folder / f"{results_name(head)}.json"
    found = read_json(path) if path.exists() else None
    return found if found and found.get("format") == FORMAT and not _HEAD - found.keys() else None


def all_results(folder: Path) -> list[Results]:
    """The results of all experiments in a folder, in the order in which they are shown."""
    found = [read_json(path) for path in sorted(folder.glob("*.json"))]
    results = [one for one in found if "experiment" in one]
    for one in results:
        lacking = _HEAD - one.keys()
        if one.get("format") == FORMAT and lacking:
            raise FedgenError(
                f"the table of {one['experiment']} in {folder} lacks {', '.join(sorted(lacking))}:"
                " make it again with fedgen reproduce"
            )
        if one.get("format") != FORMAT:
            raise FedgenError(
                f"the table of {one['experiment']} in {folder} has format {one.get('format')},"
                f" and this is version {__version__}, which reads {FORMAT}: make it again with fedgen reproduce"
            )
    order = list(experiments())
    return sorted(results, key=lambda r: (_place(order, r["experiment"]), r["quick"], _place(_PRESETS, r["preset"])))


def _place(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def differs(results: Results) -> str:
    """How results differ from those of the experiment in full, to go on a title."""
    changed = [f"{value} {key}" for key, value in sorted(results["overrides"].items())]
    return "".join(f", {part}" for part in [*(["quick"] if results["quick"] else []), *changed])


def accuracy_axis(scored_on: str) -> str:
    """The name of an axis of such scores."""
    return "test accuracy, %" if scored_on == FULL_TEST else "validation accuracy, %"


def caveats(results: Mapping[str, Any]) -> list[str]:
    """The notes that must be shown with a table."""
    others = set(results.get("versions", ())) - {__version__}
    computed = [f"Computed by version {' and '.join(sorted(others))}; this is {__version__}."] if others else []
    return [*computed, *results["notes"]]
