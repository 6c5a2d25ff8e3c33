"""The form of a run's samples, read back from its folder, and the task that it means."""

from pathlib import Path

import numpy as np

from fedgen.config import RunConfig
from fedgen.core.contract import Model, Task
from fedgen.data.dataset import DataForm, Dataset
from fedgen.errors import FedgenError
from fedgen.files import read_json
from fedgen.runs.task import PREPARE, task_of

_ADVICE = "run it again"


def read_form(path: Path) -> DataForm:
    """How samples are stored and scaled, and what their classes are called, as the run noted it."""
    values = read_json(path, _ADVICE)
    try:
        sample, names = tuple(map(int, values["sample"])), tuple(map(str, values["class_names"]))
        features = tuple(map(str, values.get("features", ())))
        form = DataForm(names, sample, values["dtype"], values["scale"], int(values["max_value"]), features)
        known = form.scale in PREPARE and np.dtype(form.dtype).kind in "iuf" and sample and len(names) > 1
    except (KeyError, TypeError, ValueError) as error:
        raise FedgenError(f"{path} is not as this version writes it ({error}); {_ADVICE}") from error
    if not known:
        raise FedgenError(f"{path} describes no samples that a run could have had; {_ADVICE}")
    return form


def task_for(config: RunConfig, form: DataForm, model: Model | None) -> Task:
    """The task that a run learned, to predict with: the model that its configuration names, or the given one."""
    nothing, labels = np.zeros((0, *form.sample), form.dtype), np.zeros(0, np.int32)
    data = Dataset(
        "", nothing, labels, nothing, labels, len(form.class_names), scale=form.scale, max_value=form.max_value
    )
    return task_of(config, model, data, proxy_samples=1)
