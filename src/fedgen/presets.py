"""The three presets as flat settings: `key` for a run, `algorithm.key` for one algorithm.

`paper` is what the paper says, and the defaults in the code. `reference` is what the authors' released
code does instead; each line of it can be set alone. `tuned` is the best honest setting we know: values
chosen on held-out training images (docs/reading.md), never on the test set.
"""

from typing import Any

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
    "tuned": {
        "fedavg.lr": 0.1,
        "fedprox.lr": 0.1,
        "fedensemble.lr": 0.1,
        "feddistill.lr": 0.1,
        "feddistill+.lr": 0.1,
        "feddfusion.lr": 0.1,
        "fedgen.lr": 0.1,
        "fedgen.w": 0.1,
        "fedgen.beta": 1.0,
    },
}

# CelebA comes with its users; the paper's 250 celebrities are far less than half of it, and whole.
_CELEBA = {"fedgen.hidden": 128, "partition": "natural", "train_fraction": 1.0}

# What a preset sets differently on some datasets.
DATASET_PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("paper", "celeba"): _CELEBA,
    ("reference", "celeba"): {**_CELEBA, "class_limit": False},
    ("tuned", "celeba"): {
        **_CELEBA,
        "fedavg.lr": 0.3,
        "fedprox.lr": 0.3,
        "fedensemble.lr": 0.3,
        "feddistill+.lr": 0.3,
        "feddfusion.lr": 0.3,
        "fedgen.lr": 0.01,
        "fedgen.w": 1.0,
        "fedgen.beta": 10.0,
    },
    ("reference", "emnist"): {"fedgen.beta": 1.0, "fedgen.generator_lr": 1e-4},
    ("tuned", "emnist"): {"fedgen.lr": 0.03, "fedgen.w": 1.0, "fedgen.beta": 10.0},
}

# Of these the users share one half by default, as in the paper; one's own data is used whole, or, where training
# samples are held out for validation, but for these: all that are left (0).
_HALVED = ("mnist", "emnist", "celeba", "fashion-mnist", "cifar10")
OWN_DATA: dict[str, Any] = {"train_fraction": 1.0}
OWN_DATA_HELD_OUT: dict[str, Any] = {"train_fraction": 0.8, "validation": 0}


def of_dataset(preset: str, dataset: str, evaluate_on: str = "test") -> dict[str, Any]:
    """What a preset sets differently on this dataset."""
    if dataset in _HALVED:
        return DATASET_PRESETS.get((preset, dataset), {})
    return OWN_DATA_HELD_OUT if evaluate_on == "validation" else OWN_DATA


DESCRIPTIONS = {
    "paper": "what the paper's text and tables say (default)",
    "reference": "what the authors' released code does instead",
    "tuned": "learning rates and FedGen's weights chosen on held-out training images",
}
