"""The documentation as a site, as `make docs` built it: complete, without a network, searchable and accessible."""

import os
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from browser import SCHEMES, SIZES, chromium, serious_findings

SITE = Path(__file__).parents[1] / "site"
NEEDED = os.environ.get("FEDGEN_NEED_SITE") == "1"  # set where the site must be there, as in CI
# One of each kind: prose with code, notebooks, reference from docstrings, wide tables, drawings.
KINDS = (
    "index", "networks", "tutorials/first_comparison", "tutorials/fair_sweep", "reference/contract", "attacks",
    "develop/architecture",
)  # fmt: skip


@pytest.fixture(scope="module")
def site() -> Path:
    if not (SITE / "index.html").exists():
        message = "there is no site: make docs"
        pytest.fail(message) if NEEDED else pytest.skip(message)
    return SITE


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from chromium()


def _pages(site: Path) -> dict[Path, str]:
    found = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    return {path: text for path, text in found.items() if path.name != "404.html"}


def _hrefs(text: str) -> set[str]:
    return {unescape(link) for link in re.findall(r'<a [^>]*?href="(?!https?:|mailto:)([^"]+)"', text)}


def test_every_page_is_two_clicks_from_the_first(site: Path, browser: Any) -> None:
    """On links that are seen: the theme's menus also hold all pages of the other parts, hidden."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()

    def seen(start: Path) -> set[Path]:
        page.goto(start.as_uri(), wait_until="domcontentloaded")
        shown = page.evaluate("[...document.links].filter(a => a.checkVisibility()).map(a => a.pathname)")
        return {Path(unquote(path)) for path in shown}

    pages = _pages(site).keys()
    assert len(pages) > 50
    once = seen(site / "index.html") & pages
    assert len(once) < len(pages) / 2, "most are not seen at first"
    twice = set().union(*map(seen, once))
    assert pages - {site / "index.html"} - once - twice == set()
    context.close()


def test_no_link_and_no_anchor_leads_nowhere(site: Path) -> None:
    pages = _pages(site)
    ids = {page: set(re.findall(r'\b(?:id|name)="([^"]+)"', text)) for page, text in pages.items()}
    checked = 0
    for page, text in pages.items():
        for target, _, anchor in (link.partition("#") for link in _hrefs(text)):
            there = (page.parent / unquote(target)).resolve() if target else page
            assert there.exists(), (page, target)
            assert there.is_relative_to(site), (page, target)
            if anchor and there in ids:
                checked += 1
                assert unquote(anchor) in ids[there], (page, target, anchor)
    assert checked > 300


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for page, text in _pages(site).items():
        fetched = re.findall(r'<(?:script|img|iframe|source)[^>]*? src="([^"]*)"', text)
        fetched += re.findall(r'<link (?![^>]*rel="(?:canonical|prev|next)")[^>]*?href="([^"]*)"', text)
        assert not [url for url in fetched if url.startswith(("http:", "https:", "//"))], page


def test_search_finds_what_is_asked_for_without_a_network(site: Path, browser: Any) -> None:
    """From a file, where browsers start no workers."""
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.goto((site / "index.html").as_uri())
    page.get_by_placeholder("Search").click()
    page.get_by_placeholder("Search").press_sequentially("control variates")
    page.wait_for_selector(".md-search-result__item a", timeout=600_000)
    found = page.locator(".md-search-result__item a").evaluate_all("links => links.map(link => link.href)")
    assert any("scaffold.html" in link or "own_algorithm.html" in link for link in found), found
    assert complaints == []
    context.close()


def test_tutorials_show_what_they_printed_and_drew(site: Path) -> None:
    for page in (site / "tutorials").glob("*.html"):
        if page.name == "index.html":
            continue
        text = page.read_text(encoding="utf-8")
        assert page.with_suffix(".ipynb").exists()
        assert re.search(r'<img alt="[^"]{20,}" src="[^"]+\.png"', text), f"{page.name} has a picture, with words"
        assert "what this cell draws" not in text
        assert "fedgen-tutorial-" not in text, "no path of the machine that built the page"


def _others(site: Path) -> list[str]:
    """The other pages, each to be looked at in one size and scheme; of the source files, which are alike, a few."""
    names = sorted(path.relative_to(site).with_suffix("").as_posix() for path in _pages(site))
    shown = [name for name in names if name.startswith("source/")]
    return [name for name in names if name not in (*KINDS, *shown)] + shown[:4]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_axe_finds_nothing_serious_on_the_site(site: Path, browser: Any, size: tuple[int, int], scheme: str) -> None:
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, offline=True)
    page = context.new_page()
    found = {}
    combination = 2 * SIZES.index(size) + SCHEMES.index(scheme)
    for name in sorted({*KINDS, *_others(site)[combination::4]}):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if scheme == "dark" else "default")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
        if findings := serious_findings(page):
            found[name] = findings
    assert found == {}
    context.close()
