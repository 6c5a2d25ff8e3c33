"""The report's sections about run folders."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedgen.config import RunConfig, resolve
from fedgen.errors import FedgenError
from fedgen.report.charts import bubbles, lines, series
from fedgen.report.curves import SHOWN_FIRST, TITLES, all_spreads, metrics_of
from fedgen.report.figures import heading
from fedgen.report.partitions import MOST_USERS
from fedgen.report.parts import Cell, Chart, Column, Section, Source, Table, difference, number
from fedgen.report.published import PUBLISHED, published_for
from fedgen.report.runs import Group, Row, Run, differing
from fedgen.report.styles import style_of
from fedgen.report.tables import SCORES
from fedgen.runs.scores import Record, table
from fedgen.version import __version__

_IN_HEADING = {"dataset", "partition", "alpha", "preset"}
_BESIDE = {  # the other scores of the table: title -> key of a result, hint
    "full test": ("accuracy", "global model, full test set, last 10 rounds"),
    "users' own": ("accuracy_users", "mean over the users' own models, full test set, last 10 rounds"),
    "seen labels": ("accuracy_seen_labels", "each user on the labels it trained on, last 10 rounds"),
    "seen, best 5": ("accuracy_seen_labels_best5", "the authors' metric: seen labels, mean of the 5 best rounds"),
    "matching": ("accuracy_matching", "each user on its own label distribution, last 10 rounds"),
}


def sections(groups: Sequence[Group]) -> list[Section]:
    """A section for each group of comparable runs."""
    apart = [key for key in differing(groups) if key not in _IN_HEADING]
    return [_section(one, f"runs-{number}", apart) for number, one in enumerate(groups, 1)]


def _section(one: Group, name: str, apart: Sequence[str]) -> Section:
    config = one.config
    changed = _changed(config)
    told = [f"{key} = {one.shared.get(key, 'none')}" for key in apart]
    extra = [setting for setting in told if setting in changed]  # what the preset decides goes without saying
    notices = list(one.notices)
    versions = {run.version for run in one.runs if run.version}
    if versions - {__version__}:
        notices.append(f"Made by version {', '.join(sorted(versions))}; this page by version {__version__}.")
    if config.evaluate_on == "validation":
        notices.append("Evaluated on held-out training images, not on the test set.")
    charts = [_curves(one, name)]
    if any(run.labels for run in one.runs):
        charts.append(_partition(one, name))
    else:
        notices.append("Who holds which labels was not recorded in these folders, so there is no picture of it.")
    return Section(
        name,
        ", ".join([heading(config.model_dump()), *extra]),
        f"Score: {SCORES[config.score]}.",
        changed,
        notices,
        [_table(one)],
        charts,
        sources=[_source(run) for run in one.runs],
    )


def _table(one: Group) -> Table:
    score = one.config.score
    labelled = [{**r, "algorithm": row.label} for row in one.rows for r in row.results.values()]
    compared = {row["algorithm"]: row for row in table(labelled, score)}
    published = published_for(one.config)
    beside = {title: (key, hint) for title, (key, hint) in _BESIDE.items() if _any(one, key)}
    if score == "accuracy":
        beside.pop("full test", None)  # it is the score
    columns = [
        Column("algorithm", number=False),
        Column("score", SCORES[score] + "; mean ± standard deviation over seeds"),
        Column("vs fedavg", "paired by seed, with its 95 % interval; filled where that excludes zero"),
        Column("published", PUBLISHED),
        Column("ours − published", "the score less the published number"),
        *(Column(title, hint) for title, (_, hint) in beside.items()),
        Column("seeds"),
        Column("MB/round", "sent up and down by all active users in a round"),
        Column("train s", "seconds of training, all seeds"),
    ]
    rows = []
    for row in one.rows:
        results = list(row.results.values())
        numbers = compared.get(row.label, {})
        cells = [
            Cell(row.label, row.label, swatch=style_of(row.algorithm, row.variant)),
            _mean_cell(numbers.get("mean"), numbers.get("std")),
            difference(numbers.get("diff_to_fedavg"), numbers.get("diff_ci95")),
            *_beside_published(numbers.get("mean"), published.get(row.algorithm), alike=score == "authors"),
            *(number(_mean(results, key)) for key, _ in beside.values()),
            Cell(str(len(results)), len(results)),
            number(_traffic(results)),
            number(_total(results, "seconds_train"), ".1f"),
        ]
        rows.append(cells)
    local = [
        row.label
        for row in one.rows
        if any(r["accuracy"] is None and r["accuracy_users"] for r in row.results.values())
    ]
    note = f"No global model: {', '.join(local)}. There the users' own models are scored. " if local else ""
    if published:
        note += PUBLISHED
        note += (
            " Here the score is that metric too."
            if score == "authors"
            else " The score here is another metric, so the differences to them have no colour."
        )
    return Table("", columns, _without_empty(columns, rows), note)


def _beside_published(ours: float | None, theirs: tuple[float, float] | None, *, alike: bool) -> tuple[Cell, Cell]:
    """The published number and how ours differs, in colour if both are of one metric."""
    if theirs is None:
        return number(None), number(None)
    mean, std = theirs
    return _mean_cell(mean, std), difference(None if ours is None else ours - mean, alike=alike)


def _without_empty(columns: list[Column], rows: list[list[Cell]]) -> list[list[Cell]]:
    """Drop, from both, the columns in which nothing stands."""
    empty = [i for i in range(len(columns)) if all(row[i].tone == "missing" for row in rows)]
    for i in reversed(empty):
        del columns[i]
        for row in rows:
            del row[i]
    return rows


def _mean_cell(mean: float | None, std: float | None) -> Cell:
    return number(mean, beside="" if std is None else f"± {std:.2f}")


def _any(one: Group, key: str) -> bool:
    return any(r.get(key) is not None for row in one.rows for r in row.results.values())


def _mean(results: Sequence[Record], key: str) -> float | None:
    values = [r.get(key) for r in results if not r.get("diverged_at")]
    present = [v for v in values if v is not None]
    return float(np.mean(present)) if present and len(present) == len(results) else None


def _total(results: Sequence[Record], key: str) -> float | None:
    values = [r[key] for r in results if r.get(key) is not None]
    return float(sum(values)) if values else None


def _traffic(results: Sequence[Record]) -> float | None:
    first = next((r for r in results if r.get("bytes_up") is not None), None)
    return (first["bytes_up"] + first["bytes_down"]) / 1e6 if first else None


def _curves(one: Group, name: str) -> Chart:
    records = [r for row in one.rows for own in row.records.values() for r in own]
    metrics = metrics_of(records)
    seeds = max((len(row.results) for row in one.rows), default=0)
    band = f" The line is the mean of {seeds} seeds, the band their range." if seeds > 1 else ""
    return lines(
        f"{name}-curves",
        "Learning curves",
        f"Evaluations over the rounds.{band}",
        [_series(row, metrics) for row in one.rows],
        x={"round": "round", "MB": "MB sent, all users, both ways"},
        y={key: _axis(key) for key in metrics},
        first=SHOWN_FIRST[one.config.score],
    )


def _axis(metric: str) -> dict[str, str]:
    """What the chooser and what the axis call a metric."""
    title = TITLES.get(metric, metric.replace("_", " "))
    return {"title": title, "axis": "accuracy, %" if title.startswith("accuracy") else title}


def _series(row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    megabytes = _traffic(list(row.results.values()))
    scale = {"round": 1.0} if megabytes is None else {"round": 1.0, "MB": megabytes}
    style = style_of(row.algorithm, row.variant)
    return series(row.label, style, all_spreads(row.records, metrics), scale=scale)


def _partition(one: Group, name: str) -> Chart:
    run = next(run for run in one.runs if run.labels)
    panels = {f"seed {seed}": counts for each in one.runs for seed, counts in each.labels.items()}
    shown = f"the first {MOST_USERS} of {run.users:,} users" if run.users > MOST_USERS else f"{run.users} users"
    caption = f"The labels of {shown}; a bubble's area is the number of samples."
    return bubbles(f"{name}-partition", "Who holds what", caption, panels)


def _changed(config: RunConfig) -> list[str]:
    """The settings that are not as the preset has them."""
    kept = {key: getattr(config, key) for key in ("preset", "dataset", "algorithms")}
    try:
        usual = resolve(kept, own={"dataset", "model"})
    except FedgenError:  # an algorithm or a preset that this version does not know
        return []
    quiet = {"preset", "dataset", "algorithms", "data_dir", "user_file", "plugins", "options"}
    chips = [
        f"{key} = {value}"
        for key, value in config.model_dump().items()
        if key not in quiet and value != getattr(usual, key)
    ]
    for section, options in config.options.items():
        expected = usual.of(section)
        if section != "dataset":
            chips += [f"{section}.{k} = {v}" for k, v in options.items() if k in expected and v != expected[k]]
    return chips


def _source(run: Run) -> Source:
    facts = {"state": "ended" if run.ended else "not ended"}
    if run.device is not None:
        facts["version"] = str(run.version)
        facts["device"] = f"{run.device['count']} × {run.device['kind']} ({run.device['platform']})"
        facts["JAX"] = str(run.device["jax"])
    config = run.config
    facts["seeds"] = ", ".join(map(str, config.run_seeds))
    facts["algorithms"] = ", ".join(config.algorithms)
    return Source(str(run.path), facts, run.config_text)
