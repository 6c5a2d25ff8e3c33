"""The documentation: every algorithm has its page, every option is on it, and no link leads nowhere."""

import json
import re
from pathlib import Path

import pytest

import fedgen
from fedgen.algorithms import ALGORITHMS, options_of
from fedgen.cli.settings import SETTINGS, flag_of
from helpers import play, same_bits, small_setup

ROOT = Path(__file__).parents[1]
AT_ROOT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES = [*AT_ROOT, *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_algorithm_has_a_page_that_names_its_options(name: str) -> None:
    index = (ROOT / "docs/algorithms.md").read_text()
    found = re.search(rf"\[`{re.escape(name)}`\]\((.*?)\)", index)
    assert found, "the index links to it"
    page = (ROOT / "docs" / found[1]).read_text()
    for part in ("**The paper**", "**We**", "authors'") if name != "fedgen" else ("paper says", "we do", "authors'"):
        assert part in page
    missing = [option for option in options_of(ALGORITHMS[name]) if not re.search(rf"`(\w+\.)?{option}`", page)]
    assert not missing


def test_every_page_is_in_the_navigation() -> None:
    """Pages, the tutorials' notebooks and what comes from the root; and each entry of the navigation is there."""
    config = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", config[config.index("\nnav:") :], re.M))
    docs = ROOT / "docs"
    there = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    there |= {path.relative_to(docs).with_suffix(".md").as_posix() for path in (docs / "tutorials").glob("*.py")}
    assert named == there | {"develop/contributing.md", "develop/security.md", "develop/changelog.md"}


def _anchor(heading: str) -> str:
    kept = "".join(c for c in heading.lower().strip() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            assert anchor in map(_anchor, headings), target


def test_the_first_table_is_that_of_the_results() -> None:
    rows = re.findall(r"^\| (FedAvg|FedGen), `(\w+)` \| (.*) \|$", (ROOT / "docs/reading.md").read_text(), re.M)
    assert len(rows) == 5
    for algorithm, preset, numbers in rows:
        cells = json.loads((ROOT / f"results/overview.{preset}.json").read_text())["cells"]
        entries = [cells[f"mnist-{alpha}"][algorithm.lower()] for alpha in ("0.05", "0.1", "1", "10")]
        assert numbers.split(" | ") == [f"{e['mean']:.2f} ± {e['std']:.2f}" for e in entries]


def test_the_page_on_new_algorithms_has_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    code = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/new-algorithm.md").read_text(), re.M | re.S)
    assert len(code) == 1
    monkeypatch.setitem(ALGORITHMS, "smoothed", None)  # so that it is gone afterwards
    exec(code[0], {})
    plain, smoothed = (play(small_setup(name), 1).server for name in ("fedavg", "smoothed"))
    assert not same_bits(plain, smoothed)


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {fedgen.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert newest == fedgen.__version__


def test_the_reference_has_all_that_the_library_exports() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: \S+\.(\w+)$", pages, re.M)) | set(re.findall(r"`fedgen\.(\w+)`", pages))
    assert set(fedgen.__all__) - {"__version__"} <= shown


def test_the_commands_reference_has_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools/site"))
    import commands

    page = commands.page()
    for command in ("run", "sweep", "report", "data show", "federate init", "federate gate"):
        assert f"\n## fedgen {command}\n" in f"\n{page}"
    run = page.split("## fedgen run\n")[1].split("\n## ")[0]
    for name in SETTINGS:
        assert f"`{flag_of(name)}`" in run, name
    assert re.search(r"^\| `--local-steps` \| \S+ \| 20 \| Mini-batches", run, re.M), "with its default"
    assert re.search(r"^\| `--checkpoint-every` \| .* \| `10.0` \|", run, re.M), "and one that is no setting"
