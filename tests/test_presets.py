"""The presets against the specification's table, written out."""

from pathlib import Path
from typing import Any

import pytest

from fedgen import presets
from fedgen.algorithms import ALGORITHMS
from fedgen.config import doubts_of, read_toml, resolve, to_toml
from fedgen.errors import FedgenError
from fedgen.paper.spec import experiment

# The algorithms of the paper, which the presets are about.
EVERYONE = ["fedavg", "fedprox", "fedensemble", "feddistill", "feddistill+", "feddfusion", "fedgen"]

RUN = {  # setting: (paper, reference)
    "weighting": ("uniform", "samples"),
    "statistics": ("averaged", "local"),
    "lr": (0.01, 0.01),
    "lr_decay": (1.0, 0.99),
    "weight_decay": (0.0, 0.0),
    "train_fraction": (0.5, 0.5),
    "class_limit": (False, True),
    "score": ("accuracy", "authors"),
}
OPTIONS = {
    "fedprox.mu": (0.1, 1.0),
    "fedprox.weight_decay": (None, 1e-3),
    **{
        f"{name}.{key}": values
        for name in ("feddistill", "feddistill+")
        for key, values in {
            "gamma": (0.1, 1.0),
            "reset": (True, False),
            "unseen_as_zeros": (False, True),
            "counts_start": (0, 1),
        }.items()
    },
    "feddfusion.steps": (50, 50),
    "feddfusion.batch": (128, 128),
    "feddfusion.distill_lr": (1e-4, 1e-4),
    "feddfusion.distill_optimizer": ("adam", "adam"),
    "feddfusion.distill_schedule": ("constant", "constant"),
    "feddfusion.student": ("training", "training"),
    "feddfusion.teacher": ("logits", "logits"),
    "fedensemble.members": ("all", "all"),
    "fedgen.w": (1.0, 10.0),
    "fedgen.w_decay": (1.0, 0.98),
    "fedgen.beta": (0.0, 10.0),
    "fedgen.beta_decay": (1.0, 0.98),
    "fedgen.client_batch": (32, 32),
    "fedgen.skip_first_round": (False, True),
    "fedgen.stop_after": (0, 20),
    "fedgen.noise": ("normal", "uniform"),
    "fedgen.labels": ("prior", "uniform"),
    "fedgen.counts_start": (0, 1),
    "fedgen.teacher": ("logits", "losses-broadcast"),
    "fedgen.weights": ("counts", "counts"),
    "fedgen.diversity": ("same-label", "all-pairs"),
    "fedgen.eta": (1.0, 1.0),
    "fedgen.generator_steps": (50, 50),
    "fedgen.generator_batch": (128, 32),
    "fedgen.generator_lr": (1e-4, 3e-4),
    "fedgen.generator_lr_decay": (1.0, 0.98),
    "fedgen.generator_weight_decay": (0.0, 1e-2),
    "fedgen.noise_size": (32, 32),
    "fedgen.hidden": (256, 256),
}


@pytest.mark.parametrize("column", [0, 1])
def test_paper_and_reference(column: int) -> None:
    config = resolve({"preset": ("paper", "reference")[column], "algorithms": EVERYONE})
    assert {key: getattr(config, key) for key in RUN} == {key: values[column] for key, values in RUN.items()}
    shown = {f"{name}.{key}": value for name in EVERYONE for key, value in config.of(name).items()}
    expected = {key: values[column] for key, values in OPTIONS.items() if values[column] is not None}
    assert shown == expected


def test_emnist_and_celeba_differ_as_said() -> None:
    emnist = resolve({"preset": "reference", "dataset": "emnist"}).of("fedgen")
    assert (emnist["beta"], emnist["generator_lr"]) == (1.0, 1e-4)
    assert resolve({"dataset": "celeba"}).of("fedgen")["hidden"] == 128


def test_own_data_is_used_whole_and_the_papers_by_half(tmp_path: Path) -> None:
    for name, fraction in {"mnist": 0.5, "emnist": 0.5, "fashion-mnist": 0.5, "cifar10": 0.5, "celeba": 1.0}.items():
        assert resolve({"dataset": name}).train_fraction == fraction
        assert resolve({"dataset": name}, own={"dataset"}).train_fraction == fraction, "by its name"
    assert resolve({"dataset": "arrays"}, own={"dataset"}).train_fraction == 1.0
    own = resolve({"dataset": str(tmp_path / "mine.csv")})
    assert own.train_fraction == 1.0
    assert resolve({"dataset": str(tmp_path / "mine.csv"), "train_fraction": 0.5}).train_fraction == 0.5
    kept = tmp_path / "config.toml"
    kept.write_text(to_toml(own).replace("train_fraction = 1.0", "train_fraction = 0.5"))
    assert resolve(read_toml(kept)).train_fraction == 0.5, "a configuration that was written before"


def test_tuned_changes_what_was_tuned_only() -> None:
    paper, tuned = (resolve({"preset": preset, "algorithms": EVERYONE}) for preset in ("paper", "tuned"))
    searches = experiment("tuning"), experiment("tuning-personal")
    for name in EVERYONE:
        changed = {k for k, v in tuned.of(name).items() if paper.of(name).get(k) != v}
        search, column = next((s, c) for s in searches for c in s.columns if c.name == name)
        searched = {key.split(".")[-1] for key in (*search.over, *column.over, *column.settings)}
        assert changed
        assert changed <= searched


def test_tuned_is_for_the_dataset_and_the_nearest_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = {"fedavg": {"lr": 0.1, "ema": 0.9}, "fedprox": {"lr": 0.5}}, {"fedavg": {"lr": 0.2}}
    monkeypatch.setattr(presets, "TUNED", {"mnist": {"T20": few, "T200": many}, "emnist": {"T20": {}}})

    def rates(**settings: Any) -> list[float | None]:
        config = resolve({"preset": "tuned", "algorithms": ["fedavg", "fedprox"], **settings})
        return [config.of(name).get("lr") for name in config.algorithms]

    assert rates() == rates(local_steps=60) == rates(dataset="fashion-mnist") == [0.1, 0.5]
    assert rates(local_steps=70) == [0.2, 0.5], "of FedProx only the other is known"
    assert rates(dataset="emnist") == [0.1, 0.5], "MNIST's, where there was no search"
    presets.TUNED["emnist"]["T200"] = {"fedprox": {"lr": 0.7}}
    assert rates(dataset="emnist") == [0.1, 0.7], "of FedAvg alone"
    assert resolve({"preset": "tuned", "algorithms": ["fedavg"]}).of("fedavg")["ema"] == 0.9
    assert "ema" not in resolve({"preset": "tuned", "algorithms": ["fedavg"], "share": "predictor"}).of("fedavg")


def test_tuned_says_where_its_values_are_from_elsewhere() -> None:
    def said(*algorithms: str, **settings: Any) -> list[str]:
        return doubts_of(resolve({"preset": "tuned", "algorithms": list(algorithms), **settings}))

    everyone = [name for name in ALGORITHMS if ":" not in name]
    assert said(*everyone) == said(*everyone, dataset="emnist", local_steps=800) == []
    elsewhere = "had no search on {}: what was chosen on mnist is taken; better choose others (fedgen sweep)"
    assert said("fedavg", "fedrep", "ditto", dataset="celeba") == [
        f"preset tuned: fedrep, ditto {elsewhere.format('celeba')}"
    ]
    assert said("fedmoments", dataset="cifar10") == [f"preset tuned: fedmoments {elsewhere.format('cifar10')}"]
    path = Path("mine.csv").resolve()
    assert said("fedavg", dataset=str(path)) == [f"preset tuned: fedavg {elsewhere.format(path)}"], "one's own data"
    (own,) = presets.doubts("mnist", 20, ["fedavg", "mine:own"])
    assert own.startswith("preset tuned: mine:own had no search")
    for steps, nearest in ((1, 20), (4, 20), (801, 200)):
        (far,) = said("fedavg", "feddyn", local_steps=steps)
        assert far.startswith(f"preset tuned: fedavg, feddyn: the values were chosen for {nearest} local steps")
    (failed,) = said("fedavg", "fedsam", dataset="celeba")
    assert failed.startswith("preset tuned: fedsam: with these values 5 of 10 test runs ended at chance")
    assert said("fedsam", dataset="celeba", local_steps=200) == []
    assert said("fedavg", local_steps=5) == said("fedavg", local_steps=1, local_epochs=2) == []
    assert said("feddyn", local_steps=1, preset="paper") == []


def test_a_preset_over_a_file_with_anothers_values_is_refused() -> None:
    resolved = {"preset": "paper", "weighting": "uniform", "fedgen.w": 1.0}
    with pytest.raises(FedgenError, match="written out"):
        resolve(resolved, {"preset": "reference"})
    assert resolve({"preset": "paper", "rounds": 3}, {"preset": "reference"}).weighting == "samples"


def test_alpha_has_two_names_and_the_later_wins() -> None:
    assert resolve({"partition.alpha": 0.5}, {"alpha": 7.0}).alpha == 7.0
    assert resolve({"alpha": 7.0}, {"partition.alpha": 0.5}).alpha == 0.5
