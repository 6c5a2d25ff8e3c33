"""From a configuration to the engine's arguments: the task, the data on the devices, each seed's division."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.algorithms import ALGORITHMS, build
from fedgen.compiled import use_whole_entries
from fedgen.config import PER_ALGORITHM, RunConfig
from fedgen.core.contract import Algorithm, Array, Federation, Task
from fedgen.data.dataset import DataForm, Dataset
from fedgen.data.federated import Division, gather
from fedgen.models.check import check_model
from fedgen.models.check_numbers import check_numbers
from fedgen.runs.division import check_finite, divide_all, keep_partition, load_dataset
from fedgen.runs.options import check_headline, options_for
from fedgen.runs.privacy import guarantee
from fedgen.runs.scores import slices_of
from fedgen.runs.task import federation_of, task_of
from fedgen.simulator.devices import check_devices, in_float32
from fedgen.simulator.engine import Data, Inputs, Program
from fedgen.simulator.memory import check_memory
from fedgen.simulator.sharding import place, place_samples


@dataclass(frozen=True)
class Setup:
    """A run, ready to be compiled."""

    config: RunConfig
    task: Task
    federation: Federation
    data: Data
    divisions: Mapping[int, Division]  # by seed
    score_rows: Mapping[int, np.ndarray]  # by seed: the rows that are evaluated
    form: DataForm  # how the samples are stored and scaled, and what their classes are called
    # Of all setups that were prepared together, so that one program takes the inputs of each:
    width: int  # the most rows that the users hold together in any seed
    largest: int  # the most samples that a user holds in any seed

    def inputs(self, algorithm: str, seeds: Sequence[int]) -> Inputs:
        """The arguments of these runs, stacked."""
        traced, _ = options_for(self.config, algorithm)

        def stacked(arrays: Sequence[np.ndarray]) -> Array:
            return jnp.asarray(np.stack(arrays))

        chosen = [self.divisions[seed] for seed in seeds]
        return place(
            Inputs(
                jnp.stack([jax.random.key(seed) for seed in seeds]),
                # Natural users' samples differ in number between seeds; the padding is never drawn.
                stacked([np.pad(d.index, (0, self.width - len(d.index))) for d in chosen]),
                stacked([d.offset for d in chosen]),
                stacked([d.size for d in chosen]),
                stacked([d.labels.astype(np.int32) for d in chosen]),
                stacked([d.proxy for d in chosen]),
                stacked([self.score_rows[seed] for seed in seeds]),
                stacked([slices_of(self._scored_labels(seed), self.config.users) for seed in seeds]),
                {key: jnp.full(len(seeds), value, jnp.float32) for key, value in traced.items()},
            )
        )

    def program(self, algorithm: str, inputs: Inputs, batched: bool) -> Program:
        """The compiled algorithm."""
        _, fixed = options_for(self.config, algorithm)

        def configure(hyper: Mapping[str, Any]) -> tuple[Algorithm, Federation]:
            return build(ALGORITHMS[algorithm], self.task, self.federation, {**fixed, **hyper})

        return Program(
            configure,
            self.task,
            self.config.active,
            self.data,
            inputs,
            largest=self.largest,
            score_users=min(self.config.users, self.config.score_users),
            batched=batched,
            at_once=self.config.at_once,
        )

    def totals(self, seed: int) -> np.ndarray:
        """How many evaluated samples each class has."""
        return np.bincount(self._scored_labels(seed), minlength=self.task.classes)

    def _scored_labels(self, seed: int) -> np.ndarray:
        labels: np.ndarray = np.asarray(self.data.y_score)[self.score_rows[seed]]
        return labels

    def check(self) -> None:
        """Raise the errors of building the algorithms now rather than later."""
        guarantee(self.config, 1)  # whether there is an accountant, where one is needed
        check_model(self.task)
        for name in self.config.algorithms:
            check_headline(name, self._built(name)[0], self.config)

    def check_size(self) -> None:
        """Refuse what certainly cannot fit into memory."""
        for name in self.config.algorithms:
            algorithm, federation = self._built(name)
            check_memory(name, algorithm, self.task, federation, active=self.config.active, largest=self.largest)

    def _built(self, algorithm: str) -> tuple[Algorithm, Federation]:
        return build(ALGORITHMS[algorithm], self.task, self.federation, self.config.of(algorithm))


# Settings that a compiled program does not depend on, or that are among the options of each algorithm.
_NOT_COMPILED = {
    *("preset", "seed", "seeds", "alpha", "score", "headline", "patience", "keep_best", "options"),
    *PER_ALGORITHM,
}


def same_program(config: RunConfig) -> str:
    """Equal for configurations that can share one compiled program (of each algorithm)."""
    fixed = config.model_dump(exclude=_NOT_COMPILED)
    sections = {section: config.of(section) for section in ("dataset", "model", "partition")}
    hyper = {
        name: (sorted(options[0]), options[1]) for name in config.algorithms for options in [options_for(config, name)]
    }
    return json.dumps([fixed, sections, hyper], sort_keys=True)


def prepare(config: RunConfig, dataset: Dataset | None = None, model: Any = None) -> Setup:
    """Load and divide the data; `dataset` and `model` replace those that the configuration names."""
    (setup,) = prepare_together([config], dataset, model)
    return setup


@in_float32
def prepare_together(
    configs: Sequence[RunConfig], dataset: Dataset | None = None, model: Any = None
) -> tuple[Setup, ...]:
    """Setups of one dataset whose samples lie on the devices once."""
    check_devices()
    if getattr(
        jax.config, "jax_compilation_cache_dir", None
    ):  # the user's, say, of a script that several processes run
        use_whole_entries()
    dataset = dataset or load_dataset(configs[0])
    for note in dataset.notes:
        print(f"note: {note}", file=sys.stderr)
    keys = [_divided_by(config) for config in configs]
    first = {key: number for number, key in reversed(list(enumerate(keys)))}  # the first configuration that needs it
    made = {number: divide_all(configs[number], dataset) for number in sorted(first.values())}
    keyed = {(number, seed): d for number, divisions in made.items() for seed, d in divisions.items()}
    x_train, y_train, gathered = gather(dataset, keyed)
    width = max(len(division.index) for division in gathered.values())
    largest = max(int(division.size.max()) for division in gathered.values())
    check_finite(dataset.name, x_train, dataset.x_test)
    x, y = place_samples(x_train), place(y_train)
    scored = {"validation": (x, y)}
    if any(config.evaluate_on == "test" for config in configs):
        scored["test"] = (place_samples(dataset.x_test), place(dataset.y_test))
    everything = np.arange(len(dataset.y_test), dtype=np.int32)
    setups: list[Setup] = []
    checked: set[tuple[str, str]] = set()
    for key, config in zip(keys, configs, strict=True):
        divisions = {seed: gathered[first[key], seed] for seed in config.run_seeds}
        task = task_of(config, model, dataset, proxy_samples=len(divisions[config.seed].proxy))
        rows = {s: d.validation if config.evaluate_on == "validation" else everything for s, d in divisions.items()}
        data = Data(x, y, *scored[config.evaluate_on])
        setup = Setup(config, task, federation_of(config), data, divisions, rows, dataset.form, width, largest)
        if (like := (same_program(config), config.headline)) not in checked:  # it takes a while, and is the same
            setup.check()
            setup.check_size()
            check_numbers(task, dataset.x_train, dataset.x_test)
            checked.add(like)
        setups.append(setup)
    for number, divisions in made.items():
        keep_partition(configs[number], dataset, divisions)
    return tuple(setups)


def _divided_by(config: RunConfig) -> str:
    """Equal for configurations that divide the data alike: the algorithms and their options change nothing there."""
    settings = config.model_dump(exclude={"algorithms", "rounds", "preset", "score", "headline", "plugins", "options"})
    kept = {key: value for key, value in settings.items() if key not in PER_ALGORITHM}
    return json.dumps([kept, config.of("partition")], sort_keys=True)
