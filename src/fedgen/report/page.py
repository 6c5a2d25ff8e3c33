"""The report: one HTML file that needs nothing else, not even a network."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.report import run_page
from fedgen.report.parts import Page
from fedgen.report.runs import Group, differing, group, is_run, read_run
from fedgen.report.styles import DARK, DASHES, LIGHT
from fedgen.version import __version__


def write_report(folders: Sequence[Path], out: Path) -> Page:
    """Write the page about run folders, and give what is on it."""
    if out.suffix != ".html":
        raise FedgenError(f"the report is a web page: its name must end in .html, not {out.name}")
    page = collect(folders)
    write_whole(out, render(page).encode())
    return page


def collect(folders: Sequence[Path]) -> Page:
    """Everything that the page about these folders says."""
    for folder in folders:
        if not folder.is_dir():
            raise FedgenError(f"{folder} is not a folder; give the folder of a run (--out of `fedgen run`)")
        if not is_run(folder):
            raise FedgenError(f"{folder} holds no run (no config.toml); give the folder of a run")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise FedgenError("a folder is given twice; name each once")
    groups = group([read_run(folder) for folder in folders])
    notices = []
    if len(groups) > 1:
        apart = ", ".join(differing(groups))
        notices.append(f"These runs differ in {apart}: each has its own table, and no number is averaged across.")
    count = f"{len(folders)} runs" if len(folders) > 1 else "One run"
    return Page("FedGen report", f"{count}, {_algorithms(groups)}.", run_page.sections(groups), notices)


def _algorithms(groups: Sequence[Group]) -> str:
    names = {row.algorithm for one in groups for row in one.rows}
    return f"{len(names)} algorithms" if len(names) > 1 else "one algorithm"


def render(page: Page) -> str:
    """The page as HTML; the same folders give the same bytes."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(_asset("page.html"))
    data = {
        "colours": {"light": LIGHT, "dark": DARK},
        "dashes": [" ".join(map(str, lengths)) for lengths in DASHES],
        "charts": {chart.name: asdict(chart) for section in page.sections for chart in section.charts},
    }
    return template.render(
        page=page,
        version=__version__,
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        data=Markup(_for_script(data)),
    )


def _for_script(data: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end that element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (files("fedgen.report") / "template" / name).read_text(encoding="utf-8")
