"""Try the configurations of a sweep: all for all rounds, or by successive halving, where poor ones stop early."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedgen.config import RunConfig
from fedgen.grid.runner import Material, compute
from fedgen.grid.store import Store, cell_name, identity
from fedgen.runs.scores import score_of
from fedgen.sweeps.outcome import Outcome, SweepWatch
from fedgen.sweeps.request import Request, Trial

Trials = Mapping[str, Sequence[Trial]]  # by algorithm


def search(
    request: Request, trials: Trials, store: Store, *, jobs: int, watch: SweepWatch, material: Material
) -> dict[str, list[Outcome]]:
    """The outcome of each configuration, by algorithm, the best first."""
    ended: dict[str, list[Outcome]] = {algorithm: [] for algorithm in trials}
    going = {algorithm: list(some) for algorithm, some in trials.items()}
    before: dict[tuple[str, int], Outcome] = {}
    steps = rungs(request, trials)
    for rung, until in enumerate(steps):
        configs = [config for some in going.values() for trial in some for config in trial.configs(request.run_seeds)]
        title = "search" if len(steps) == 1 else f"search, rung {rung + 1} of {len(steps)}"
        watch.stage(title, len(configs), sum(store.cell(config, until) is not None for config in configs))
        listener = _Listener(request, going, store, until, rung, watch)
        failures = compute(configs, store, jobs=jobs, until=until, watch=listener, material=material)
        for algorithm, some in going.items():
            outcomes = []
            for trial in some:
                outcome = outcome_of(request, trial, store, until, rung, failures)
                earlier = before[algorithm, trial.number].history if rung else ()
                outcome = replace(outcome, history=(*earlier, (outcome.rounds, outcome.mean)))
                before[algorithm, trial.number] = outcome
                outcomes.append(outcome)
            outcomes.sort(key=lambda outcome: outcome.order)
            good = sum(outcome.mean is not None for outcome in outcomes)
            on = min(good, max(len(some) // request.keep, 1)) if until is not None else 0
            going[algorithm] = [outcome.trial for outcome in outcomes[:on]]
            ended[algorithm] += outcomes[on:]
            for outcome in outcomes[on:]:  # their state is of no further use
                for config in outcome.trial.configs(request.run_seeds):
                    store.unfinished(config).remove()
    return {algorithm: sorted(outcomes, key=lambda outcome: outcome.order) for algorithm, outcomes in ended.items()}


def rungs(request: Request, trials: Trials) -> list[int | None]:
    """The rounds after which halving compares, each one of an evaluation; then None: those that are left, to the end.

    The last has `keep` times as many rounds as the one before, and so on; as many as there are configurations for.
    """
    some = next(iter(trials.values()))[0].config
    steps = [max(trial.config.rounds for one in trials.values() for trial in one)]
    most = max(map(len, trials.values()))
    while request.method == "halving" and request.keep ** len(steps) <= most:
        before = -(-steps[0] // (request.keep * some.eval_every)) * some.eval_every
        if before >= steps[0]:
            break
        steps.insert(0, before)
    return [*steps[:-1], None]


def outcome_of(
    request: Request, trial: Trial, store: Store, until: int | None, rung: int, failures: Mapping[str, str]
) -> Outcome:
    """What the cells say of a configuration."""
    scores: dict[int, float | None] = {}
    diverged: dict[int, int] = {}
    failed = ""
    for config in trial.configs(request.run_seeds):
        cell = store.cell(config, until)
        if cell is None:
            failed = failed or failures.get(identity(config), "not computed")
            scores[config.seed] = None
            continue
        (row,) = cell["results"]
        scores[config.seed] = score_of(row, config.score)
        if row["diverged_at"]:
            diverged[config.seed] = row["diverged_at"]
    names = tuple(cell_name(config, until) for config in trial.configs(request.run_seeds))
    return Outcome(trial, until or trial.config.rounds, rung, scores, diverged, failed, cells=names)


class _Listener(SweepWatch):
    """Tells when all seeds of a configuration are done."""

    def __init__(
        self, request: Request, trials: Trials, store: Store, until: int | None, rung: int, watch: SweepWatch
    ) -> None:
        self._request, self._store, self._until, self._rung, self._watch = request, store, until, rung, watch
        self._left: dict[str, tuple[Trial, set[str]]] = {}  # of each cell its trial, with the cells it still lacks
        for trial in (trial for some in trials.values() for trial in some):
            configs = trial.configs(request.run_seeds)
            left = {identity(config) for config in configs if store.cell(config, until) is None}
            self._left |= {identity(config): (trial, left) for config in configs}
            if not left:
                self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        self._watch.scored(outcome_of(self._request, trial, self._store, self._until, self._rung, {}))

    def working_on(self, unit: Sequence[RunConfig]) -> None:
        self._watch.working_on(unit)

    def advanced(self, unit: Sequence[RunConfig], share: float) -> None:
        self._watch.advanced(unit, share)

    def finished(self, config: RunConfig) -> None:
        self._watch.finished(config)
        trial, left = self._left[identity(config)]
        left.discard(identity(config))
        if not left:
            self._tell(trial)

    def failed(self, config: RunConfig, reason: str) -> None:
        self._watch.failed(config, reason)

    def stop_requested(self) -> bool:
        return self._watch.stop_requested()
