"""Links from pages to files that are not in docs/: source files, examples, figures of results."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
_CODE = re.compile(r"^(`{3,}).*?^\1", re.M | re.S)
_LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(\))")


def targets(markdown: str, place: Path) -> Iterable[Path]:
    """The files outside docs/ that a page links to; `place` is the folder that its links start from."""
    for match in _LINK.finditer(_CODE.sub("", markdown)):
        if (target := _outside(match[2], place)) is not None:
            yield target


def rewritten(markdown: str, place: Path, uri: str, to: Callable[[Path], str]) -> str:
    """The page with links that lead out of docs/, or start outside of it, to where the site has their targets."""

    def link(match: re.Match[str]) -> str:
        target = (place / match[2]).resolve()
        moved = place != (ROOT / "docs" / uri).parent  # the page itself stands elsewhere on the site
        if _outside(match[2], place) is None and not (moved and target.exists()):
            return match[0]
        return f"{match[1]}{os.path.relpath(to(target), Path(uri).parent)}{match[3] or ''}{match[4]}"

    parts, end = [], 0
    for block in _CODE.finditer(markdown):
        parts += [_LINK.sub(link, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, _LINK.sub(link, markdown[end:])])


def _outside(link: str, place: Path) -> Path | None:
    target = (place / link).resolve()
    inside = target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT)
    if target.parent == ROOT / "docs/tutorials" and target.suffix == ".py":
        inside = False  # the notebook's page is made
    return None if inside or not target.exists() else target
