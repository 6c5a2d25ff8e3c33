"""Run all algorithms and seeds of a configuration, with records, checkpoints and a summary."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.config import to_toml
from fedgen.errors import FedgenError
from fedgen.runs.folder import RunFolder
from fedgen.runs.resume import same_config
from fedgen.runs.scores import Record, authors, matching, named_headline, scores
from fedgen.runs.stopping import best_of, out_of_patience, stopped_at
from fedgen.runs.summary import most_messages, result_row, summary_of
from fedgen.runs.trained import Trained, needed_of_users, only_needed
from fedgen.runs.watch import Watch
from fedgen.simulator.devices import in_float32
from fedgen.simulator.engine import Correct, Inputs, Program, State
from fedgen.simulator.memory import memory_told
from fedgen.simulator.setup import Setup
from fedgen.simulator.sharding import any_host, gathered, place, place_like

ROUNDS_PER_CALL = 10  # so that progress is shown and an interrupt takes effect
CHECKPOINT_SECONDS = 10.0


Keep = Callable[[str, int, Trained, bool], None]  # algorithm, seed, models, whether they are the best or the last


class Interrupted(Exception):  # noqa: N818 (not an error)
    """The run ended early as requested; its checkpoint is written."""


class RunId(NamedTuple):
    """A run among those that are computed together: one seed of one setup."""

    setup: int  # its place in the list of setups
    seed: int


@dataclass(frozen=True)
class Job:
    """An algorithm and the runs that are computed together."""

    algorithm: str
    runs: tuple[RunId, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(run_id.seed for run_id in self.runs)


@dataclass
class Progress:
    """How far a run is; all of it goes into the checkpoint, but for the records, which are in the metrics."""

    job: int = 0
    round: int = 0
    timings: list[dict[str, float]] = field(default_factory=list)  # of each job begun: seconds, and bytes of a round
    records: list[list[Record]] = field(default_factory=list)  # of each setup


@in_float32
def run(
    setup: Setup,
    *,
    folder: RunFolder | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    programs: Mapping[str, Program] | None = None,
    keep: Keep | None = None,
) -> dict[str, Any]:
    """Run a setup and return its summary; if the folder has a checkpoint, continue from it.

    `programs` may contain programs that `program_of` compiled before, by algorithm. `keep` gets the trained models,
    as the folder does.
    """
    (summary,) = run_together(
        [setup], folders=[folder], watch=watch, checkpoint_seconds=checkpoint_seconds, programs=programs, keep=keep
    )
    return summary


@in_float32
def run_together(
    setups: Sequence[Setup],
    *,
    folders: Sequence[RunFolder | None] = (),
    watch: Watch | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    programs: Mapping[str, Program] | None = None,
    until: int | None = None,
    keep: Keep | None = None,
) -> list[dict[str, Any]]:
    """Run setups that share one compiled program (`prepare_together`, `same_program`); returns a summary of each.

    Each may have a folder; checkpoints in them must be of the same round. With `until` the runs stop after that round,
    which must be one of an evaluation, with a checkpoint from which a later call goes on.
    """
    with memory_told():
        return _Runner(setups, folders, watch or Watch(), checkpoint_seconds, programs, until, keep).run()


@in_float32
def program_of(setups: Sequence[Setup], algorithm: str) -> Program:
    """The program that `run_together` needs; XLA releases the GIL, so threads can compile several."""
    inputs = inputs_of(setups, _jobs(setups, (algorithm,))[0])
    return setups[0].program(algorithm, inputs, _batched())


def inputs_of(setups: Sequence[Setup], job: Job) -> Inputs:
    """The arguments of a job's runs, stacked."""
    parts = [
        setups[number].inputs(job.algorithm, [run_id.seed for run_id in run_ids])
        for number, run_ids in itertools.groupby(job.runs, key=lambda run_id: run_id.setup)
    ]
    return parts[0] if len(parts) == 1 else place(jax.tree.map(lambda *arrays: jnp.concatenate(arrays), *parts))


def _batched() -> bool:
    # Runs batched into one program give a GPU enough to do. On a CPU they gain nothing, and run one by
    # one their results cannot depend on each other, to the last bit.
    return jax.default_backend() != "cpu"


def _jobs(setups: Sequence[Setup], algorithms: Sequence[str]) -> list[Job]:
    every = tuple(RunId(number, seed) for number, setup in enumerate(setups) for seed in setup.config.run_seeds)
    at_once = [every] if _batched() else [(run_id,) for run_id in every]
    return [Job(algorithm, run_ids) for algorithm in algorithms for run_ids in at_once]


class _Runner:
    def __init__(
        self,
        setups: Sequence[Setup],
        folders: Sequence[RunFolder | None],
        watch: Watch,
        checkpoint_seconds: float,
        programs: Mapping[str, Program] | None = None,
        until: int | None = None,
        keep: Keep | None = None,
    ) -> None:
        self.setups, self.config, self.watch = setups, setups[0].config, watch
        self.folders = {number: folder for number, folder in enumerate(folders) if folder is not None}
        self.checkpoint_seconds = checkpoint_seconds
        self.programs = dict(programs or {})
        self.until = until or self.config.rounds
        self.jobs = _jobs(setups, self.config.algorithms)
        if len(self.jobs) > 1 and (self.until < self.config.rounds or (len(setups) > 1 and self.folders)):
            raise ValueError("a checkpoint has the state of one job: pause, or run together, one algorithm and seed")
        self.progress = Progress(records=[[] for _ in setups])
        self.saved = time.monotonic()
        self.keep = keep
        self.best: dict[tuple[str, RunId], Trained] = {}  # of the current job, since the last checkpoint
        self.stopped: set[tuple[str, RunId]] = set()

    def run(self) -> list[dict[str, Any]]:
        restore = self._resume()
        for number, folder in self.folders.items():
            folder.write_data(self.setups[number].form)
            folder.write_labels({seed: d.labels for seed, d in self.setups[number].divisions.items()})
        for number in range(self.progress.job, len(self.jobs)):
            job = self.jobs[number]
            inputs = inputs_of(self.setups, job)
            if not restore:
                self.progress.job, self.progress.round = number, 0
                self.progress.timings.append({"seconds_compile": 0.0, "seconds_train": 0.0})
            timing = self.progress.timings[number]
            if self.jobs[number - 1].algorithm != job.algorithm or number == 0 or restore:
                self.watch.compiling(job.algorithm)
            if job.algorithm not in self.programs:
                start = time.monotonic()
                # One at a time: a program holds on to the devices' memory.
                self.programs = {job.algorithm: program_of(self.setups, job.algorithm)}
                timing["seconds_compile"] += time.monotonic() - start
            program = self.programs[job.algorithm]
            timing["bytes_up"] = program.traffic.up * self.config.active
            timing["bytes_down"] = program.traffic.down * self.config.active
            state = program.init(inputs)
            if restore:
                state, restore = place_like(self._restored(job, state), state), False
            self._train(job, program, inputs, state, timing)
        summaries = [self._summary(number) for number in range(len(self.setups))]
        for number, folder in self.folders.items():
            folder.write_summary(summaries[number])
        return summaries

    def _train(self, job: Job, program: Program, inputs: Inputs, state: State, timing: dict[str, float]) -> None:
        progress, config = self.progress, self.config
        ended = self._all_ended(job, state)
        while progress.round < self.until and not ended:
            next_evaluation = (progress.round // config.eval_every + 1) * config.eval_every
            stop = min(progress.round + ROUNDS_PER_CALL, next_evaluation, self.until)
            start = time.monotonic()
            state = jax.block_until_ready(program.advance(inputs, state, progress.round, stop))
            timing["seconds_train"] += time.monotonic() - start
            progress.round, ended = stop, self._all_ended(job, state)
            if stop in (next_evaluation, self.until) or ended:
                self._record(job, program, inputs, state)
                ended = self._all_ended(job, state)
            self.watch.advanced(job.algorithm, job.seeds, stop)
            if stop == self.until:
                break  # the models come before the checkpoint that says that the job is done
            if any_host(time.monotonic() - self.saved >= self.checkpoint_seconds):
                self._save(job, state)
            if any_host(self.watch.stop_requested()):
                self._save(job, state)
                raise Interrupted
        diverged = np.asarray(gathered(state.diverged))
        for index, run_id in enumerate(job.runs if self.until == config.rounds else ()):
            if not diverged[index] and (job.algorithm, run_id) not in self.stopped:  # those are kept already
                self._keep_last(job, program, state, index)
        progress.round = self.until
        self._save(job, state)
        if job is not self.jobs[-1] and any_host(self.watch.stop_requested()):
            raise Interrupted

    def _record(self, job: Job, program: Program, inputs: Inputs, state: State) -> None:
        correct: Correct = jax.device_get(gathered(program.evaluate(inputs, state, self.progress.round)))
        values: State = jax.device_get(gathered(state._replace(server=None, clients=None)))
        for index, run_id in enumerate(job.runs):
            if (job.algorithm, run_id) in self.stopped:
                continue
            number, seed = run_id
            setup = self.setups[number]
            record: Record = {"algorithm": job.algorithm, "seed": seed, "round": self.progress.round}
            if values.diverged[index]:
                if any("diverged_at" in r for r in self._records_of(number, job.algorithm, seed)):
                    continue  # recorded already
                record["diverged_at"] = int(values.diverged[index])
            else:
                one = jax.tree.map(lambda a, index=index: a[index], correct)
                held, totals = setup.divisions[seed].labels, setup.totals(seed)
                if one.local_models is not None:
                    held = held[program.scored_users]
                record |= scores(one.global_model, one.local_models, totals, held > 0)
                record |= named_headline(record, program.algorithm.headline_of(setup.config.headline))
                record["accuracy_matching"] = matching(one.global_model, one.local_models, totals, held)
                sliced = one.global_model_sliced if one.local_models is None else one.local_models_sliced
                assert sliced is not None, "an algorithm predicts globally, locally, or both"
                record["accuracy_authors"] = authors(np.asarray(sliced), totals, held > 0, setup.config.users)
                reported = {"train_loss": values.loss, **values.metrics}
                for key, value in reported.items():
                    record[key] = float(value[index]) if np.isfinite(value[index]) else None
                self._judge(job, program, state, index, record)
            self.progress.records[number].append(record)
            if number in self.folders:
                self.folders[number].append(record)
            self.watch.recorded(record)

    def _judge(self, job: Job, program: Program, state: State, index: int, record: Record) -> None:
        """Keep a run's models where its new record is the best, and mark the record where the run ends with it."""
        run_id = job.runs[index]
        config, reason = self.setups[run_id.setup].config, ""
        if config.keeps_best:
            records = [*self._records_of(run_id.setup, job.algorithm, run_id.seed), record]
            if best_of(records, config.score) is record and self._keeps_models(run_id):
                self.best[job.algorithm, run_id] = self._trained(program, state, index)
            reason = "patience" if out_of_patience(records, config.score, config.patience) else ""
        if self.watch.evaluated(dict(record)):
            reason = reason or "callback"
        if reason and record["round"] < config.rounds:
            record["stopped"] = reason
            self.stopped.add((job.algorithm, run_id))
            self._keep_last(job, program, state, index)  # now: other runs of the program may go on

    def _all_ended(self, job: Job, state: State) -> bool:
        """Whether each run has diverged or was stopped."""
        diverged = np.asarray(gathered(state.diverged))
        return all(diverged[i] or (job.algorithm, run_id) in self.stopped for i, run_id in enumerate(job.runs))

    def _keeps_models(self, run_id: RunId) -> bool:
        return run_id.setup in self.folders or self.keep is not None

    def _trained(self, program: Program, state: State, index: int) -> Trained:
        """What the algorithm of one run predicts with now."""
        needed = needed_of_users(program.algorithm, self.setups[0].task)
        predicting = state.server, only_needed(state.clients, needed)
        server, clients = jax.device_get(gathered(_one_run(predicting, index)))
        return Trained(server, jax.tree.map(lambda a: a[: self.config.users], clients), self.progress.round)

    def _keep_last(self, job: Job, program: Program, state: State, index: int) -> None:
        if self._keeps_models(job.runs[index]):
            self._keep(job.algorithm, job.runs[index], self._trained(program, state, index))

    def _keep(self, algorithm: str, run_id: RunId, trained: Trained, best: bool = False) -> None:
        if run_id.setup in self.folders:
            self.folders[run_id.setup].save_model(algorithm, run_id.seed, trained, best=best)
        if self.keep is not None:
            self.keep(algorithm, run_id.seed, trained, best)

    def _records_of(self, setup: int, algorithm: str, seed: int) -> list[Record]:
        return [r for r in self.progress.records[setup] if r["algorithm"] == algorithm and r["seed"] == seed]

    def _save(self, job: Job, state: State) -> None:
        for (algorithm, run_id), trained in self.best.items():
            self._keep(algorithm, run_id, trained, best=True)
        self.best = {}
        if not self.folders:
            return
        kept = self._kept(jax.device_get(gathered(state)))
        for number, folder in self.folders.items():
            about = {
                "job": self.progress.job,
                "round": self.progress.round,
                "timings": [_share(t, j, number) for t, j in zip(self.progress.timings, self.jobs, strict=False)],
                "config": to_toml(self.setups[number].config),
                "jobs": _described(self.jobs, number),
            }
            own = _places(job, number)
            folder.save(jax.tree.map(lambda a, own=own: a[own], kept), about)
        self.saved = time.monotonic()

    def _restored(self, job: Job, state: State) -> State:
        """The state in the folders' checkpoints; a setup without a folder gets the first one's, of its shape."""
        like = jax.eval_shape(self._kept, state)
        parts: dict[int, State] = {}
        for number, folder in self.folders.items():
            runs = len(_places(job, number))
            own = jax.tree.map(lambda a, runs=runs: jax.ShapeDtypeStruct((runs, *a.shape[1:]), a.dtype), like)
            parts[number] = folder.restore(own)
        first = next(iter(parts.values()))
        every = [parts.get(number, first) for number in range(len(self.setups))]
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *every)

    def _kept(self, state: State) -> State:
        """The state without the padding of hosts' blocks, so that a run can resume with another number of hosts."""
        return state._replace(clients=jax.tree.map(lambda a: a[:, : self.config.users], state.clients))

    def _resume(self) -> bool:
        """Load the progress from the folders' checkpoints; returns whether a job's state has to be restored as well."""
        about: dict[str, Any] | None = None
        timings: list[list[dict[str, float]]] = []
        for number, folder in self.folders.items():
            about = folder.about()
            if about is None:
                folder.rewind(0)
                continue
            file = folder.checkpoint_file
            if not same_config(about.get("config"), self.setups[number].config):
                raise FedgenError(f"checkpoint {file} is of another run; delete it to start anew")
            if about["jobs"] != _described(self.jobs, number):
                raise FedgenError(
                    f"checkpoint {file} was written on a GPU and this is a CPU, or the reverse; resume it there"
                )
            self.progress.records[number] = folder.rewind(about["metrics_bytes"])
            timings.append(about["timings"])
        if about is None:
            return False
        self.stopped = {
            (record["algorithm"], RunId(number, record["seed"]))
            for number, records in enumerate(self.progress.records)
            for record in records
            if "stopped" in record
        }
        self.progress.job, self.progress.round = about["job"], about["round"]
        self.progress.timings = [_sum_of(parts) for parts in zip(*timings, strict=True)]
        if self.progress.round < self.until:
            return True
        self.progress.job += 1
        return False

    def _summary(self, number: int) -> dict[str, Any]:
        config, names = self.setups[number].config, self.setups[number].form.class_names
        reached = config.model_copy(update={"rounds": self.until})
        results = []
        for job, timing in zip(self.jobs, self.progress.timings, strict=True):
            # The share of each, where runs were computed together.
            share = {k: v / len(job.runs) if k.startswith("seconds") else v for k, v in timing.items()}
            for seed in (run_id.seed for run_id in job.runs if run_id.setup == number):
                records = self._records_of(number, job.algorithm, seed)
                messages = most_messages(reached, seed, stopped_at(records)) if config.dp_noise else 0
                results.append(result_row(job.algorithm, seed, records, reached, share, messages))
        return summary_of(config, results, names)


@jax.jit
def _one_run(stacked: Any, index: int) -> Any:
    """One of the runs of a program; a single small program for all of its arrays."""
    return jax.tree.map(lambda a: a[index], stacked)


def _places(job: Job, setup: int) -> list[int]:
    """Where a job has the runs of a setup."""
    return [place for place, run_id in enumerate(job.runs) if run_id.setup == setup]


def _described(jobs: Sequence[Job], setup: int) -> list[list[Any]]:
    return [[job.algorithm, [run_id.seed for run_id in job.runs if run_id.setup == setup]] for job in jobs]


def _share(timing: Mapping[str, float], job: Job, setup: int) -> dict[str, float]:
    """A setup's share of the seconds of a job."""
    part = len(_places(job, setup)) / len(job.runs)
    return {key: value * part if key.startswith("seconds") else value for key, value in timing.items()}


def _sum_of(timings: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The shares of a job's setups, together again."""
    return {k: sum(t[k] for t in timings) if k.startswith("seconds") else v for k, v in timings[0].items()}
