"""The report page with the paper's side: reproductions, and published numbers beside runs at its settings."""

from collections.abc import Sequence
from pathlib import Path

from fedgen.paper.published import PUBLISHED, published_for
from fedgen.paper.web_page import sections
from fedgen.report import page as report
from fedgen.report.parts import Page, Reference


def write_report(folders: Sequence[Path], out: Path) -> Page:
    """Write the page about runs and reproductions, and give what is on it."""
    page = collect(folders)
    report.write_page(page, out)
    return page


def collect(folders: Sequence[Path]) -> Page:
    """Everything that the page about these folders says."""
    return report.collect(folders, Reference(PUBLISHED, published_for), sections)
