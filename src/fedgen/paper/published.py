"""The paper's numbers for a setting, where it printed some."""

from functools import cache

from fedgen.config import RunConfig
from fedgen.paper.spec import experiments

PUBLISHED = (
    "Published numbers are the paper's, by the authors' own metric (each user on the labels it trained on, mean of"
    " the 5 best rounds) over 3 seeds."
)
_TABLES = ("overview", "partial-sharing")
# The settings that the paper's tables are about; a run that differs in one of them has no published number.
_SETTINGS = (
    "dataset", "model", "partition", "alpha", "users", "active", "rounds", "local_steps", "batch_size", "share",
    "evaluate_on",
)  # fmt: skip


def published_for(config: RunConfig) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation by algorithm; nothing where the paper has no such row."""
    return dict(_rows().get(_key(config), {}))


def _key(config: RunConfig) -> tuple[object, ...]:
    return tuple(getattr(config, name) for name in _SETTINGS)


@cache
def _rows() -> dict[tuple[object, ...], dict[str, tuple[float, float]]]:
    found: dict[tuple[object, ...], dict[str, tuple[float, float]]] = {}
    known = experiments()
    for table in (known[name] for name in _TABLES):
        algorithms = {column.name: column.algorithm for column in table.columns}
        for row in table.rows:
            numbers = {algorithms[name]: v for name, v in row.published.items() if not isinstance(v, str)}
            found.setdefault(_key(table.config(row, table.columns[0], {}, {})), {}).update(numbers)
    return found
