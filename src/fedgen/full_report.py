"""The report page with all that there is: runs, sweeps and, with published numbers, reproductions of the paper."""

from collections.abc import Sequence
from pathlib import Path

from fedgen.paper.published import PUBLISHED, published_for
from fedgen.paper.web_page import sections
from fedgen.report import page as report
from fedgen.report.parts import Page, Reference, Section
from fedgen.sweeps.page import sections as sweep_sections
from fedgen.sweeps.results import is_sweep


def write_report(folders: Sequence[Path], out: Path) -> Page:
    """Write the page about runs, sweeps and reproductions, and give what is on it."""
    page = collect(folders)
    report.write_page(page, out)
    return page


def collect(folders: Sequence[Path]) -> Page:
    """Everything that the page about these folders says."""
    return report.collect(folders, Reference(PUBLISHED, published_for), _others)


def _others(folder: Path) -> list[Section]:
    return sweep_sections(folder) if is_sweep(folder) else sections(folder)
