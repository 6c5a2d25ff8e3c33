"""How much there is to compute of a grid, before it is computed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedgen.config import RunConfig
from fedgen.simulator.setup import same_program


@dataclass(frozen=True)
class Amount:
    """What is to be computed of one dataset, or of all."""

    dataset: str
    cells: int
    done: int  # of these cells
    runs: int  # that are left: of each cell one for each seed
    programs: int  # that are compiled for them
    batches: int  # that users train on in these runs


def estimate(configs: Iterable[RunConfig], missing: Sequence[RunConfig]) -> list[Amount]:
    """The amounts of each dataset, and of all where there are several."""
    every = list(configs)
    datasets = dict.fromkeys(config.dataset for config in every)
    amounts = [
        _amount(name, [c for c in every if c.dataset == name], [c for c in missing if c.dataset == name])
        for name in datasets
    ]
    return amounts if len(amounts) < 2 else [*amounts, _amount("all", every, missing)]


def _amount(name: str, every: Sequence[RunConfig], missing: Sequence[RunConfig]) -> Amount:
    return Amount(
        name,
        len(every),
        len(every) - len(missing),
        sum(config.seeds for config in missing),
        len({same_program(config) for config in missing}),
        sum(config.seeds * config.rounds * config.active * config.local_steps for config in missing),
    )
