"""The three presets as flat settings: `key` for a run, `algorithm.key` for one algorithm.

`paper` is what the paper says, and the defaults in the code. `reference` is what the authors' released
code does instead; each line of it can be set alone. `tuned` is the best honest setting we know: values
chosen on held-out training images (docs/reading.md), never on the test set. They are in tuned.toml, by dataset and
number of local steps.
"""

import math
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

Choices = dict[str, dict[str, dict[str, dict[str, Any]]]]  # dataset, local steps ("T20"), algorithm, setting
TUNED: Choices = tomllib.loads((files("fedgen") / "tuned.toml").read_text(encoding="utf-8"))


_FAR = 4  # times as many local steps as in the nearest search, or as few
# What was chosen and failed on test images, by dataset, local steps and algorithm: what happened, what would be better
_FAILED = {("celeba", 20, "fedsam"): "5 of 10 test runs ended at chance; choose others, fedsam.rho at most 0.05"}


def tuned(dataset: str, local_steps: int = 20, share: str = "all") -> dict[str, Any]:
    """What was chosen of each algorithm for this dataset and the nearest number of steps; for MNIST, where it was not
    searched on this one.
    """
    of_each = {**_nearest("mnist", local_steps), **_nearest(dataset, local_steps)}
    chosen = {f"{name}.{key}": value for name, (_, values) in of_each.items() for key, value in values.items()}
    # Where only a part of the model is shared, there is no global model to take a running mean of.
    return {key: value for key, value in chosen.items() if share == "all" or not key.endswith(".ema")}


def _nearest(dataset: str, local_steps: int) -> dict[str, tuple[int, dict[str, Any]]]:
    """For each algorithm that was searched on this dataset: the nearest number of steps there, and what was chosen."""
    by_steps = {int(name[1:]): of_each for name, of_each in TUNED.get(dataset, {}).items()}
    nearest_last = sorted(by_steps, key=lambda steps: -abs(math.log(steps / max(local_steps, 1))))
    return {name: (steps, values) for steps in nearest_last for name, values in by_steps[steps].items()}


def doubts(dataset: str, local_steps: int, algorithms: Iterable[str]) -> list[str]:
    """Where `tuned` has values of another dataset, of far more or fewer local steps, that failed, or none.

    A sentence for each. `local_steps` 0 means that rounds are not counted in steps.
    """
    here, mnist = _nearest(dataset, local_steps), _nearest("mnist", local_steps)
    elsewhere = [name for name in algorithms if name in mnist and name not in here]
    nowhere = [name for name in algorithms if name not in mnist and name not in here]
    far: dict[int, list[str]] = {}
    for name, (steps, _) in {**mnist, **here}.items():
        if name in algorithms and local_steps and not steps / _FAR <= local_steps <= steps * _FAR:
            far.setdefault(steps, []).append(name)
    found = []
    if elsewhere:
        found.append(
            f"{', '.join(elsewhere)} had no search on {dataset}: what was chosen on mnist is taken; better choose"
            " others (fedgen sweep)"
        )
    if nowhere:
        found.append(f"{', '.join(nowhere)} had no search: the defaults and the run's own learning rate are taken")
    for steps, names in far.items():
        found.append(
            f"{', '.join(names)}: the values were chosen for {steps} local steps, and with {local_steps} may learn"
            " little or nothing; choose others (fedgen sweep)"
        )
    for name in algorithms:
        if name in here and (what := _FAILED.get((dataset, here[name][0], name))):
            found.append(f"{name}: with these values {what} (fedgen sweep)")
    return [f"preset tuned: {sentence}" for sentence in found]


_FEDDISTILL_REFERENCE = {"gamma": 1.0, "reset": False, "unseen_as_zeros": True, "counts_start": 1}
_FEDGEN_REFERENCE = {
    "w": 10.0,
    "w_decay": 0.98,
    "beta": 10.0,
    "beta_decay": 0.98,
    "skip_first_round": True,
    "stop_after": 20,
    "noise": "uniform",
    "labels": "uniform",
    "counts_start": 1,
    "teacher": "losses-broadcast",
    "diversity": "all-pairs",
    "generator_batch": 32,
    "generator_lr": 3e-4,
    "generator_lr_decay": 0.98,
    "generator_weight_decay": 1e-2,
}

PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "reference": {
        "lr_decay": 0.99,
        "weighting": "samples",
        "statistics": "local",
        "class_limit": True,
        "score": "authors",
        "fedprox.mu": 1.0,
        "fedprox.weight_decay": 1e-3,
        **{f"feddistill.{key}": value for key, value in _FEDDISTILL_REFERENCE.items()},
        **{f"feddistill+.{key}": value for key, value in _FEDDISTILL_REFERENCE.items()},
        **{f"fedgen.{key}": value for key, value in _FEDGEN_REFERENCE.items()},
    },
    "tuned": tuned("mnist"),
}

# CelebA comes with its users; the paper's 250 celebrities are far less than half of it, and whole.
_CELEBA = {"fedgen.hidden": 128, "partition": "natural", "train_fraction": 1.0}

# What a preset sets differently on some datasets.
DATASET_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "celeba"): _CELEBA,
    ("reference", "celeba"): {**_CELEBA, "class_limit": False},
    ("tuned", "celeba"): _CELEBA,
    ("reference", "emnist"): {"fedgen.beta": 1.0, "fedgen.generator_lr": 1e-4},
}

# Of these the users share one half by default, as in the paper; one's own data is used whole, or, where training
# samples are held out for validation, but for these: all that are left (0).
_HALVED = ("mnist", "emnist", "celeba", "fashion-mnist", "cifar10")
OWN_DATA: dict[str, Any] = {"train_fraction": 1.0}
OWN_DATA_HELD_OUT: dict[str, Any] = {"train_fraction": 0.8, "validation": 0}

# What goes with robust aggregation, whatever the preset: it tells attackers by what they send, and honest updates that
# are long by chance hide them (docs/attacks.md).
ROBUST: dict[str, Any] = {"clip_gradient": 1.0}


def layers_of(preset: str, chosen: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a preset sets, given what else was chosen; the later of these layers is the stronger."""
    dataset, steps = chosen.get("dataset", "mnist"), chosen.get("local_steps", 20)
    base = PRESETS[preset]
    if preset == "tuned":
        base = tuned(dataset, steps if isinstance(steps, int) else 20, chosen.get("share", "all"))
    if dataset in _HALVED:
        return [base, DATASET_PRESETS.get((preset, dataset), {})]
    return [base, OWN_DATA_HELD_OUT if chosen.get("evaluate_on") == "validation" else OWN_DATA]


DESCRIPTIONS = {
    "paper": "what the paper's text and tables say (default)",
    "reference": "what the authors' released code does instead",
    "tuned": "learning rates and the algorithms' own weights chosen on held-out training images",
}
