"""A model's scores on labelled data: computed, kept in the run folder, drawn."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgen.data.dataset import DataForm, Dataset
from fedgen.data.sources import DATASETS, own_path
from fedgen.data.sources import load as load_by_name
from fedgen.errors import FedgenError
from fedgen.files import read_json, write_whole
from fedgen.report.evaluations import confusion_figure, reliability_figure, title_of
from fedgen.report.figures import save_figure
from fedgen.runs.division import load_dataset
from fedgen.runs.folder import RunFolder
from fedgen.use.classifier import Classifier
from fedgen.use.inputs import columns_of, numbers_of, read_inputs, samples_of
from fedgen.use.loaded import Run
from fedgen.use.metrics import Scores, scores_of

Part = Literal["test", "train", "all"]
_TRAINED_ON = "the run was trained on samples that are among these, so the scores say little about others"


class Labelled(NamedTuple):
    """Samples as stored, with their labels."""

    name: str
    x: NDArray[Any]
    y: NDArray[np.int64]
    note: str = ""  # what a reader of the scores should know


def labelled(
    run: Run, data: "Dataset | str | tuple[Any, Any] | None", part: Part = "test", label: str = ""
) -> Labelled:
    """Samples and labels for a run: of its own dataset (None), of another, of files, or as (x, y)."""
    form = run.form
    if isinstance(data, tuple):
        x, y = data
        return _checked("arrays", x, numbers_of(np.asarray(y).ravel(), form), form)
    own = data is None or (isinstance(data, str) and _is_own(run, data) and label in ("", run.config.label))
    if isinstance(data, str) and data not in DATASETS and not own:
        if not own_path(data):
            DATASETS.find(data)  # which says what there is
        found = read_inputs([Path(data).expanduser()], form, label, columns_of(run.config))
        if found.labels is None:
            raise FedgenError(
                f"{data} has no labels to compare with: an .npz file needs an array y, a table a column of labels"
                " (--label), a folder of images a folder for each class, named as the run's classes"
            )
        note = _TRAINED_ON if _is_part_of_own(run, data) else ""
        return _checked(data, found.x, numbers_of(found.labels, form), form, note)
    dataset = data if isinstance(data, Dataset) else _loaded(run, None if own else data)
    x = {"test": dataset.x_test, "train": dataset.x_train}.get(part)
    y = {"test": dataset.y_test, "train": dataset.y_train}.get(part)
    if x is None or y is None:
        x, y = np.concatenate([dataset.x_train, dataset.x_test]), np.concatenate([dataset.y_train, dataset.y_test])
    names, plain = dataset.class_names, tuple(map(str, range(len(form.class_names))))
    by_name = names != plain[: len(names)] and (form.class_names != plain or set(names) <= set(plain))
    numbers = numbers_of([names[one] for one in y], form) if by_name else numbers_of(y, form)
    return _checked(f"{dataset.name} ({part})", x, numbers, form, _TRAINED_ON if own and part != "test" else "")


def _is_own(run: Run, name: str) -> bool:
    """Whether this is the run's own dataset, by its name or by its path."""
    config = run.config
    path = own_path(name)
    return name == config.dataset or (path is not None and path == own_path(config.dataset))


def _is_part_of_own(run: Run, name: str) -> bool:
    """Whether this path is the run's dataset, or lies in it."""
    own, path = own_path(run.config.dataset), Path(name).expanduser().resolve()
    return own is not None and path.is_relative_to(own)


def _loaded(run: Run, name: str | None) -> Dataset:
    """The dataset of that name; None is the run's own, read as the run read it."""
    config = run.config
    if name is not None:
        return load_by_name(name, data_dir=config.data_dir)
    try:
        return load_dataset(config.model_copy(update={"user_file": ""}))
    except FedgenError as error:
        raise FedgenError(f"the run's dataset cannot be read ({error}); name another with --dataset") from error


def _checked(name: str, x: Any, y: NDArray[np.int64], form: DataForm, note: str = "") -> Labelled:
    samples = samples_of(x, form)
    if len(samples) != len(y):
        raise FedgenError(f"{name}: {len(samples)} samples but {len(y)} labels")
    return Labelled(name, samples, y, note)


def evaluate(model: Classifier, data: Labelled) -> Scores:
    """A model's scores on these samples."""
    return scores_of(model.predict_proba(data.x), data.y, model.class_names)


def entry_of(model: Classifier, data: Labelled, scores: Scores) -> dict[str, Any]:
    """What evaluation.json says of it, and tables and figures are made of."""
    return {"dataset": data.name, **model.whose._asdict(), "round": model.round, **asdict(scores)}


def keep(folder: RunFolder, model: Classifier, data: Labelled, scores: Scores) -> list[Path]:
    """Add the scores to the run's evaluation.json, in place of earlier ones of the same, and draw the figures."""
    entry = entry_of(model, data, scores)
    key = ("dataset", "algorithm", "seed", "user", "best")
    kept = read_json(folder.evaluation_file)["evaluations"] if folder.evaluation_file.exists() else []
    others = [one for one in kept if any(one[k] != entry[k] for k in key)]
    text = json.dumps({"evaluations": [*others, entry]}, allow_nan=False, ensure_ascii=False)
    write_whole(folder.evaluation_file, (text + "\n").encode())
    about = re.sub(r"[^\w.]+", "-", Path(data.name).name).strip("-")
    place, name = folder.path / "evaluation", f"{model.whose}-{about}"
    title = f"{title_of(entry)}, {data.name}"
    matrix = confusion_figure(scores.confusion, model.class_names, title)
    return [
        *save_figure(matrix, place, f"{name}.confusion"),
        *save_figure(reliability_figure(entry["reliability"], scores.ece, title), place, f"{name}.reliability"),
    ]
