"""What a search chooses, and the file that the preset `tuned` is read from."""

import json
import tomllib
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from fedgen.errors import FedgenError
from fedgen.grid.estimate import estimate
from fedgen.grid.store import Store, identity
from fedgen.paper.ranks import mean_ranks, rank_all
from fedgen.paper.reproduce import Request, finish
from fedgen.paper.results import all_results
from fedgen.paper.spec import experiment, read_experiment
from fedgen.paper.tables import tables
from fedgen.presets import TUNED
from fedgen.report.table import Text
from reproduction_folder import DATA, made_up

ROOT = Path(__file__).parents[2]


def test_the_best_configuration_on_average_is_chosen_and_written(tmp_path: Path) -> None:
    """On average over both rows the fifth; each of the others is better somewhere."""
    request = Request.of(experiment("tuning"), rows=("mnist-T200",), columns=("fedprox",))
    assert [row.name for row in request.experiment.rows] == ["mnist-T200", "mnist-T200-0.05"], "what chooses together"
    store, configs = Store(tmp_path), request.configs()
    for (row, column), config in configs.items():
        summary, easy = made_up(config), row == "mnist-T200"
        for number, result in enumerate(summary["results"]):
            # The second is better with one seed, the fourth in one row, and the third diverges with one seed of one.
            scores = {5: 80.0, 2: 90.0 - 40 * number, 3: 99.0, 4: 95.0 if easy else 60.0}
            result["accuracy"] = scores.get(int(column[-2:]), 50.0)
            result["diverged_at"] = 7 if column.endswith("-03") and number and not easy else None
        store.keep(config, summary, DATA)
    results = finish(request, store, {})
    entry = results["cells"]["mnist-T200"]["fedprox"]
    best = configs["mnist-T200", "fedprox-05"]
    assert (entry["id"], entry["mean"], entry["tried"][2]) == (identity(best), 80.0, 99.0)
    assert results["cells"]["mnist-T200-0.05"]["fedprox"]["tried"][2] is None
    written = tomllib.loads((tmp_path / "tuned.toml").read_text())
    chosen = written["mnist"]["T200"]["fedprox"]
    of_algorithm = ("lr", "lr_decay", "ema", "clip_gradient")
    assert chosen == {name: getattr(best, name) for name in of_algorithm} | {"mu": best.of("fedprox")["mu"]}
    assert written["mnist"]["T20"] == TUNED["mnist"]["T20"], "the rest stays"
    shown = tables(all_results(tmp_path)[0])[-1]
    line = "lr 0.1↓, lr_decay 1, ema 0.6, clip_gradient 10↑, mu 0.1"  # of one value tried there is no edge
    assert any(isinstance(cell, Text) and cell.text == line for cell in shown.rows[0])


def test_personal_methods_are_chosen_by_the_users_own_distributions(tmp_path: Path) -> None:
    request = Request.of(experiment("tuning-personal"), rows=("mnist-T20",), columns=("ditto",))
    store, configs = Store(tmp_path), request.configs()
    for (_, column), config in configs.items():
        summary = made_up(config)
        for result in summary["results"]:
            result |= {"accuracy": 90.0 - int(column[-2:]), "accuracy_matching": 50.0 + int(column[-2:])}
        store.keep(config, summary, DATA)
    finish(request, store, {})
    written = tomllib.loads((tmp_path / "tuned.toml").read_text())["mnist"]["T20"]
    last, first = configs["mnist-T20", "ditto-12"], configs["mnist-T20", "feddistill-01"]
    assert (written["ditto"]["lr"], written["ditto"]["lam"]) == (last.lr, last.of("ditto")["lam"])
    assert written["feddistill"]["lr"] == first.lr, "this one by the accuracy on all images"


def test_rows_that_choose_together_have_the_same_configurations() -> None:
    text = (files("fedgen.paper") / "experiments" / "tuning.toml").read_text(encoding="utf-8")
    row = 'chosen_with = "mnist-T20"\n'
    assert text.count(row) == 1
    search = experiment("tuning")
    one, other = search.row("mnist-T20"), search.row("mnist-T20-0.05")
    assert (other.over, other.over_in) == (one.over, one.over_in)
    assert one.over_in
    with pytest.raises(FedgenError, match=r"fedavg has other configurations in mnist-T20-0\.05 than in mnist-T20"):
        read_experiment("tuning", text.replace(row, row + "over_in = { fedavg = { ema = [0.5] } }\n"))


def test_a_later_piece_adds_to_the_choices_of_an_earlier_one(tmp_path: Path) -> None:
    """Pieces with other numbers of seeds have other cells: what the first one chose stays."""
    for seeds, row in ((1, "mnist-T20"), (2, "mnist-T200")):
        request = Request.of(experiment("tuning"), rows=(row,), columns=("fedsam",), overrides={"seeds": seeds})
        store = Store(tmp_path)
        for number, config in enumerate(request.configs().values()):
            summary = made_up(config)
            for result in summary["results"]:
                result["accuracy"] = 50.0 + number
            store.keep(config, summary, DATA)
        finish(request, store, {})
    last = {
        steps: experiment("tuning").tried(
            experiment("tuning").row(f"mnist-{steps}"), experiment("tuning").column("fedsam")
        )[-1]
        for steps in ("T20", "T200")
    }
    written = tomllib.loads((tmp_path / "tuned.toml").read_text())["mnist"]
    for steps, settings in last.items():
        assert written[steps]["fedsam"] == {key.removeprefix("fedsam."): value for key, value in settings.items()}


def test_a_row_may_have_values_of_its_own_for_a_column() -> None:
    search = experiment("tuning")
    tried = {row: search.tried(search.row(row), search.column("feddyn")) for row in ("mnist-T20", "mnist-T200")}
    assert {settings["feddyn.mu"] for settings in tried["mnist-T20"]} == {0.1, 0.2, 0.3}
    assert {settings["feddyn.mu"] for settings in tried["mnist-T200"]} == {0.003, 0.01, 0.03}
    assert {settings["ema"] for settings in tried["mnist-T200"]} == {0.6, 0.75}
    assert {settings["clip_gradient"] for settings in tried["mnist-T20"]} == {10.0}
    assert {settings["clip_gradient"] for settings in tried["mnist-T200"]} == {1.0}


def test_a_table_says_how_many_seeds_diverged(tmp_path: Path) -> None:
    request = Request.of(experiment("neighbours"), rows=("mnist-1",), columns=("fedavg", "feddyn"))
    store = Store(tmp_path)
    for (_, column), config in request.configs().items():
        summary = made_up(config)
        if column == "feddyn":
            summary["results"][3] |= {"diverged_at": 12, "accuracy": None}
        store.keep(config, summary, DATA)
    shown = tables(finish(request, store, {}))[0]
    assert "1 of 10 diverged" in str(shown.rows)


def test_who_lacks_a_configuration_has_no_best(tmp_path: Path) -> None:
    request = Request.of(experiment("tuning"), rows=("mnist-T20",), columns=("fedavg",))
    store, configs = Store(tmp_path), list(request.configs().values())
    for config in configs[:-1]:
        store.keep(config, made_up(config), DATA)
    assert finish(request, store, {})["cells"]["mnist-T20"]["fedavg"]["status"] == "missing"
    assert tomllib.loads((tmp_path / "tuned.toml").read_text()) == TUNED


@pytest.mark.parametrize("name", ["tuning", "tuning-personal"])
def test_the_shipped_choices_are_those_of_the_shipped_results(name: str) -> None:
    """The configuration with the best mean over the rows that choose together, by what the results say was tried."""
    search, cells = experiment(name), json.loads((ROOT / "results" / f"{name}.paper.json").read_text())["cells"]
    own = {"lr", "lr_decay", "ema", "clip_gradient"}
    for row in (row for row in search.rows if not row.chosen_with):
        together = [other.name for other in search.rows if row.name in (other.name, other.chosen_with)]
        of_row = {"dataset": "mnist", "local_steps": 20, **search.settings, **row.settings}
        chosen = TUNED[of_row["dataset"]][f"T{of_row['local_steps']}"]
        for column in search.columns:
            entries = [cells[name][column.name] for name in together]
            if entries[0]["status"] == "missing":
                continue
            tried = np.array([entry["tried"] for entry in entries], float)  # [row, configuration]; NaN: diverged
            best = int(np.nanargmax(tried.mean(axis=0)))
            settings, prefix = {**column.settings, **search.tried(row, column)[best]}, f"{column.algorithm}."
            expected = {k.removeprefix(prefix): v for k, v in settings.items() if k in own or k.startswith(prefix)}
            assert chosen[column.algorithm] == expected, f"{row.name}, {column.name}: copy results/tuned.toml"


def test_ranks_and_their_uncertainty() -> None:
    """FedGen is ahead of FedAvg with half of the seeds, behind on average, and ahead in some draws of the seeds."""
    assert mean_ranks(np.array([1.0, 3.0, 3.0, 2.0])).tolist() == [4.0, 1.5, 1.5, 3.0]
    some = Request.of(experiment("neighbours"), rows=("mnist-*",), columns=("fedavg", "feddyn", "fedgen")).experiment
    values = {"fedavg": [80, 80, 80, 80], "feddyn": [70, 70, 70, None], "fedgen": [90, 90, 65, 65]}
    entries = {
        row.name: {name: {"values": dict(enumerate(of_each))} for name, of_each in values.items()} for row in some.rows
    }
    entries["mnist-1"]["fedavg"] = {"status": "missing"}
    ranks = rank_all(some, entries)
    assert ranks["rows"] == ["mnist-0.05", "mnist-0.1"]
    first = ranks["columns"]["fedavg"]
    assert (first["rank"], first["interval"]) == (1, [1, 2])
    assert 0.5 < first["best"] < 1
    assert ranks["columns"]["feddyn"]["rank"] == 3, "a run that diverged is behind all"


def test_what_is_left_to_compute_is_counted() -> None:
    """Three partitions share a program; of two cells with two seeds, 10 rounds of 10 users' 20 steps are left."""
    settings = {"seeds": 2, "rounds": 10}
    request = Request.of(experiment("neighbours"), rows=("mnist-*",), columns=("fedavg",), overrides=settings)
    configs = list(request.configs().values())
    (amount,) = estimate(configs, configs[1:])
    assert (amount.cells, amount.done, amount.runs, amount.programs) == (3, 1, 4, 1)
    assert amount.batches == 4 * 10 * 10 * 20
