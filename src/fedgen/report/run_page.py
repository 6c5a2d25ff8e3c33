"""The report's sections about run folders."""

from collections.abc import Sequence
from typing import Any

from fedgen.config import RunConfig, resolve
from fedgen.errors import FedgenError
from fedgen.report.charts import bubbles, lines, series
from fedgen.report.comparison import HELD_OUT, compare, score_text, traffic
from fedgen.report.curves import TITLES, all_spreads, metrics_of, shown_first
from fedgen.report.figures import heading
from fedgen.report.partitions import MOST_USERS
from fedgen.report.parts import Chart, Reference, Section, Source
from fedgen.report.runs import Group, Row, Run, differing
from fedgen.report.styles import style_of
from fedgen.version import __version__

_IN_HEADING = {"dataset", "partition", "alpha", "preset"}


def sections(groups: Sequence[Group], reference: Reference) -> list[Section]:
    """A section for each group of comparable runs, with what others published for its settings."""
    apart = [key for key in differing(groups) if key not in _IN_HEADING]
    return [_section(one, f"runs-{number}", apart, reference) for number, one in enumerate(groups, 1)]


def _section(one: Group, name: str, apart: Sequence[str], reference: Reference) -> Section:
    config = one.config
    changed = _changed(config)
    settings = [f"{key} = {one.shared.get(key, 'none')}" for key in apart]
    extra = [setting for setting in settings if setting in changed]  # the preset implies the others
    notices = list(one.notices)
    versions = {run.version for run in one.runs if run.version}
    if versions - {__version__}:
        notices.append(f"Made by version {', '.join(sorted(versions))}; this page by version {__version__}.")
    if config.evaluate_on == "validation":
        notices.append("Evaluated on held-out training samples, not on the test set.")
    charts = [_curves(one, name)]
    if any(run.labels for run in one.runs):
        charts.append(_partition(one, name))
    else:
        notices.append("Who holds which labels was not recorded in these folders, so there is no picture of it.")
    return Section(
        name,
        ", ".join([heading(config.model_dump()), *extra]),
        f"Score: {score_text(config.score, config.evaluate_on)}.",
        changed,
        notices,
        [compare(one.rows, config.score, config.evaluate_on, reference.numbers(config), reference.about)],
        charts,
        sources=[_source(run) for run in one.runs],
    )


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
        y={key: _axis(key, one.config.evaluate_on) for key in metrics},
        first=shown_first(one.config.score, records),
    )


def _axis(metric: str, evaluate_on: str) -> dict[str, str]:
    """What the chooser and what the axis call a metric."""
    title = TITLES.get(metric, metric.replace("_", " "))
    if evaluate_on == "validation":
        title = title.replace("full test set", HELD_OUT)
    return {"title": title, "axis": "accuracy, %" if title.startswith("accuracy") else title}


def _series(row: Row, metrics: Sequence[str]) -> dict[str, Any]:
    megabytes = traffic(list(row.results.values()))
    scale = {"round": 1.0} if megabytes is None else {"round": 1.0, "MB": megabytes}
    style = style_of(row.algorithm, row.variant)
    return series(row.label, style, all_spreads(row.records, metrics), scale=scale)


def _partition(one: Group, name: str) -> Chart:
    run = next(run for run in one.runs if run.labels)
    panels = {f"seed {seed}": counts for each in one.runs for seed, counts in each.labels.items()}
    shown = f"the first {MOST_USERS} of {run.users:,} users" if run.users > MOST_USERS else f"{run.users} users"
    caption = f"The labels of {shown}; a bubble's area is the number of samples."
    return bubbles(f"{name}-partition", "Who holds what", caption, panels, run.class_names)


def _changed(config: RunConfig) -> list[str]:
    """The settings that are not as the preset has them."""
    kept = {key: getattr(config, key) for key in ("preset", "dataset", "algorithms")}
    try:
        usual = resolve(kept, own={"dataset", "model"})
    except FedgenError:  # an algorithm or a preset that this version does not know
        return []
    quiet = {"preset", "dataset", "algorithms", "data_dir", "label", "user", "user_file", "plugins", "options"}
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
