"""The documentation: every algorithm has its page, every option is on it, and no link leads nowhere."""

import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import yaml

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


def _gains(experiment: str, column: str, baseline: str = "fedavg", rows: str = ".*") -> list[float]:
    """Differences to a column in points, over the rows whose names match."""
    cells = json.loads((ROOT / f"results/{experiment}.json").read_text())["cells"]
    chosen = [row for name, row in cells.items() if re.fullmatch(rows, name)]
    return [row[column]["mean"] - row[baseline]["mean"] for row in chosen]


def _span(gains: list[float]) -> str:
    return f"{min(gains):+.1f} to {max(gains):+.1f}"


def _interval(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, float, float]:
    """The mean difference of two entries, seed by seed, between the ends of its 95 % interval."""
    apart = [ours["values"][seed] - score for seed, score in theirs["values"].items()]
    half = scipy.stats.t.ppf(0.975, len(apart) - 1) * np.std(apart, ddof=1) / len(apart) ** 0.5
    return float(np.mean(apart) - half), float(np.mean(apart)), float(np.mean(apart) + half)


def _gains_after_the_last_round(experiment: str, column: str, rows: str) -> list[float]:
    """As `_gains` to FedAvg, but after the last round alone."""
    cells = json.loads((ROOT / f"results/{experiment}.json").read_text())["cells"]

    def last(entry: dict[str, Any]) -> float:
        cell = json.loads((ROOT / f"results/cells/{entry['id']}.json").read_text())
        return float(np.mean([result["curve"][-1] for result in cell["results"]]))

    return [last(row[column]) - last(row["fedavg"]) for name, row in cells.items() if re.fullmatch(rows, name)]


def _after_fedavgs_bytes(row: str, column: str) -> float:
    """What a method has when it has sent as much as FedAvg in all rounds: the mean of its curves at T = 200."""
    entries = json.loads((ROOT / "results/long-training.tuned.json").read_text())["cells"][row]
    cell = json.loads((ROOT / f"results/cells/{entries[column]['id']}.json").read_text())
    rounds = cell["rounds"][-1] * entries["fedavg"]["bytes_per_round"] / entries[column]["bytes_per_round"]
    return float(np.interp(rounds, cell["rounds"], np.mean([result["curve"] for result in cell["results"]], axis=0)))


def test_which_method_when_says_what_the_results_say() -> None:
    table = (ROOT / "README.md").read_text().split("which method: begin")[1].split("which method: end")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    little, differ, published, own, rate, last = lines[1:7]
    neighbours = json.loads((ROOT / "results/neighbours.tuned.json").read_text())["cells"]["mnist-1"]
    assert len(neighbours) == 15
    assert max(abs(_gains("neighbours.tuned", name, rows="mnist-1")[0]) for name in neighbours) < 0.2
    assert "fifteen methods are within 0.2 points" in little
    (few,) = _gains("neighbours.tuned", "fedmoments", rows="emnist-1")
    digits, letters, alike = _gains("long-training.tuned", "fedmoments", rows=".*-1")
    gained = f"{digits:.1f}, on Fashion-MNIST {alike:.1f} and on EMNIST {letters:.1f} (T = 20: {few:.1f})"
    assert f"At T = 200 `fedmoments` gains {gained}, `scaffold` nearly as much" in little
    nearly = [_gains("long-training.tuned", "scaffold", rows=".*-1"), [digits, letters, alike]]
    assert np.max(np.abs(np.subtract(*nearly))) < 0.2
    hard, clothes = r"(mnist|emnist)-0\.(05|1)", r"fashion-0\.(05|1)"
    few, many = (_span(_gains(f"{name}.tuned", "fedmoments", rows=hard)) for name in ("neighbours", "long-training"))
    after = _span(_gains_after_the_last_round("long-training.tuned", "fedmoments", rows=hard))
    assert f"{few} at T = 20, {many} at T = 200 (after the last round {after}), there above [every neighbour]" in differ
    few, many = (_span(_gains(f"{name}.tuned", "fedmoments", rows=clothes)) for name in ("neighbours", "long-training"))
    assert f"[Fashion-MNIST](docs/reading.md#fashion-mnist): {few} and {many}" in differ
    few, many = (_span(_gains(f"{name}.tuned", "ccvr", rows=clothes)) for name in ("neighbours", "long-training"))
    assert f"there `ccvr` is the best, {few} at T = 20 and {many} at T = 200" in published
    compared = [
        json.loads((ROOT / f"results/{name}.tuned.json").read_text()) for name in ("neighbours", "long-training")
    ]
    rows = [(name, row["fedmoments"]) for study in compared for name, row in study["cells"].items()]
    moments = [entry for name, entry in rows if name != "celeba"]
    assert len(moments) == 18
    off = [entry["difference"]["interval"][0] > 0 for name, entry in rows if re.fullmatch(hard, name)]
    assert f"{sum(off)} of these {len(off)} intervals are off zero" in differ
    assert f"None of {sum(len(entry['values']) for entry in moments)} runs diverged" in differ
    assert all(entry["status"] == "done" for entry in moments)
    ends, dyn, ccvr, ours = (_after_fedavgs_bytes("emnist-0.05", c) for c in ("fedavg", "feddyn", "ccvr", "fedmoments"))
    assert f"at {ends:.1f}, they have {dyn:.1f} and {ccvr:.1f}, `fedmoments` {ours:.1f}" in differ
    for row in (row for name, row in compared[1]["cells"].items() if re.match("mnist|emnist", name)):
        for name, entry in row.items():
            assert name == "fedmoments" or _interval(row["fedmoments"], entry)[0] > 0, name
    scaffold, ccvr = (_span(_gains("long-training.tuned", name, rows=hard)) for name in ("scaffold", "ccvr"))
    assert f"T = 200: {scaffold} and {ccvr}" in published
    scaffold, ccvr = (_span(_gains("neighbours.tuned", name, rows=hard)) for name in ("scaffold", "ccvr"))
    worst, bad = _gains("neighbours.tuned", "scaffold", rows=clothes)
    lost = f"on Fashion-MNIST `scaffold` loses {-bad:.1f} and {-worst:.1f}"
    assert f"T = 20: {scaffold} and {ccvr}, but {lost}" in published
    faces = [study["cells"]["celeba"] for study in compared]
    assert not any(
        entry["difference"]["interval"][0] > 0 for row in faces for entry in row.values() if "difference" in entry
    )
    columns = ("ditto", "moments-fine-tuned", "fine-tuned", "fedproto")
    (ditto, tuned, alone, proto) = (_gains("personal.tuned", name, rows="emnist.*") for name in columns)
    much = f"`ditto` {ditto[0]:+.1f}, fine-tuned `fedmoments` {tuned[0]:+.1f}, fine-tuned `fedavg` {alone[0]:+.1f}"
    little = f"{ditto[2]:+.1f}, {tuned[2]:+.1f}, {alone[2]:+.1f}, {proto[2]:+.1f}"
    assert f"α = 0.05: {much}, `fedproto` {proto[0]:+.1f}; α = 1: {little}." in own
    of_each = json.loads((ROOT / "results/personal.tuned.json").read_text())["cells"]
    paired = [_interval(row["moments-fine-tuned"], row["ditto"]) for name, row in of_each.items() if name != "celeba"]
    clearly = [middle for low, middle, _ in paired if low > 0]
    assert f"clearly above `ditto` in {len(clearly)} of {len(paired)} rows ({_span(clearly)})" in own
    assert all(low > 0 or low < 0 < high for low, _, high in paired)  # "level with it in the others"
    letters_of_own = json.loads((ROOT / "results/personal.tuned.json").read_text())["cells"]["emnist-0.05"]
    sent = [letters_of_own[name]["bytes_per_round"] for name in ("fedproto", "fedavg")]
    assert f"with {100 * sent[0] / sent[1]:.0f} % of the bytes `fedproto`" in own
    assert _span(_gains("overview.reference", "fedgen")) in rate
    assert _span(_gains("partial-sharing.reference", "fedgen")) in last
    private = lines[-1]
    measured = (ROOT / "docs/federation.md").read_text().split("| `dp_clip=0.5` |")[1].split("\n\n")[0]
    scores = {epsilon: float(score) for epsilon, score in re.findall(r"\| ([\d.,]*) \|[^|]*\| ([\d.]+) % \|", measured)}
    without, whole = (float(score) for score in re.findall(r"\| none \| \| \| ([\d.]+) %", measured))
    assert f"{without - scores['46']:.1f} points at ε = 46 and {without - scores['7.5']:.0f} at ε = 7.5" in private
    assert f"a whole model {whole - scores['344']:.0f} at ε = 344" in private
    # Where FedAvg with the paper's settings is better than FedGen with the reference's.
    paper, reference = (
        json.loads((ROOT / f"results/overview.{name}.json").read_text())["cells"] for name in ("paper", "reference")
    )
    better = {name for name, row in paper.items() if row["fedavg"]["mean"] > reference[name]["fedgen"]["mean"]}
    assert better == {"emnist-1", "emnist-10", "emnist-1-T40", "emnist-10-T40"}
    assert "on EMNIST at α ≥ 1 FedAvg with `--preset paper` is better" in rate


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


def test_workflows_run_the_commands_of_any_machine() -> None:
    """With the operating systems and the oldest Python that are promised; and nothing that only a workflow can do."""
    workflows = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")}
    matrix = workflows["ci"]["jobs"]["test"]["strategy"]["matrix"]
    assert {name.split("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert f'requires-python = ">={matrix["python"][0]}"' in (ROOT / "pyproject.toml").read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    jobs = [job for workflow in workflows.values() for job in workflow["jobs"].values()]
    called = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    made = {command.removeprefix("make ") for command in called if command.startswith("make ")}
    assert {"test", "packages"} <= made <= targets
    assert ".ci/run" in called
    for target in ("docs", "test", "test-all"):
        assert f"make {target} ||" in (ROOT / ".ci/run").read_text()


def test_issue_forms_have_what_github_asks_for() -> None:
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form["name"]
        assert form["description"]
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields) > 0
        assert all(part["attributes"]["label"] for part in fields)


def test_the_citation_has_the_software_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "what the format's version 1.2.0 requires"
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= paper.keys()
    assert [author["family-names"] for author in paper["authors"]] == ["Zhu", "Hong", "Zhou"]


def test_the_places_that_the_architecture_names_exist() -> None:
    table = (ROOT / "docs/develop/architecture.md").read_text().split("## Where something new goes")[1]
    named = set(re.findall(r"`([\w/]*(?:/|\.py|\.toml))[:`]", table))
    assert {"algorithms/NAME.py", "runs/tracking.py", "config.py", "docs/algorithms/", "pyproject.toml"} <= named
    for name in named:
        place = Path(name).parent if "NAME" in name else Path(name)
        assert (ROOT / "src/fedgen" / place).exists() or (ROOT / place).exists(), name


def test_the_reference_has_all_that_the_library_exports() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))
    shown = set(re.findall(r"^::: \S+\.(\w+)$", pages, re.M)) | set(re.findall(r"`fedgen\.(\w+)`", pages))
    assert set(fedgen.__all__) - {"__version__"} <= shown


def _documented() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What the reference shows from docstrings: functions, and the public methods of classes."""
    pages = "".join((ROOT / f"docs/reference/{name}.md").read_text() for name in ("library", "contract"))
    for name, alone in re.findall(r"^::: (\S+)\n(    options: {members: false})?", pages, re.M):
        module, _, last = name.rpartition(".")
        found = getattr(importlib.import_module(module), last)
        if inspect.isfunction(found):
            yield name, found
        elif not alone:
            members = ((key, value) for key, value in vars(found).items() if not key.startswith("_"))
            yield from ((f"{name}.{key}", value) for key, value in members if inspect.isfunction(value))


@pytest.mark.parametrize(("name", "function"), [pytest.param(*each, id=each[0]) for each in _documented()])
def test_docstrings_of_the_reference_say_arguments_and_returns(name: str, function: Callable[..., Any]) -> None:
    words = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    missing = [p for p in signature.parameters if p != "self" and not re.search(rf"^ +\**{p}: \S", words, re.M)]
    assert not missing, name
    assert "Returns:" in words or signature.return_annotation in (None, "None"), name


def test_the_page_of_file_formats_names_what_is_in_a_cell() -> None:
    """And so in a summary, whose rows are the same."""
    page = (ROOT / "docs/reference/files.md").read_text()
    for path in sorted((ROOT / "results/cells").glob("mnist-fed*.json"))[::40]:
        cell = json.loads(path.read_text())
        keys = {*cell, *cell["data"], *(key for row in cell["results"] for key in row)}
        assert not [key for key in keys if f"`{key.removesuffix('_best5')}`" not in page], path.name


def test_the_commands_reference_has_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools/site"))
    import commands

    page = commands.page()
    for command in ("run", "sweep", "report", "data show", "federate init", "federate gate"):
        assert f"\n## fedgen {command}\n" in f"\n{page}"
    rows = [row.split(" | ") for row in page.splitlines() if row.startswith("| `")]
    assert not [row for row in rows if not row[3].strip(" |")], "each argument and option has its words"
    run = page.split("## fedgen run\n")[1].split("\n## ")[0]
    for name in SETTINGS:
        assert f"`{flag_of(name)}`" in run, name
    assert re.search(r"^\| `--local-steps` \| \S+ \| 20 \| Mini-batches", run, re.M), "with its default"
    assert re.search(r"^\| `--checkpoint-every` \| .* \| `10.0` \|", run, re.M), "and one that is no setting"
