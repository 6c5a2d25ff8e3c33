"""The report: one HTML file that needs nothing else, not even a network."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from fedgen.errors import FedgenError
from fedgen.files import write_whole
from fedgen.report import evaluations, run_page
from fedgen.report.page_cells import shown
from fedgen.report.parts import Page, Reference, Section
from fedgen.report.runs import Group, differing, group, is_run, read_run
from fedgen.report.styles import DARK, DASHES, LABEL_COLOURS, LIGHT
from fedgen.version import __version__

_NO_REFERENCE = Reference()


def write_page(page: Page, out: Path) -> None:
    """Write the page as a file."""
    if out.suffix != ".html":
        raise FedgenError(f"the report is a web page: its name must end in .html, not {out.name}")
    write_whole(out, render(page).encode())


def collect(
    folders: Sequence[Path],
    reference: Reference = _NO_REFERENCE,
    others: Callable[[Path], list[Section]] = lambda folder: [],
) -> Page:
    """Everything that the page about these folders says.

    Runs are shown with the numbers that `reference` has for their settings; `others` reads folders that are not runs.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise FedgenError("a folder is given twice; name each once")
    for folder in folders:
        if not folder.is_dir():
            raise FedgenError(f"{folder} is not a folder; give the folder of a run, a sweep or a reproduction")
    runs = [read_run(folder) for folder in folders if is_run(folder)]
    sections: list[Section] = []
    reproductions = [folder for folder in folders if not is_run(folder)]
    for folder in reproductions:
        made = others(folder)
        if not made:
            raise FedgenError(
                f"{folder} holds neither a run (no config.toml) nor a finished sweep or reproduction;"
                " `fedgen run`, `fedgen sweep` and `fedgen reproduce` make such folders"
            )
        apart = len(reproductions) > 1  # then section names of one may be those of another
        sections += [_from_folder(section, folder) if apart else section for section in made]
    groups = group(runs)
    notices = []
    if len(groups) > 1:
        settings = ", ".join(differing(groups))
        notices.append(f"These runs differ in {settings}: each has its own table, and no number is averaged across.")
    measured = evaluations.sections([run.path for run in runs])
    shown = [*sections, *run_page.sections(groups, reference), *measured]
    return Page("FedGen report", _lead(groups, sections), shown, notices)


def _lead(groups: Sequence[Group], experiments: Sequence[Section]) -> str:
    runs = sum(len(one.runs) for one in groups)
    names = {row.algorithm for one in groups for row in one.rows}
    counted = [
        (len(experiments), "part of a sweep or reproduction", "parts of sweeps and reproductions"),
        (runs, "run", "runs"),
        (len(names), "algorithm", "algorithms"),
    ]
    return ", ".join(f"{n} {one if n == 1 else many}" for n, one, many in counted if n) + "."


def _from_folder(section: Section, folder: Path) -> Section:
    """The section with names that tell its folder's from another's."""
    mark = "".join(c if c.isalnum() else "-" for c in str(folder))
    charts = [replace(chart, name=f"{mark}.{chart.name}") for chart in section.charts]
    title = f"{section.title} · {folder}"
    return replace(section, name=f"{mark}-{section.name}", title=title, charts=charts)


def render(page: Page) -> str:
    """The page as HTML; the same folders give the same bytes."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"prose": _prose, "shown": shown}
    template = environment.from_string(_asset("page.html"))
    data = {
        "colours": {"light": LIGHT, "dark": DARK},
        "labels": LABEL_COLOURS,
        "dashes": [" ".join(map(str, lengths)) for lengths in DASHES],
        "charts": {
            chart.name: {"name": chart.name, "kind": chart.kind, "title": chart.title, "data": chart.data}
            for section in page.sections
            for chart in section.charts
        },
    }
    return template.render(
        page=page,
        version=__version__,
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        data=Markup(_for_script(data)),
    )


def _prose(text: str) -> Markup:
    """Text in which `such` words are code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))


def _for_script(data: Any) -> str:
    """JSON escaped for a script element: nothing in it can end that element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (files("fedgen.report") / "template" / name).read_text(encoding="utf-8")
