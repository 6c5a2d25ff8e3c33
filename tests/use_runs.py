"""Small runs of `fedgen.simulate` on data with class names."""

from pathlib import Path
from typing import Any

import fedgen
from helpers import SMALL, blobs

NAMES = ("ant", "bee", "cow", "dog")


def named_data() -> fedgen.Dataset:
    return fedgen.from_arrays(*blobs(600), *blobs(200, seed=1), name="blobs", class_names=NAMES)


def small_run(out: Path | None, *algorithms: str, **settings: Any) -> fedgen.Result:
    """A run with small settings; `model__hidden=4` stands for the option model.hidden."""
    values = {**SMALL, **{key.replace("__", "."): value for key, value in settings.items()}}
    if values["model"] != "mlp":
        values.pop("model.hidden")
    del values["dataset"]
    options = {key: values.pop(key) for key in list(values) if "." in key}
    return fedgen.simulate(list(algorithms), data=named_data(), options=options, out=out, **values)
