"""What a sweep makes of its cells, here made up: budgets, ranks, files, tables and the page."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedgen.config import RunConfig, read_toml, resolve
from fedgen.grid.store import Store
from fedgen.report.chart_files import save_charts
from fedgen.report.table import plain
from fedgen.report.terminal import terminal
from fedgen.sweeps import run as sweeps_run
from fedgen.sweeps import search
from fedgen.sweeps.page import page_of
from fedgen.sweeps.request import Request
from fedgen.sweeps.run import run_sweep
from fedgen.sweeps.tables import best_table, ranking
from reproduction_folder import DATA, made_up

BOTH = {"algorithms": ["fedavg", "fedgen"]}
BAD = "lr 0.3"


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells with plausible numbers that depend on their configuration alone; a rate of 0.3 fails."""

    def compute(configs: Iterable[RunConfig], store: Store, *, until: int | None = None, **_: Any) -> dict[str, str]:
        failures = {}
        for config in configs:
            reached = config.model_copy(update={"rounds": until or config.rounds})
            if config.lr == 0.3:
                failures[search.identity(config)] = "out of memory"
            else:
                store.keep(config, {**made_up(reached), "config": config.model_dump(mode="json")}, DATA, until)
        return failures

    for module in (search, sweeps_run):
        monkeypatch.setattr(module, "compute", compute)
    monkeypatch.setattr(sweeps_run, "_check", lambda *_: None)
    monkeypatch.setattr(sweeps_run, "save_charts", lambda *_: None)  # which takes seconds


def swept(out: Path, over: list[str], settings: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return run_sweep(Request.of({**BOTH, **(settings or {})}, over, **{"final_seeds": 0, **more}), out)


def test_budgets_are_equal_where_configurations_are_drawn_and_told_where_not(tmp_path: Path) -> None:
    drawn = swept(tmp_path / "drawn", ["lr=0.001..0.2:log", "fedgen.w=0.1,1"], method="halving", trials=9)
    fedavg, fedgen = drawn["algorithms"]
    assert (fedavg["tried"], fedgen["tried"]) == (9, 9)
    assert fedavg["rounds"] == fedgen["rounds"]
    assert drawn["rungs"] == [25, 70, 200]
    assert drawn["notes"][0] == "Equal budgets: 9 configurations of each algorithm."
    grid = swept(tmp_path / "grid", ["lr=0.01,0.1", "fedgen.w=0.1,1"])
    assert [one["rounds"] for one in grid["algorithms"]] == [2 * 3 * 200, 4 * 3 * 200]
    assert grid["notes"][0] == (
        "Unequal budgets: 2 of fedavg, 4 of fedgen. Who tries more finds more; `--trials 2` gives each as many."
    )


def test_halving_keeps_the_best_third_of_each_rung(tmp_path: Path) -> None:
    found = swept(tmp_path, ["lr=0.001..0.2:log"], {"algorithms": ["fedavg"]}, method="halving", trials=9)
    (one,) = found["algorithms"]
    for rung in range(2):
        there = [entry for entry in one["configurations"] if len(entry["rungs"]) > rung]
        then = {entry["number"]: entry["rungs"][rung][1] for entry in there}
        went_on = {entry["number"] for entry in one["configurations"] if len(entry["rungs"]) > rung + 1}
        assert went_on == set(sorted(then, key=lambda number: -then[number])[: len(then) // 3])
    assert [entry["rank"] for entry in one["configurations"]] == list(range(1, 10))
    assert [entry["stopped_early"] for entry in one["configurations"]] == [False] + [True] * 8


def test_what_failed_is_ranked_last_with_its_reason(tmp_path: Path) -> None:
    found = swept(tmp_path, ["lr=0.01,0.3,0.1"])
    for one in found["algorithms"]:
        assert one["configurations"][-1]["label"] == BAD
        assert one["configurations"][-1]["failed"] == "out of memory"
    assert "fedavg: 1 failed (out of memory)." in found["notes"]


def test_a_setting_of_all_algorithms_gives_each_its_own_file(tmp_path: Path) -> None:
    seen = set()
    for steps in ("5,10", "10,20", "5,20", "5,40", "40,80"):
        out = tmp_path / steps
        found = swept(out, [f"local_steps={steps}", "lr=0.01,0.1"])
        chosen = {one["algorithm"]: one["configurations"][0]["settings"] for one in found["algorithms"]}
        agree = len({settings["local_steps"] for settings in chosen.values()}) == 1
        files = sorted(path.name for path in out.glob("best*.toml"))
        assert files == (["best.toml"] if agree else ["best-fedavg.toml", "best-fedgen.toml"])
        for file in files:
            config = resolve(read_toml(out / file))
            for name in config.algorithms:
                assert config.local_steps == chosen[name]["local_steps"]
                assert config.of(name)["lr"] == chosen[name]["lr"]
        seen.add(agree)
    assert seen == {True, False}, "both happened"


def test_the_page_shows_the_response_of_each_setting(tmp_path: Path) -> None:
    found = swept(tmp_path, ["lr=0.001,0.1", "optimizer=sgd,adam", "fedgen.w=0,1"], final_seeds=3)
    charts = {chart.name: chart for section in page_of(tmp_path).sections for chart in section.charts}
    rate, words, weight = (charts[f"response.{name}"].data for name in ("lr", "optimizer", "w"))
    assert (rate["log"], words["log"], weight["log"]) == (True, False, False)
    assert words["x"] == {"x": "optimizer (1: sgd, 2: adam)"}
    assert [one["name"] for one in weight["series"]] == ["fedgen"]
    entries = found["algorithms"][0]["configurations"]
    for x, best, low, high in rate["series"][0]["points"]["round200"]:
        means = [entry["mean"] for entry in entries if entry["settings"]["lr"] == x]
        assert (best, low, high) == pytest.approx((max(means), min(means), max(means)))
    assert len(charts["configurations.fedavg"].data["series"]) == 4
    assert [one["name"] for one in charts["final"].data["series"]] == ["fedavg", "fedgen"]
    html = (tmp_path / "report.html").read_text()
    assert "Unequal budgets" in html
    assert "which nothing was chosen by" in html
    files = {path.name for path in save_charts(page_of(tmp_path), tmp_path / "figures")}
    assert {"response.lr.png", "response.optimizer.svg", "final.png", "configurations.fedgen.svg"} <= files


def test_drawn_points_are_not_joined(tmp_path: Path) -> None:
    swept(tmp_path, ["lr=0.001..0.2:log"], {"algorithms": ["fedavg"]}, trials=20)
    (chart,) = (chart for section in page_of(tmp_path).sections for chart in section.charts if "response" in chart.name)
    assert chart.data["scatter"]
    assert len(chart.data["series"][0]["points"]["round200"]) == 20
    assert all(low == mean == high for _, mean, low, high in chart.data["series"][0]["points"]["round200"])


def test_tables_fit_eighty_columns(tmp_path: Path) -> None:
    found = swept(tmp_path, ["lr=0.001..0.2:log", "fedgen.w=0.01..10:log", "fedgen.beta=0.1..10:log"], trials=6)
    best = best_table(found)
    assert [plain(row[1]) for row in best.rows] == ["6", "6"]
    for table in (best, *(ranking(found, one, 5) for one in found["algorithms"])):
        for grid in terminal(table, 80):
            widths = [column.width or 0 for column in grid.columns]
            assert sum(widths) + 3 * len(widths) + 1 <= 80
