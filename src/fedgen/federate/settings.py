"""The settings of a federation: those that all share, the server's, and each site's.

Flower sends the app folder to the sites: `config.toml` (a run's configuration, as the simulator writes it) and
`task.toml` (shape and type of the data). `server.toml` and `site.toml` stay at the server and at the site.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedgen.config import RunConfig, read_toml, resolve
from fedgen.core.contract import Model, Task
from fedgen.data.dataset import Dataset
from fedgen.errors import FedgenError
from fedgen.federate.schema import TaskSettings, read_settings
from fedgen.models.shared import with_predictor_of
from fedgen.registry import importable
from fedgen.runs.task import model_by_name, task_of

# The sites' data is not divided, so that what one's own data has by default counts for nothing here.
NOT_DIVIDED = {"train_fraction": RunConfig.model_fields["train_fraction"].default}


class AppSettings:
    """The settings in the app folder: the configuration of the run, and shape and type of the data."""

    def __init__(self, app: Path, folder: Path) -> None:
        self.folder = folder  # the server's or the site's own: modules there are found
        self.task = read_settings(app / "task.toml", TaskSettings)
        self.task.check()
        with importable(folder):
            self.config = resolve(NOT_DIVIDED, read_toml(app / "config.toml"), own={"dataset"})
        check_config(self.config)

    def task_with(
        self,
        model: str,
        options: dict[str, Any],
        *,
        sample: tuple[int, ...] = (),
        proxy_samples: int = 0,
    ) -> Task:
        """The task, with the named model, or with the one of the configuration where none is named.

        Under partial sharing the named model gives the extractor alone: the predictor is the configuration's for all.
        """
        task = self.task.model_copy(update={"sample": sample}) if sample else self.task
        with importable(self.folder):
            if not model:
                return task_of_settings(self.config, task, None, proxy_samples)
            form = jax.ShapeDtypeStruct(task.sample, np.dtype(task.dtype))
            own = task_of_settings(self.config, task, model_by_name(model, form, task.classes, options), proxy_samples)
            if self.config.share != "predictor":
                return own
            try:
                return own._replace(model=with_predictor_of(task_of_settings(self.config, self.task), own))
            except FedgenError as error:
                raise FedgenError(f"model '{model}': {error}") from None


def task_of_settings(config: RunConfig, task: TaskSettings, model: Model | None = None, proxy_samples: int = 0) -> Task:
    """The task of learning such data with the configured model or the given one."""
    nothing = np.zeros((0, *task.sample), task.dtype)
    labels = np.zeros(0, np.int32)
    data = Dataset("", nothing, labels, nothing, labels, task.classes, scale=task.scale, max_value=task.form.max_value)
    return task_of(config, model, data, proxy_samples)


def check_config(config: RunConfig) -> None:
    """Refuse what a federation cannot do."""
    if len(config.algorithms) != 1 or config.seeds != 1:
        raise FedgenError("a federation runs one algorithm with one seed; give one --algorithm and leave out --seeds")
    if config.evaluate_on != "test":
        raise FedgenError("a federation is evaluated on test samples; leave out evaluate_on")
