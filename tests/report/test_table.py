"""A table is built once; the terminal, Markdown and the page say the same of it, and it fits."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from fedgen.report.comparison import compare, comparison
from fedgen.report.markdown import markdown
from fedgen.report.page import collect
from fedgen.report.page_cells import shown
from fedgen.report.runs import Row
from fedgen.report.styles import style_of, styles_of
from fedgen.report.table import Column, Difference, Number, Table, Text, without_empty
from fedgen.report.terminal import terminal
from run_folders import run_folder, summary_of

NOT_REACHED = Number(None, missing="not reached")
TABLE = Table(
    [Column("", "setting", number=False), Column("ours"), Column("vs fedavg")],
    [
        [Text("even"), Number(93.456, 0.5, published=Number(91.3, 0.74)), Difference(-1.25, [-2.5, 0.0])],
        [Text("uneven [1]"), Number(None, missing="diverged", published=NOT_REACHED), Difference(None)],
        [Text("small"), Number(1234, form=",.0f"), Difference(0.5)],
    ],
)


def _printed(table: Table, width: int, title: str = "") -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(*terminal(table, width, title), sep="\n")
    return capture.get()


def test_markdown_has_the_published_in_brackets() -> None:
    assert markdown(TABLE) == [
        "|  | ours | vs fedavg |",
        "|---|---|---|",
        "| even | 93.46 ±0.50 (91.30 ±0.74) | -1.25 (-2.50 … +0.00) |",
        "| uneven [1] | diverged (not reached) | – |",
        "| small | 1,234 | +0.50 |",
    ]


def test_a_terminal_has_the_published_below() -> None:
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in _printed(TABLE, 80, "A title").splitlines()]
    assert [line for line in lines if line] == [
        ["even", "93.46 ±0.50", "-1.25 (-2.50 … +0.00)"],
        ["", "91.30 ±0.74", ""],
        ["uneven [1]", "diverged", "–"],
        ["", "not reached", ""],
        ["small", "1,234", "+0.50"],
    ]
    assert _printed(TABLE, 80, "A [title]").splitlines()[0].strip() == "A [title]", "text is no markup"


def test_the_page_has_the_published_below_and_sorts_by_the_number() -> None:
    number, difference = map(shown, TABLE.rows[0][1:])
    assert (number.text, number.beside, number.sort) == ("93.46", "± 0.50", 93.456)
    assert (number.below[0].text, number.below[0].beside) == ("published 91.30", "± 0.74")
    assert (difference.text, difference.small, difference.tone) == ("▽ −1.25", "−2.50 … +0.00", "perhaps-worse")
    missing = shown(TABLE.rows[1][1])
    assert (missing.text, missing.sort, missing.tone, missing.below[0].text) == (
        "diverged", None, "missing", "published not reached",
    )  # fmt: skip


def test_columns_without_numbers_are_left_out() -> None:
    empty = Table([*TABLE.columns, Column("none")], [[*row, Number(None)] for row in TABLE.rows])
    assert without_empty(empty) == Table(TABLE.columns, [list(row) for row in TABLE.rows])


@pytest.mark.parametrize("width", [24, 40, 60, 80])
def test_a_table_too_wide_comes_in_parts(width: int) -> None:
    wide = Table(
        [Column("", number=False), *(Column(f"column {i}") for i in range(9))],
        [[Text("a row"), *(Number(10.0 + i, 0.25) for i in range(9))]],
    )
    text = _printed(wide, width)
    assert max(map(len, text.splitlines())) <= width
    assert all(f"{10 + i}.00 ±0.25" in text for i in range(9)), "no cell is torn, none is missing"
    assert text.count("a row") == text.count("┏"), "each part names its rows"


def _comparison(tmp_path: Path, width: int) -> str:
    summary = summary_of(run_folder(tmp_path / "run", algorithms=["fedavg", "fedgen"], seeds=3))
    console = Console(width=width)
    with console.capture() as capture:
        console.print(*comparison(summary, width))
    return capture.get()


def test_a_wide_terminal_shows_every_column_of_a_run_that_says_something(tmp_path: Path) -> None:
    text = _comparison(tmp_path, 160)
    # fedgen's level 84 and fedavg's 80, of which the last ten of twenty rounds are 0.8, plus the seeds' mean of 0.8.
    for expected in ("68.00 ±0.80", "+3.20 (+3.20 … +3.20)", "matching", "MB/round", "3.00", "10.5"):
        assert expected in text
    assert "users' own" not in text, "nobody has such a score"
    assert "published" not in text, "a run has no numbers beside it that are not its own"


def test_what_a_narrow_terminal_leaves_out_is_named(tmp_path: Path) -> None:
    summary = summary_of(run_folder(tmp_path / "run", seeds=3))
    wide, narrow = (comparison(summary, width) for width in (160, 80))
    every, kept = ([str(c.header) for grid in grids for c in grid.columns] for grids in (wide, narrow))
    assert wide[-1].caption is None
    left_out = [title for title in every if title not in kept]
    assert len(left_out) >= 2
    assert str(narrow[-1].caption) == f"no room here for: {', '.join(left_out)} (report.html has them)"


def test_the_privacy_of_a_run_is_in_its_table_and_on_its_page(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run")
    summary = summary_of(path)
    for number, row in enumerate(summary["results"]):
        row["privacy"] = {"epsilon": 3.0 + number / 7, "delta": 1e-5}
    (path / "summary.json").write_text(json.dumps(summary))
    (section,) = collect([path]).sections
    at = [column.title for column in section.tables[0].columns].index("ε")
    assert "at δ = 1e-05" in section.tables[0].columns[at].hint
    assert [shown(row[at]).text for row in section.tables[0].rows] == ["3.14", "3.43"], "of two seeds the greater"
    for width in (60, 160):
        console = Console(width=width)
        with console.capture() as capture:
            console.print(*comparison(summary, width))
        assert "3.43" in capture.get()


@pytest.mark.parametrize(("settings", "held_out"), [({}, False), ({"evaluate_on": "validation"}, True)])
def test_what_was_scored_on_held_out_samples_says_so(tmp_path: Path, settings: dict[str, str], held_out: bool) -> None:
    path = run_folder(tmp_path / "run", **settings)
    (section,) = collect([path]).sections
    console = Console(width=160)
    with console.capture() as capture:
        console.print(*comparison(summary_of(path), 160))
    for text in (section.lead, section.tables[0].columns[1].hint, capture.get(), repr(section.charts[0])):
        assert ("full test set" in text, "held-out training samples" in text) == (not held_out, held_out)


def test_the_difference_of_one_seed_has_no_colour(tmp_path: Path) -> None:
    for seeds, tone in ((1, "even"), (3, "better")):
        (section,) = collect([run_folder(tmp_path / str(seeds), seeds=seeds)]).sections
        (table,) = section.tables
        at = [column.title for column in table.columns].index("vs fedavg")
        difference = shown(table.rows[1][at])
        assert difference.tone == tone
        assert difference.text[0] == {"even": "△", "better": "▲"}[tone], "the sign is still there"


def test_one_seed_above_the_published_has_no_colour(tmp_path: Path) -> None:
    results = summary_of(run_folder(tmp_path / "run", algorithms=["fedgen"]))["results"]
    for seeds, tone in ((1, "even"), (2, "perhaps-better")):
        row = Row("fedgen", {}, "fedgen", results={r["seed"]: r for r in results[:seeds]})
        table = compare([row], "authors", published={"fedgen": (50.0, 1.0)})
        at = [column.title for column in table.columns].index("ours − published")
        assert shown(table.rows[0][at]).tone == tone


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_terminal_shows_fewer_columns_of_a_run_and_none_torn(tmp_path: Path, width: int) -> None:
    text = _comparison(tmp_path, width)
    assert "+3.20 (+3.20 … +3.20)" in text
    assert max(map(len, text.splitlines())) <= width
    assert text.count("┏") == 1, "it is one table still"
    assert "…" not in text.replace(" … ", "")


def test_an_algorithm_from_elsewhere_has_a_style_of_its_own() -> None:
    ours = {style_of(name) for name in ("fedavg", "fedprox", "fedensemble", "feddistill", "feddistill+", "fedgen")}
    others = {style_of(name) for name in ("scaffold", "plugin.moon:moon", "feddyn")}
    assert len(others) == 3
    assert not ours & others
    assert style_of("scaffold") == style_of("scaffold")


def test_the_columns_of_an_experiment_have_different_colours() -> None:
    columns = [{"name": f"B{size}", "algorithm": "fedgen"} for size in (8, 16, 32, 64, 128)]
    styles = styles_of([{"name": "fedavg", "algorithm": "fedavg"}, *columns])
    assert len({colour for colour, _ in styles.values()}) == 6
    assert (styles["fedavg"], styles["B8"]) == (style_of("fedavg"), style_of("fedgen"))
    many = styles_of([{"name": str(i), "algorithm": "fedgen"} for i in range(12)])
    assert len(set(many.values())) == 12
