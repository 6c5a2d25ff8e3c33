"""From cells to an experiment's table."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from fedgen.errors import FedgenError
from fedgen.grid.store import Store, identity
from fedgen.paper.assemble import assemble, rounds_to
from fedgen.paper.reproduce import Request, finish
from fedgen.paper.results import all_results
from fedgen.paper.spec import experiment
from reproduction_folder import reproduce


def test_the_first_round_at_the_target_counts() -> None:
    assert rounds_to([5, 10, 15], [70.0, 80.0, 79.0], 80) == 10
    assert rounds_to([5, 10, 15], [70.0, 79.9, 79.0], 80) is None


def test_means_differences_and_published_numbers(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "overview", rows=("mnist-0.1",))
    cells = table["cells"]["mnist-0.1"]
    stored = {
        name: json.loads((tmp_path / "cells" / f"{entry['id']}.json").read_text()) for name, entry in cells.items()
    }
    values = {name: [row["accuracy"] for row in cell["results"]] for name, cell in stored.items()}
    assert cells["fedgen"]["mean"] == pytest.approx(sum(values["fedgen"]) / 3, abs=1e-3)
    assert cells["fedgen"]["published"] == {"mean": 93.03, "std": 0.32}
    paired = ttest_rel(values["fedgen"], values["fedavg"])
    low, high = paired.confidence_interval(0.95)
    assert cells["fedgen"]["difference"]["interval"] == pytest.approx([low, high], abs=2e-3)
    assert "difference" not in cells["fedavg"]
    assert cells["feddistill"]["mean"] == pytest.approx(
        sum(row["accuracy_users"] for row in stored["feddistill"]["results"]) / 3, abs=1e-3
    )
    assert cells["fedavg"]["bytes_per_round"] == 2_300_000


def test_what_is_missing_or_failed_is_said_and_not_averaged(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "overview", rows=("mnist-0.1",), missing=1, failed=1)
    states = [entry["status"] for entry in table["cells"]["mnist-0.1"].values()]
    assert states == ["done"] * 5 + ["missing", "failed"]
    assert table["cells"]["mnist-0.1"]["fedgen"]["error"] == "out of memory"
    assert "mean" not in table["cells"]["mnist-0.1"]["fedgen"]


def test_a_seed_that_never_reaches_the_target_leaves_no_mean(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "rounds-to-target", rows=("mnist-0.1-85",))
    assert table["cells"]["mnist-0.1-85"]["fedgen"]["mean"] is not None
    store = Store(tmp_path)
    config = Request.of(experiment("rounds-to-target"), rows=("mnist-0.1-85",)).configs()["mnist-0.1-85", "fedgen"]
    path = store.cells / f"{identity(config)}.json"
    cell = json.loads(path.read_text())
    cell["results"][1]["curve"] = [50.0] * len(cell["rounds"])
    path.write_text(json.dumps(cell))
    entry = _again(tmp_path)["cells"]["mnist-0.1-85"]["fedgen"]
    assert entry["mean"] is None
    assert entry["reached"] == 2


def _again(folder: Path) -> dict[str, Any]:
    request = Request.of(experiment("rounds-to-target"), rows=("mnist-0.1-85",))
    configs, store = request.configs(), Store(folder)
    cells = {identity(c): cell for c in configs.values() if (cell := store.cell(c))}
    return assemble(request.experiment, configs, cells, {}, preset="paper", quick=False)


def test_other_files_than_the_official_are_noted(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "generator-structure")  # the made-up cells say 60,000 images for EMNIST too
    assert any("not the official split: 60,000 training and 10,000 test images" in note for note in table["notes"])
    assert not reproduce(tmp_path, "overview", rows=("mnist-1",))["notes"]


def test_a_score_that_is_a_mean_of_the_whole_run_is_noted(tmp_path: Path) -> None:
    for rounds, noted in ((11, False), (10, True), (2, True), (1, False)):
        overrides = {"rounds": rounds, "eval_every": 1}
        notes = reproduce(tmp_path, "overview", rows=("mnist-1",), overrides=overrides)["notes"]
        assert any("its beginning too" in note and "MNIST, α = 1" in note for note in notes) == noted


def test_the_authors_slices_count_where_every_cell_of_a_row_knows_them(tmp_path: Path) -> None:
    """Shipped cells; without the slices in one of them, its row is by the labels alone, and a note says so."""
    folder = Path(__file__).parents[2] / "results"
    request = Request.of(experiment("overview"), rows=("mnist-0.05", "mnist-0.1"))
    configs = request.configs()
    cells = {identity(config): Store(folder).cell(config) for config in configs.values()}
    entries: list[dict[str, float]] = []
    for older in (False, True):
        if older:
            for result in cells[identity(configs["mnist-0.1", "fedprox"])]["results"]:
                del result["accuracy_authors_best5"]
        table = assemble(request.experiment, configs, cells, {}, preset="paper", quick=False)
        assert table["authors_test_on"] == "their slices of the labels"
        assert [note.split(": ")[1] for note in table["notes"] if "all test images" in note] == [
            "MNIST, α = 0.1."
        ] * older
        entries.append({row: table["cells"][row]["fedavg"]["metrics"]["authors"]["mean"] for row in table["cells"]})
    scores = cells[identity(configs["mnist-0.1", "fedavg"])]["results"]
    for entry, key in zip(entries, ("accuracy_authors_best5", "accuracy_seen_labels_best5"), strict=True):
        assert entry["mnist-0.1"] == pytest.approx(np.mean([one[key] for one in scores]), abs=1e-3)
    assert entries[0]["mnist-0.05"] == entries[1]["mnist-0.05"]


def test_learning_curves_are_thinned_and_end_with_the_last_round(tmp_path: Path) -> None:
    (figure,) = reproduce(tmp_path, "curves", rows=("mnist-1",), overrides={"eval_every": 1})["figures"]
    assert len(figure["series"]) == 7
    for one in figure["series"]:
        assert len(one["x"]) == 40
        assert one["x"][-1] == 200
        assert all(
            low <= y + 0.005 and y <= high + 0.005
            for low, y, high in zip(one["low"], one["y"], one["high"], strict=True)
        )


def test_a_cell_or_table_with_wrong_content_is_named(tmp_path: Path) -> None:
    table = reproduce(tmp_path, "partial-sharing")
    path = tmp_path / "cells" / f"{table['cells']['mnist-0.1']['fedgen']['id']}.json"
    cell = json.loads(path.read_text())
    cell["results"][0]["accuracy"] = "x"
    path.write_text(json.dumps(cell))
    with pytest.raises(FedgenError, match=r"a cell of partial-sharing in .* is damaged \(ValueError"):
        finish(Request.of(experiment("partial-sharing")), Store(tmp_path), {})
    (tmp_path / "overview.paper.json").write_text('{"experiment": "overview", "format": 1}')
    with pytest.raises(FedgenError, match=r"table of overview in .* lacks about, notes"):
        all_results(tmp_path)


def test_the_shipped_cells_are_those_of_the_shipped_experiments() -> None:
    store = Store(Path(__file__).parents[2] / "results")
    for preset in ("paper", "reference"):
        for config in Request.of(experiment("overview"), preset=preset).configs().values():
            assert store.cell(config) is not None, f"{identity(config)}: a cell's name or settings changed"
