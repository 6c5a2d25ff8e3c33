"""Data and networks as callers of `fedgen.simulate` and `fedgen.sweep` give them: by name, by path, or as objects."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError


@dataclass(frozen=True)
class Given:
    """What was given, apart: objects, and the settings that name the rest."""

    data: Dataset | None
    model: Any
    layer: dict[str, Any]
    own: frozenset[str]  # what is an object ("dataset", "model"), for `resolve`


def given(data: Dataset | str | Path | None, model: Any) -> Given:
    """Tell names and paths from objects; data of any other kind is refused."""
    layer: dict[str, Any] = {}
    own = set()
    if isinstance(data, str | Path):
        layer["dataset"], data = str(data), None
    elif data is not None:
        if not isinstance(data, Dataset):
            raise FedgenError(
                f"data is a {type(data).__name__}; give a name, a path, or what fedgen.from_arrays makes of arrays:"
                " fedgen.from_arrays(x_train, y_train, x_test, y_test)"
            )
        layer["dataset"] = data.name
        own.add("dataset")
    if isinstance(model, str):
        layer["model"], model = model, None
    elif model is not None:
        layer["model"] = "own"
        own.add("model")
    return Given(data, model, layer, frozenset(own))
