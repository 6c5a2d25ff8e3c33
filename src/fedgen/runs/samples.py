"""What a run's samples look like, kept in its folder so that its models can be used without its data."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import numpy as np

from fedgen.config import RunConfig
from fedgen.core.contract import Model, Task
from fedgen.data.dataset import Dataset, Scale
from fedgen.errors import FedgenError
from fedgen.files import read_json, write_whole
from fedgen.runs.task import PREPARE, model_by_name

_ADVICE = "run it again"


@dataclass(frozen=True)
class SampleForm:
    """The shape and type of a sample as stored, how it is normalised, and the names of the classes."""

    dataset: str
    sample: tuple[int, ...]
    dtype: str
    scale: Scale
    classes: int
    class_names: tuple[str, ...] = ()  # empty where classes have numbers only

    def __post_init__(self) -> None:
        """Refuse a file that was changed by hand into something that cannot be."""
        if self.scale not in PREPARE or self.dtype not in ("uint8", "float32") or self.classes < 2 or not self.sample:
            raise FedgenError(f"samples of shape {self.sample}, {self.dtype}, {self.scale} cannot be; {_ADVICE}")

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each class: its number where it has no other."""
        return self.class_names or tuple(map(str, range(self.classes)))


def form_of(dataset: Dataset) -> SampleForm:
    """The form of a dataset's samples."""
    sample = tuple(int(length) for length in dataset.x_train.shape[1:])
    dtype = np.dtype(dataset.x_train.dtype).name
    return SampleForm(dataset.name, sample, dtype, dataset.scale, dataset.classes, dataset.class_names)


def write_form(path: Path, form: SampleForm) -> None:
    """Write it as JSON."""
    write_whole(path, (json.dumps(asdict(form), indent=1, ensure_ascii=False) + "\n").encode())


def read_form(path: Path) -> SampleForm:
    """Read it back."""
    values = read_json(path, _ADVICE)
    try:
        sample, names = tuple(map(int, values["sample"])), tuple(map(str, values["class_names"]))
        return SampleForm(**{**values, "sample": sample, "class_names": names})
    except (KeyError, TypeError, ValueError) as error:
        raise FedgenError(f"{path} is not as this version writes it ({error}); {_ADVICE}") from error


def task_for(config: RunConfig, form: SampleForm, model: Model | None) -> Task:
    """The task that a run learned, to predict with: the model that its configuration names, or the given one."""
    built = model or model_by_name(config.model, form.sample, form.classes, config.of("model"))
    sample = jax.ShapeDtypeStruct(form.sample, np.dtype(form.dtype))
    return Task(built, form.classes, sample, PREPARE[form.scale], proxy_samples=1)
