"""What `fedgen.simulate` gives: the summary as a dictionary, with the models, a table and plots."""

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fedgen.report.figures import curves_figure
from fedgen.report.html import html
from fedgen.report.table import Cell, Column, Difference, Number, Table, Text
from fedgen.runs.scores import Record, headline
from fedgen.use.classifier import Classifier
from fedgen.use.generator import LatentGenerator
from fedgen.use.loaded import as_frame
from fedgen.use.models import Models

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


class Result(dict[str, Any]):
    """The content of summary.json (`result["results"]`, `result["table"]`), and what was trained.

    Attributes:
        metrics: Every evaluation, a dictionary each (the lines of metrics.jsonl).
        path: The run folder, or None where none was written.
        finished: Whether all algorithms and seeds came to their end.
    """

    def __init__(
        self,
        summary: Mapping[str, Any],
        metrics: Sequence[Record],
        models: Models,
        path: Path | None = None,
        *,
        finished: bool = True,
    ) -> None:
        super().__init__(summary)
        self.metrics, self.path, self.finished, self._models = list(metrics), path, finished, models

    def __repr__(self) -> str:
        """The scores in a line; `dict(result)` shows all."""
        scores = [f"{row['algorithm']} {_percent(row['mean'])}" for row in self["table"]]
        state = "" if self.finished else " (not finished)"
        return f"<result on {self['config']['dataset']}: {', '.join(scores) or 'nothing yet'}{state}>"

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
        return self._models.model(algorithm, seed=seed, user=user, best=best)

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
        return self._models.generator(algorithm, seed=seed, best=best)

    def to_pandas(self, what: Literal["evaluations", "results"] = "evaluations") -> "pandas.DataFrame":
        """The numbers as a table of pandas, which must be installed.

        Args:
            what: `"evaluations"`, a row for each; or `"results"`, a row for each algorithm and seed.

        Returns:
            The table; `score` is the number that counts of an evaluation.
        """
        if what == "evaluations":
            return as_frame([{**record, "score": headline(record)} for record in self.metrics])
        lists = ("curve", "curve_seen_labels")
        return as_frame([{key: value for key, value in row.items() if key not in lists} for row in self["results"]])

    def plot(self) -> "Figure":
        """The learning curves.

        Returns:
            A figure of matplotlib, with a curve for each algorithm.
        """
        return curves_figure(self, self.metrics)

    def _repr_html_(self) -> str:
        """The scores and the learning curves, for a notebook."""
        picture = io.BytesIO()
        self.plot().savefig(picture, dpi=100, format="png")
        rows: list[list[Cell]] = [
            [
                Text(row["algorithm"]),
                Number(row["mean"], row["std"]),
                Difference(row["diff_to_fedavg"], row.get("diff_ci95")),
            ]
            for row in self["table"]
        ]
        columns = [Column("algorithm", number=False), Column("score, %"), Column("vs fedavg")]
        image = base64.b64encode(picture.getvalue()).decode()
        return f'{html(Table(columns, rows))}<img alt="learning curves" src="data:image/png;base64,{image}">'


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
