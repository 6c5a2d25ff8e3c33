"""A reproduction on the page: every number is that of its table's file, and what is lacking is said."""

import json
from pathlib import Path

import pytest

from fedgen.errors import FedgenError
from fedgen.full_report import collect
from fedgen.paper.results import all_results, write_results
from fedgen.paper.spec import experiments
from fedgen.report.chart_files import save_charts
from fedgen.report.page import render
from fedgen.report.page_cells import shown
from fedgen.report.parts import Section
from reproduction_folder import prototype_table, reproduce
from run_folders import run_folder


def _section(folder: Path) -> Section:
    (section,) = collect([folder]).sections
    return section


def test_each_view_shows_the_numbers_of_the_file(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "overview")
    section = _section(tmp_path)
    views = {view.title: view for view in section.tables}
    assert list(views) == ["Reproduced, the published below", "Paired difference to FedAvg", "The authors' metric"]
    for title, view in views.items():
        assert [column.title for column in view.columns[1:]] == [column["label"] for column in table["columns"]]
        for row, cells in zip(table["rows"], view.rows, strict=True):
            assert cells[0].text == row["label"]
            for column, cell in zip(table["columns"], cells[1:], strict=True):
                entry = table["cells"][row["name"]][column["name"]]
                if title.startswith("Paired"):
                    expected = entry["difference"]["mean"] if "difference" in entry else None
                    assert cell.value == expected
                    continue
                ours = entry if title.startswith("Reproduced") else entry["metrics"]["authors"]
                assert (cell.value, cell.std) == (ours["mean"], ours["std"])
                assert cell.published.value == entry["published"]["mean"]
                assert cell.difference.value == ours["mean"] - entry["published"]["mean"]
                below = shown(cell).below
                assert below[0].text == f"published {entry['published']['mean']:.2f}"
                coloured = below[1].tone in ("perhaps-better", "perhaps-worse")
                alike = title == "The authors' metric" and row["name"].startswith("mnist")
                assert coloured is alike, "only what is of one metric, and of the same data, is better or worse"
    assert "metric" in views["Reproduced, the published below"].note, "the published are by another, and that is said"


def test_what_is_missing_failed_or_quick_is_said(tmp_path: Path) -> None:
    reproduce(tmp_path / "a", "overview", missing=3, failed=2)
    section = _section(tmp_path / "a")
    assert "Of 105 cells: 3 missing, 2 failed. (out of memory)" in section.notices
    last = section.tables[0].rows[-1]
    assert [shown(cell).text for cell in last[-5:]] == ["missing"] * 3 + ["failed"] * 2
    assert last[-1].value is None
    reproduce(tmp_path / "b", "overview", quick=True)
    section = _section(tmp_path / "b")
    assert "quick" in section.title
    assert "not a result" in section.notices[0]


def test_columns_of_another_preset_are_named(tmp_path: Path) -> None:
    reproduce(tmp_path, "ablation")
    assert "Of preset reference, not paper: reference − switch." in _section(tmp_path).notices


def test_every_experiment_and_preset_has_its_own_section(tmp_path: Path) -> None:
    grids = [name for name, one in experiments().items() if one.kind == "grid"]
    for name in grids:
        reproduce(tmp_path, name, quick=True)
    reproduce(tmp_path, "overview", quick=True, preset="reference")
    page = collect([tmp_path])
    assert len(page.sections) == len(grids) + 1
    assert len({section.name for section in page.sections}) == len(page.sections)
    assert all(section.tables and section.charts for section in page.sections)
    assert len(render(page)) < 500_000


def test_curves_that_lack_a_metric_are_counted(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "partial-sharing")
    curves = _section(tmp_path).charts[-1]
    assert list(curves.data["metrics"].values()) == ["accuracy, full test set", "accuracy, labels a user trained on"]
    assert "not recorded" not in curves.caption
    entry = table["cells"]["mnist-0.1"]["fedgen"]
    path = tmp_path / "cells" / f"{entry['id']}.json"
    cell = json.loads(path.read_text())
    for result in cell["results"]:
        del result["curve_seen_labels"]
    path.write_text(json.dumps(cell))
    caption = _section(tmp_path).charts[-1].caption
    assert caption.endswith("Of the second metric 1 curve was not recorded.")
    path.unlink()
    assert _section(tmp_path).notices[-1].startswith("The files of 1 cells are not in the folder")


def test_fewer_rounds_are_better_and_times_are_compared_as_ratios(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "rounds-to-target")
    section = _section(tmp_path)
    tones = {shown(cell).tone for row in section.tables[1].rows for cell in row[1:] if cell.value and cell.value < 0}
    assert tones <= {"better", "perhaps-better"}
    assert [view.title for view in section.tables][-1] == "Megabytes until then"
    first = table["cells"][table["rows"][0]["name"]]["fedavg"]
    assert section.tables[-1].rows[0][1].value == first["mean"] * 2.3, "2.3 MB in each round"

    table = reproduce(tmp_path / "time", "synthetic-batch")
    cells = table["cells"]["emnist-0.1"]
    first = _section(tmp_path / "time").tables[0].rows[0]
    assert first[2].value == cells["B8"]["time_ratio"]["mean"] == pytest.approx(1.11)
    ratio = cells["B8"]["published"]["mean"] / cells["fedavg"]["published"]["mean"]
    assert first[2].published.value == ratio


def test_curves_come_from_the_cells_or_else_from_the_table(tmp_path: Path) -> None:
    table = reproduce(tmp_path / "cells", "curves", rows=("mnist-0.1", "mnist-1"))
    chart = _section(tmp_path / "cells").charts[-1]
    assert list(chart.data["y"]) == [row["name"] for row in table["rows"]]
    entry = table["cells"]["mnist-0.1"]["fedavg"]
    cell = json.loads((tmp_path / "cells/cells" / f"{entry['id']}.json").read_text())
    x, mean, low, high = chart.data["series"][0]["points"]["mnist-0.1"][-1]
    last = [result["curve"][-1] for result in cell["results"]]
    assert (x, low, high) == (200, min(last), max(last))
    assert mean == pytest.approx(sum(last) / len(last), rel=1e-6)

    table = reproduce(tmp_path / "table", "curves", cells=False, rows=("mnist-0.1", "mnist-1"))
    chart = _section(tmp_path / "table").charts[-1]
    figures = {figure["name"]: figure for figure in table["figures"]}
    assert list(chart.data["y"]) == list(figures)
    for name, figure in figures.items():
        for one in figure["series"]:
            drawn = next(s for s in chart.data["series"] if s["name"] == one["label"])["points"][name]
            assert [point[1] for point in drawn] == one["y"]


@pytest.mark.slow
def test_heterogeneity_is_drawn_with_the_published_points(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "heterogeneity", rows=("mnist-0.05", "mnist-0.1", "mnist-1", "mnist-10"))
    section = _section(tmp_path)
    assert section.sources[0].text.endswith("\nalpha = 0.05 | 0.1 | 1.0 | 10.0"), "in the rows' order"
    chart = section.charts[0]
    assert chart.data["log"]
    first = table["figures"][0]["series"][0]
    assert chart.data["series"][0]["published"]["y"] == first["published"]
    paths = save_charts(collect([tmp_path]), tmp_path / "figures")
    again = save_charts(collect([tmp_path]), tmp_path / "again")
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    assert len(paths) == 2 * sum(len(chart.data["y"]) * len(chart.data["metrics"]) for chart in section.charts)


def test_two_reproductions_stay_apart_and_runs_may_stand_beside(tmp_path: Path) -> None:
    for name in ("one", "two"):
        reproduce(tmp_path / name, "partial-sharing")
    page = collect([tmp_path / "one", run_folder(tmp_path / "run"), tmp_path / "two"])
    names = [chart.name for section in page.sections for chart in section.charts]
    assert len(set(names)) == len(names)
    assert len(page.sections) == 3
    assert all(
        str(tmp_path / name) in section.title for name, section in zip(("one", "two"), page.sections, strict=False)
    )


def test_results_that_cannot_be_read_are_one_sentence(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "partial-sharing")
    (path,) = tmp_path.glob("*.json")
    for damaged, message in (
        ({**table, "format": 99}, "format 99"),
        ({key: value for key, value in table.items() if key != "columns"}, "damaged"),
    ):
        path.write_text(json.dumps(damaged))
        with pytest.raises(FedgenError, match=message):
            collect([tmp_path])
    path.unlink()
    with pytest.raises(FedgenError, match="nor a finished sweep or reproduction"):
        collect([tmp_path])


def test_a_run_at_the_papers_settings_has_the_published_numbers(tmp_path: Path) -> None:
    paper = {"users": 20, "active": 10, "rounds": 200, "eval_every": 20}
    (section,) = collect([run_folder(tmp_path / "run", **paper)]).sections
    at = [column.title for column in section.tables[0].columns].index("published")
    row = next(row for row in section.tables[0].rows if row[0].text == "fedgen")
    assert (row[at].value, row[at].std) == (93.03, 0.32)
    assert row[at + 1].value == pytest.approx(row[1].value - 93.03)
    assert "another metric" in section.tables[0].note
    (section,) = collect([run_folder(tmp_path / "partial", **paper, share="predictor")]).sections
    row = next(row for row in section.tables[0].rows if row[0].text == "fedgen")
    assert row[at].value == 65.42, "the paper's table of partial sharing"
    (section,) = collect([run_folder(tmp_path / "fewer", **paper | {"rounds": 100})]).sections
    assert "published" not in [column.title for column in section.tables[0].columns]


def test_the_prototype_has_its_table_and_panels(tmp_path: Path) -> None:
    prototype_table(tmp_path)
    section = _section(tmp_path)
    rows = {row[0].text: row[1:] for row in section.tables[0].rows}
    before, after = shown(rows["before"][0]), shown(rows["after, rate 0.0001, diversity × 1"][0])
    assert (before.text, before.sort, before.beside) == ("80.0", 80.0, "± 1.0")
    assert before.below[0].text == "published 97.1"
    assert (after.text, after.sort, after.beside, after.below) == ("82.8", 82.84, "", [])
    assert rows["oracle"][0].text == "", "it is one for all users"
    assert rows["oracle"][1].value == 90.0
    assert section.notices == ["A caveat."]
    assert section.notes == ["The `control` is ours."]
    groups = section.charts[0].data["groups"]
    assert [len(group["panels"]) for group in groups] == [1, 1, 2, 3]
    assert groups[3]["panels"][2]["extent"] == [-8.0, 8.0, -8.0, 8.0], "what lies far out is shown from further away"
    assert "<code>control</code>" in render(collect([tmp_path]))
    assert {path.name for path in save_charts(collect([tmp_path]), tmp_path / "figures")} == {
        "prototype.png", "prototype.svg",
    }  # fmt: skip


def test_an_experiment_without_rows_says_so(tmp_path: Path) -> None:
    head = {"format": 1, "experiment": "labels", "title": "Labels", "about": "", "preset": "paper", "quick": True}
    head["overrides"] = {}
    write_results(tmp_path, {**head, "versions": ["0"], "notes": [], "labels": []})
    assert "There are no rows in this file." in _section(tmp_path).notices


def test_the_shipped_results_have_their_page() -> None:
    folder = Path(__file__).parents[2] / "results"
    tables = all_results(folder)
    assert tables
    page = collect([folder])
    assert len(page.sections) == len(tables)
    html = render(page)
    for table in tables:
        entries = [entry for row in table.get("cells", {}).values() for entry in row.values()]
        if table.get("metric") == "accuracy":
            means = [entry["mean"] for entry in entries if entry.get("mean") is not None]
            assert all(f"<span>{mean:.2f}</span>" in html for mean in means)
