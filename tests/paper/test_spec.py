"""The shipped experiments, and what is said of a wrong one."""

from collections.abc import Mapping

import pytest

from fedgen.algorithms import ALGORITHMS
from fedgen.config import RunConfig, resolve
from fedgen.errors import FedgenError
from fedgen.grid.store import identity
from fedgen.paper.reproduce import Request
from fedgen.paper.spec import NAMES, Experiment, experiment, experiments, read_experiment

SEVEN = ("fedavg", "fedprox", "fedensemble", "feddistill", "feddistill+", "feddfusion", "fedgen")
ASKED_FOR = (
    "overview", "partial-sharing", "generator-structure", "synthetic-batch", "rounds-to-target", "heterogeneity",
    "stragglers", "curves", "prototype", "ablation", "controls",
)  # fmt: skip
SMALLEST = """
title = "t"
about = "a"
quick_rows = ["one"]
[[columns]]
algorithm = "fedavg"
[[rows]]
name = "one"
label = "One"
"""


def _of_their_own(one: Experiment, configs: Mapping[tuple[str, str], RunConfig]) -> list[RunConfig]:
    """The cells but for those of a row that is another one again except in the columns that it names."""
    settings = [row.settings for row in one.rows]
    again = {
        row.name: set(row.in_column) for i, row in enumerate(one.rows) if row.in_column and row.settings in settings[:i]
    }
    own, others = [], set()
    for (row, column), config in configs.items():
        if row in again and column not in again[row]:
            others.add(identity(config))
        else:
            own.append(config)
    assert others <= set(map(identity, own))
    return own


@pytest.mark.parametrize("name", sorted(experiments()))
def test_every_cell_of_every_shipped_file_is_a_valid_configuration(name: str) -> None:
    one = experiment(name)
    for preset in one.presets:
        for quick in (False, True):
            request = Request.of(one, preset=preset, quick=quick)
            configs = request.configs()
            cells = len(request.experiment.rows) * len(request.experiment.columns)
            assert len(configs) == cells * max(one.trials, 1)
            for config in configs.values():
                assert config.rounds == (10 if quick else config.rounds)
                assert config.seeds == (1 if quick else config.seeds)
            if not quick and one.kind == "grid":
                own = _of_their_own(one, configs)
                assert len({identity(config) for config in own}) == len(own), "two cells are the same"


def test_all_tables_and_figures_of_the_paper_are_there() -> None:
    assert set(ASKED_FOR) <= set(experiments())


def test_the_overview_is_the_papers() -> None:
    """Fifteen settings and seven algorithms, each with the printed number; spot checks against the paper's tables."""
    overview = experiment("overview")
    assert len(overview.rows) == 15
    assert set(NAMES) == {name for name in ALGORITHMS if not ALGORITHMS.origin(name)}
    assert tuple(column.algorithm for column in overview.columns) == SEVEN
    for row in overview.rows:
        assert set(row.published) == set(SEVEN)
    assert overview.row("mnist-0.1").published["fedgen"] == (93.03, 0.32)
    assert overview.row("celeba-5-25").published["fedensemble"] == (90.22, 0.31)
    assert overview.row("emnist-10-T40").published["feddistill"] == (54.85, 0.44)
    config = overview.config(overview.row("emnist-10-T40"), overview.column("feddistill"), {}, {})
    assert (config.dataset, config.alpha, config.local_steps, config.seeds) == ("emnist", 10.0, 40, 3)
    assert (config.users, config.active, config.rounds) == (20, 10, 200)
    celeba = overview.config(overview.row("celeba-5-25"), overview.column("fedgen"), {}, {})
    assert (celeba.users, celeba.active, celeba.partition, celeba.of("fedgen")["hidden"]) == (25, 5, "natural", 128)


def test_partial_sharing_and_targets_are_the_papers() -> None:
    sharing = experiment("partial-sharing")
    assert sharing.row("mnist-1").published["fedgen"] == (79.72, 0.52)
    assert all(sharing.config(row, c, {}, {}).share == "predictor" for row in sharing.rows for c in sharing.columns)
    targets = experiment("rounds-to-target")
    assert targets.row("mnist-0.05-80").published["feddfusion"] == "not reached"
    assert targets.row("celeba-5-10-85").published["fedgen"] == (17.0, 2.0)
    assert [row.target for row in targets.rows] == [80, 85, 75, 75, 85, 85]


def test_the_ablation_leads_from_one_preset_to_the_other() -> None:
    """All switches together turn the paper's FedGen into the reference's, and back."""
    ablation = experiment("ablation")
    for column, other in (("paper", "reference"), ("reference", "paper")):
        switches = {k: v for row in ablation.rows for k, v in row.in_column.get(column, {}).items()}
        common = {"algorithms": ["fedgen"], "score": "accuracy"}
        switched = resolve({"preset": column, **common, **switches})
        goal = resolve({"preset": other, **common})
        # With T = 20 local steps, stopping after 20 is no switch.
        for config in (switched, goal):
            config.options["fedgen"].pop("stop_after", None)
        assert switched.model_copy(update={"preset": other}) == goal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('quick_rows = ["two"]', "no row is named two; there are one"),
        ('quick_columns = ["two"]', "no column is named two; there are fedavg"),
        ("[[figures", "experiment e: "),
        ("colour = 1", "experiment e: colour: Extra inputs"),
        ('baseline = "fedgen"', "no row or column is named fedgen"),
        ('metric = "rounds"', "row one needs a target"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(change: str, message: str) -> None:
    key = change.split(" = ")[0]
    lines = [line for line in SMALLEST.splitlines() if not line.startswith(f"{key} =")]
    with pytest.raises(FedgenError, match=message.replace("[", r"\[")):
        read_experiment("e", "\n".join([change, *lines]))


def test_names_that_do_not_exist_are_answered_with_those_that_do() -> None:
    with pytest.raises(FedgenError, match="did you mean 'overview'"):
        experiment("overvew")
    with pytest.raises(FedgenError, match=r"unknown row of overview 'mnist-0\.2'"):
        Request.of(experiment("overview"), rows=("mnist-0.2",))
    with pytest.raises(FedgenError, match="ablation has no preset 'tuned'; valid: paper"):
        Request.of(experiment("ablation"), preset="tuned")


def test_chosen_rows_keep_the_row_that_differences_are_taken_to() -> None:
    chosen = Request.of(experiment("ablation"), rows=("beta",)).experiment
    assert [row.name for row in chosen.rows] == ["none", "beta"]
    curves = Request.of(experiment("curves"), rows=("mnist-1",)).experiment
    assert [figure.name for figure in curves.figures] == ["mnist-1"]


def test_quick_columns_keep_the_one_that_differences_are_taken_to() -> None:
    quick = Request.of(experiment("generator-structure"), quick=True)
    assert [column for _, column in quick.configs()] == ["fedavg", "32-256", "32-64"]
    assert len(Request.of(experiment("generator-structure")).experiment.columns) == 6
    batch = Request.of(experiment("synthetic-batch"), quick=True).experiment
    assert {name for figure in batch.figures for name in figure.columns} <= {"fedavg", "B8", "B32"}


def test_rows_and_columns_can_be_chosen_by_pattern() -> None:
    request = Request.of(experiment("neighbours"), rows=("mnist-*", "celeba"), columns=("fedm*",))
    assert [row.name for row in request.experiment.rows] == ["mnist-0.05", "mnist-0.1", "mnist-1", "celeba"]
    assert [column.name for column in request.experiment.columns] == ["fedavg", "fedmoments"], "and the baseline"
    with pytest.raises(FedgenError, match=r"unknown column of neighbours 'fedx\*'"):
        Request.of(experiment("neighbours"), columns=("fedx*",))


def test_every_algorithm_with_a_global_model_is_among_the_neighbours() -> None:
    neighbours = experiment("neighbours")
    apart = {"feddistill", "fedproto", "fedrep", "ditto"}  # of which the users' own models count
    assert {column.algorithm for column in neighbours.columns} == set(NAMES) - apart
    assert {c.algorithm for c in experiment("tuning").columns} == set(NAMES) - apart
    assert {c.algorithm for c in experiment("tuning-personal").columns} == apart
    assert neighbours.columns == experiment("long-training").columns


def test_a_search_gives_each_algorithm_as_many_configurations() -> None:
    """Three rates times two weights for FedProx, of which four are drawn; FedAvg has a grid of four of its own."""
    text = (
        SMALLEST
        + """
[[columns]]
algorithm = "fedprox"
over = {"fedprox.mu" = [0.1, 1.0], ema = []}
"""
    )
    head = "trials = 4\n[over]\nlr = [0.1, 0.2, 0.3]\nema = [0.5, 0.9]\n"
    search = read_experiment("s", text.replace('quick_rows = ["one"]', 'quick_rows = ["one"]\n' + head))
    configs = Request.of(search).configs()
    assert len(configs) == 8
    assert list(configs)[:2] == [("one", "fedavg-01"), ("one", "fedavg-02")]
    assert len({identity(config) for config in configs.values()}) == 8
    prox = [configs["one", f"fedprox-0{number}"] for number in (1, 2, 3, 4)]
    assert {(c.lr, c.of("fedprox")["mu"]) for c in prox} <= {(lr, mu) for lr in (0.1, 0.2, 0.3) for mu in (0.1, 1.0)}
    assert {config.ema for config in prox} == {0.0}
    with pytest.raises(FedgenError, match="fedavg in one has 6 configurations, not 7"):
        read_experiment("s", text.replace('quick_rows = ["one"]', 'quick_rows = ["one"]\n' + head.replace("4", "7")))
