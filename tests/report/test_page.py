"""What goes into the report, and what is never put together."""

import json
from pathlib import Path

import pytest

from fedgen.data.dataset import DataForm
from fedgen.errors import FedgenError
from fedgen.report.chart_files import save_charts
from fedgen.report.curves import spread
from fedgen.report.page import collect, render, write_page
from fedgen.report.page_cells import shown
from fedgen.report.table import Difference, Table
from fedgen.runs.folder import RunFolder
from fedgen.version import __version__
from run_folders import records_of, run_folder, summary_of


def _rows(table: Table) -> dict[str, dict[str, str]]:
    titles = [column.title for column in table.columns]
    return {row[0].text: dict(zip(titles, (shown(cell).text for cell in row), strict=True)) for row in table.rows}


def test_one_run_is_one_table_with_the_numbers_of_its_summary(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", algorithms=["fedavg", "fedgen", "feddistill"], seeds=3)
    (section,) = collect([path]).sections
    rows = _rows(section.tables[0])
    for row in summary_of(path)["table"]:
        assert rows[row["algorithm"]]["score"] == f"{row['mean']:.2f}"
    # The last ten of twenty rounds at 2-round steps: (12 + ... + 20) / 5 / 20 = 0.8 of the level of seeds 0, 1, 2.
    assert rows["fedgen"]["score"] == f"{0.8 * 85:.2f}"
    assert rows["fedgen"]["vs fedavg"] == "▲ +3.20"
    assert rows["feddistill"]["users' own"] == f"{0.8 * 31:.2f}"
    assert rows["fedgen"]["MB/round"] == "3.00"
    assert "feddistill" in section.tables[0].note
    assert not section.notices
    assert "rounds = 20" in section.chips, "the preset has 200"


def test_classes_are_shown_by_name_where_the_folder_has_names(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run")
    (section,) = collect([path]).sections
    assert section.charts[1].data["names"] == [], "an older folder has none"
    RunFolder(path).write_data(DataForm(("healthy", "ill"), (8, 8, 1), "uint8", "signed", 255))
    (section,) = collect([path]).sections
    assert section.charts[1].data["names"] == ["healthy", "ill"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"preset": "reference"}, "preset"),
        ({"score": "seen"}, "score"),
        ({"dataset": "emnist"}, "dataset"),
        ({"alpha": 1.0}, "alpha"),
        ({"local_steps": 40}, "local_steps"),
        ({"share": "predictor"}, "share"),
        ({"partition__min_samples": 3}, "partition.min_samples"),
        ({"evaluate_on": "validation"}, "evaluate_on"),
    ],
)
def test_what_may_not_be_compared_is_apart_and_that_is_said(
    tmp_path: Path, settings: dict[str, object], named: str
) -> None:
    page = collect([run_folder(tmp_path / "a"), run_folder(tmp_path / "b", **settings)])
    assert len(page.sections) == 2
    assert named in page.notices[0]
    assert len({section.title for section in page.sections}) == 2 or named == "score"
    assert page.sections[0].lead != page.sections[1].lead or named != "score"


def test_results_of_another_version_are_apart(tmp_path: Path) -> None:
    paths = [run_folder(tmp_path / "a"), run_folder(tmp_path / "b", seed=7)]
    summary = summary_of(paths[1])
    (paths[1] / "summary.json").write_text(json.dumps({**summary, "version": "0.0.9"}))
    page = collect(paths)
    assert len(page.sections) == 2
    assert "version" in page.notices[0]
    assert any("0.0.9" in notice for notice in page.sections[1].notices)


def test_seeds_of_several_folders_come_together(tmp_path: Path) -> None:
    together = collect([run_folder(tmp_path / "all", seeds=3)]).sections[0]
    apart = collect([run_folder(tmp_path / "a", seeds=1), run_folder(tmp_path / "b", seed=1, seeds=2)]).sections
    assert len(apart) == 1
    assert _rows(apart[0].tables[0]) == _rows(together.tables[0])
    assert list(apart[0].charts[1].data["panels"]) == ["seed 0", "seed 1", "seed 2"]


def test_settings_of_one_algorithm_make_rows_of_their_own(tmp_path: Path) -> None:
    a, b = run_folder(tmp_path / "a"), run_folder(tmp_path / "b", algorithms=["fedgen"], fedgen__w=10.0)
    (section,) = collect([a, b]).sections
    assert list(_rows(section.tables[0])) == ["fedavg", "fedgen (w = 1.0)", "fedgen (w = 10.0)"]
    tuned = run_folder(tmp_path / "c", algorithms=["fedavg"], lr=0.1)
    (section,) = collect([a, tuned]).sections
    assert list(_rows(section.tables[0])) == ["fedavg (lr = 0.01)", "fedgen", "fedavg (lr = 0.1)"]
    assert "several settings" in section.notices[0]
    assert all("fedavg" not in title for title in (c.title for c in section.tables[0].columns))


def test_a_repetition_is_counted_once_and_told(tmp_path: Path) -> None:
    a, b = run_folder(tmp_path / "a"), run_folder(tmp_path / "b")
    (section,) = collect([a, b]).sections
    assert _rows(section.tables[0])["fedgen"]["seeds"] == "2"
    assert all("repeats another run exactly" in notice for notice in section.notices)
    assert len(section.notices) == 4
    summary = summary_of(b)
    summary["results"][0]["curve"][-1][1] += 1
    (b / "summary.json").write_text(json.dumps(summary))
    (section,) = collect([a, b]).sections
    assert "differs from another run" in section.notices[0]


def test_a_run_that_has_not_ended_has_curves_and_no_score(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run", stop=14)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"algorithm": "fedg')  # killed while it wrote
    (section,) = collect([path]).sections
    rows = _rows(section.tables[0])
    assert rows["fedavg"]["score"] == f"{0.8 * 80.5:.2f}"
    assert rows["fedgen"]["score"] == "–"
    assert "fedgen (seed 1) is at round 14" in section.notices[0]
    points = {s["name"]: s["points"]["headline"] for s in section.charts[0].data["series"]}
    assert [len(points[name]) for name in ("fedavg", "fedgen")] == [10, 7]


def test_what_diverged_has_no_mean(tmp_path: Path) -> None:
    (section,) = collect([run_folder(tmp_path / "run", diverges="fedgen")]).sections
    rows = _rows(section.tables[0])
    assert {rows["fedgen"][key] for key in ("score", "seen labels", "matching")} == {"–"}
    assert "diverged at round 11" in section.notices[0]


def test_folders_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    good = run_folder(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    for folders, message in (
        ([tmp_path / "none"], "not a folder"),
        ([tmp_path / "empty"], "holds neither a run"),
        ([good, good], "twice"),
    ):
        with pytest.raises(FedgenError, match=message):
            collect(folders)
    with pytest.raises(FedgenError, match=r"\.html"):
        write_page(collect([good]), tmp_path / "summary.json")
    spoilt = (
        ("config.toml", "preset = "),
        ("config.toml", 'colour = "blue"'),
        ("summary.json", "[]"),
        ("summary.json", "{}"),
        ("metrics.jsonl", "not json\n"),
        ("labels.json", "{}"),
    )
    for number, (name, content) in enumerate(spoilt):
        damaged = run_folder(tmp_path / f"damaged-{number}")
        (damaged / name).write_text(content)
        with pytest.raises(FedgenError, match="damaged"):
            collect([damaged])


def test_the_page_is_the_same_bytes_again_and_holds_no_address(tmp_path: Path) -> None:
    page = collect([run_folder(tmp_path / "run")])
    html = render(page)
    assert html == render(collect([tmp_path / "run"]))
    assert f"fedgen {__version__}" in html
    allowed = "http://www.w3.org/2000/svg"  # a name, not an address: browsers never fetch it
    assert "http" not in html.replace(allowed, "").replace("http-equiv", "")
    assert len(html) < 100_000


def test_names_cannot_become_code(tmp_path: Path) -> None:
    hostile = tmp_path / "<img src=x onerror=alert(1)>"
    html = render(collect([run_folder(hostile)]))
    assert "<img" not in html
    summary = summary_of(hostile)
    config = {**summary["config"], "dataset": "</script><script>alert(1)</script>"}
    text = (hostile / "config.toml").read_text().replace('dataset = "mnist"', f'dataset = "{config["dataset"]}"')
    (hostile / "config.toml").write_text(text)
    html = render(collect([hostile]))
    assert "<script>alert" not in html
    assert html.count("</script>") == 2


def test_points_are_the_mean_and_the_range_where_all_seeds_have_values() -> None:
    assert spread([[[1, 10.0], [2, 20.0]], [[1, 14.0]]]) == [(1, 12.0, 10.0, 14.0)]
    assert spread([]) == []


def test_differences_are_marked_with_more_than_colour() -> None:
    assert shown(Difference(1.0, [0.5, 1.5])).text == "▲ +1.00"
    assert shown(Difference(1.0, [-0.5, 2.5])).text == "△ +1.00"
    assert shown(Difference(-1.0, [-1.5, -0.5])).text == "▼ −1.00"
    assert shown(Difference(-1.0)).text == "▽ −1.00"
    assert shown(Difference(0.001)).text == "= +0.00"
    assert shown(Difference(None)).text == "–"


def test_figures_are_written_for_a_paper(tmp_path: Path) -> None:
    page = collect([run_folder(tmp_path / "run")])
    paths = save_charts(page, tmp_path / "figures")
    curves = next(chart for section in page.sections for chart in section.charts if chart.kind == "lines")
    others = [f".{metric}" for metric in curves.data["y"] if metric != curves.data["first"]]
    assert others, "one figure for each metric that the page offers"
    wanted = ["runs-1-partition", *(f"runs-1-curves{choice}" for choice in ("", *others))]
    assert sorted(path.name for path in paths) == sorted(f"{name}.{form}" for name in wanted for form in ("png", "svg"))
    for path in paths:
        start = path.read_bytes()[:8]
        assert start == b"\x89PNG\r\n\x1a\n" if path.suffix == ".png" else b"<?xml" in start
    assert records_of(tmp_path / "run"), "the folder is as it was"


def test_models_that_were_measured_have_a_section_for_each_dataset(tmp_path: Path) -> None:
    path = run_folder(tmp_path / "run")
    entry = {
        "dataset": "mnist (test)", "algorithm": "fedgen", "seed": 0, "user": None, "best": False, "round": 20,
        "samples": 10, "accuracy": 70.0, "f1": 68.5, "auc": None, "ece": 4.25, "confusion": [[5, 1], [2, 2]],
        "classes": [{"name": "cat"}, {"name": "<dog>"}],
        "reliability": [{"low": 0.6, "high": 0.8, "samples": 10, "confidence": 74.0, "accuracy": 70.0}],
    }  # fmt: skip
    others = [{**entry, "user": 3}, {**entry, "dataset": "mine.npz", "best": True}]
    (path / "evaluation.json").write_text(json.dumps({"evaluations": [entry, *others]}))
    page = collect([path])
    _, first, second = page.sections
    assert first.title == "Models measured on mnist (test)"
    assert second.title == "Models measured on mine.npz"
    rows = _rows(first.tables[0])
    assert list(rows) == ["fedgen, seed 0", "fedgen, seed 0, user 3"]
    assert rows["fedgen, seed 0"]["accuracy, %"] == "70.00"
    assert rows["fedgen, seed 0"]["AUC"] == "–"
    matrix, reliability = first.charts
    assert matrix.data["panels"]["fedgen, seed 0"] == [[5, 1], [2, 2]]
    assert reliability.data["series"][0]["points"]["accuracy"] == [[70.0, 70.0, 70.0, 70.0]]
    assert "<dog>" not in render(page)
    names = {file.name for file in save_charts(page, tmp_path / "figures")}
    assert {"evaluation-1-confusion.png", "evaluation-1-confusion.1.svg", "evaluation-2-reliability.png"} <= names
    (path / "evaluation.json").write_text('{"evaluations": [{"dataset": "x"}]}')
    with pytest.raises(FedgenError, match="evaluate again"):
        collect([path])
