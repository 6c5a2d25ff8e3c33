"""The Markdown page of all results in a folder: docs/results.md."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.paper.results import Results, all_results, caveats, differs, results_name
from fedgen.paper.tables import tables
from fedgen.report.markdown import markdown

_HEAD = """# Results

Made by `fedgen reproduce page` from the files in `results/`; do not edit. Each cell: ours, then the published number in
brackets. That one is by another metric, the authors', which has separate tables. ± is the standard deviation over
seeds. How to read them: [reading.md](reading.md).
"""


def write_page(folder: Path, path: Path) -> None:
    """Write the page of all tables in a results folder."""
    write_whole(path, page(folder, path.parent).encode())


def page(folder: Path, seen_from: Path) -> str:
    """The page; `seen_from` is the folder that its links start from."""
    found = all_results(folder)
    if not found:
        raise FedgenError(f"{folder} holds no results; make some with: fedgen reproduce overview --quick")
    parts = [_HEAD, "".join(f"- [{_heading(one)}](#{_anchor(one)})\n" for one in found)]
    return "\n".join([*parts, *(_section(one, folder, seen_from) for one in found)])


def _heading(results: Results) -> str:
    return f"{results['title']} (`{results['experiment']}`, preset {results['preset']}{differs(results)})"


def _anchor(results: Results) -> str:
    kept = "".join(c for c in _heading(results).lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _section(results: Results, folder: Path, seen_from: Path) -> str:
    lines = [f"## {_heading(results)}", "", results["about"].strip(), ""]
    for number, table in enumerate(tables(results)):
        if table.about:
            lines += [f"{table.about}. {_run(results)}" if number == 0 else f"{table.about}:", ""]
        lines += [*markdown(table), ""]
    lines += [f"- {note}" for note in caveats(results)]
    for picture in sorted((folder / "figures").glob(f"{results_name(results)}.png")):
        link = Path(os.path.relpath(picture, seen_from)).as_posix()
        lines += ["", f"![{results['title']}]({link})"]
    return "\n".join(lines) + "\n"


def _run(results: Results) -> str:
    """How the numbers were made."""
    seeds = "1 seed" if results["seeds"] == [1] else f"{_either(results['seeds'])} seeds"
    return f"{seeds}, {_either(results['rounds'])} rounds, {', '.join(results['devices'])}."


def _either(values: Sequence[Any]) -> str:
    return " or ".join(map(str, values))
