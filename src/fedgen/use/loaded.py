"""A run folder as an object: `fedgen.load("runs/first")`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from fedgen.algorithms import ALGORITHMS
from fedgen.config import RunConfig
from fedgen.core.contract import Model
from fedgen.data.dataset import DataForm, Dataset
from fedgen.errors import FedgenError
from fedgen.models import MODELS
from fedgen.registry import check_origin
from fedgen.report.runs import read_run
from fedgen.runs.checkpoint import load_tree, read_about
from fedgen.runs.division import load_dataset
from fedgen.runs.folder import RunFolder
from fedgen.runs.scores import Record
from fedgen.runs.trained import Trained, needed_of_users, only_needed
from fedgen.use.classifier import Classifier, built
from fedgen.use.form import read_form, task_for
from fedgen.use.generator import LatentGenerator
from fedgen.use.models import Models, absent

if TYPE_CHECKING:
    import pandas


def load(path: str | Path, *, model: Model | None = None, data: Dataset | None = None) -> "Run":
    """Open the run in a folder: its configuration, its numbers and its trained models.

    Args:
        path: The folder that `--out` or `out=` named.
        model: The network of a run that was made with a given one (`fedgen.simulate(model=...)`), which its folder
            does not hold.
        data: The dataset, which only folders of earlier versions need.

    Returns:
        The run. Models are read and compiled when they are asked for.
    """
    folder = RunFolder(Path(path))
    if not folder.config_file.exists():
        raise FedgenError(f"{path} holds no run (no config.toml); give the folder that --out or out= named")
    return Run(folder, model, data)


class Run:
    """A run that was made before, as `fedgen.load` gives it."""

    def __init__(self, folder: RunFolder, model: Model | None = None, data: Dataset | None = None) -> None:
        self._folder, self._read, self._model, self._data = folder, read_run(folder.path), model, data
        self._models: Models | None = None

    def __repr__(self) -> str:
        """What was run, in a line."""
        state = "" if self._read.ended else ", not ended"
        seeds = ", ".join(map(str, self.seeds))
        return f"<run {self.path}: {', '.join(self.algorithms)} on {self.config.dataset}, seeds {seeds}{state}>"

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._folder.path

    @property
    def config(self) -> RunConfig:
        """All that decided the result."""
        return self._read.config

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The algorithms that were run."""
        return self.config.algorithms

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds, one for each repetition."""
        return self.config.run_seeds

    @property
    def metrics(self) -> Sequence[Record]:
        """The evaluations, one record for each (the lines of metrics.jsonl)."""
        return self._read.records

    @property
    def results(self) -> Sequence[Record]:
        """The numbers of each algorithm and seed (the results in summary.json)."""
        return self._read.results

    @property
    def form(self) -> DataForm:
        """What samples look like: shape, type, normalisation, class names."""
        return self.models.form

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; their numbers where they have none."""
        return self.form.class_names

    def model(
        self, algorithm: str | None = None, *, seed: int | None = None, user: int | None = None, best: bool = False
    ) -> Classifier:
        """The global model, or a user's own.

        Args:
            algorithm: Its name. Default: the run's first.
            seed: Of which repetition. Default: the first.
            user: The number of the user whose own model it is. Default: the global model.
            best: Whether to take that of the best evaluation, where the run kept it (`keep_best`, `patience`), in place
                of the last round's.

        Returns:
            A model that predicts.
        """
        return self.models.model(algorithm, seed=seed, user=user, best=best)

    def generator(
        self, algorithm: str | None = None, *, seed: int | None = None, best: bool = False
    ) -> LatentGenerator:
        """The server's generator of features.

        Args:
            algorithm: Its name. Default: `fedgen`.
            seed: Of which repetition. Default: the first.
            best: Whether to take that of the best evaluation.

        Returns:
            A generator that samples features of given labels.
        """
        return self.models.generator(algorithm, seed=seed, best=best)

    def to_pandas(self) -> "pandas.DataFrame":
        """The evaluations as a table of pandas, which must be installed.

        Returns:
            A row for each evaluation, a column for each key of metrics.jsonl.
        """
        return as_frame(self.metrics)

    @property
    def models(self) -> Models:
        """Its trained models."""
        if self._models is None:
            form = _form(self._folder, self.config, self._data)
            task = task_for(self.config, form, _checked_model(self.config, self._model, self.path))
            for name in self.algorithms:
                _check_origin(self.config, "algorithm", name, ALGORITHMS)
            self._models = Models(self.config, task, form, self._states)
        return self._models

    def _states(self, algorithm: str, seed: int, best: bool, users: bool) -> Trained:
        file = self._folder.model_file(algorithm, seed, best=best)
        if not file.exists():
            raise FedgenError(absent(algorithm, seed, best, self.path))
        made = built(self.config, algorithm, self.models.task)
        server = load_tree(file, jax.eval_shape(made.server_init, jax.random.key(0)))
        round = int(read_about(file).get("round", self.config.rounds))
        needed = needed_of_users(made, self.models.task) if users else None
        if needed is None:
            return Trained(server, None, round)
        of_users = self._folder.model_file(algorithm, seed, best=best, users=True)
        if not of_users.exists():
            raise FedgenError(
                f"{self.path} has no users' models of {algorithm}: a federation's stay at its sites, and earlier"
                " versions kept none; run it again"
            )
        one = jax.eval_shape(made.client_init, jax.random.key(0))
        many = jax.tree.map(lambda a: jax.ShapeDtypeStruct((self.config.users, *a.shape), a.dtype), one)
        return Trained(server, load_tree(of_users, only_needed(many, needed)), round)


def as_frame(records: Sequence[Mapping[str, Any]]) -> "pandas.DataFrame":
    """Records as a table of pandas."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise FedgenError("there is no pandas here: pip install pandas") from None
    return pandas.DataFrame.from_records(list(records))


def _form(folder: RunFolder, config: RunConfig, data: Dataset | None) -> DataForm:
    """What the run's samples look like: from its folder, or of an earlier version's from the dataset itself."""
    if folder.data_file.exists():
        return read_form(folder.data_file)
    try:
        return (data or load_dataset(config)).form
    except FedgenError as error:
        raise FedgenError(
            f"{folder.path} was made by an earlier version, which did not note what its samples look like, and its"
            f" dataset is not here ({error}); give it: fedgen.load(..., data=...)"
        ) from error


def _checked_model(config: RunConfig, model: Model | None, path: Path) -> Model | None:
    if model is not None:
        return model
    if config.model == "own":
        raise FedgenError(
            f"{path} was made with a network given as an object, which its folder does not hold; give it:"
            f" fedgen.load('{path}', model=...)"
        )
    _check_origin(config, "model", config.model, MODELS)
    return None


def _check_origin(config: RunConfig, kind: str, name: str, registry: Any) -> None:
    """Refuse another plug-in, or another version of it, than the run was made with."""
    wanted = config.plugins.get(f"{kind} {name}")
    if wanted is not None:
        check_origin(kind, name, wanted, registry.origin(name))
