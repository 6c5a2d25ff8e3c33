"""The server: runs the rounds with the sites that are connected, and saves each as soon as it is finished.

The cohort of a round is the simulator's: the first `active` sites of the round's permutation of all sites. A site that
is not connected, is excluded or does not reply is replaced by the next one of the same permutation.
"""

import os
import secrets
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fedgen.config import BEFORE, RunConfig, to_toml
from fedgen.core.contract import Array, Round, Tree
from fedgen.core.streams import stream
from fedgen.core.trees import named, stack
from fedgen.data.npz import read_npz
from fedgen.errors import FedgenError
from fedgen.federate import wire
from fedgen.federate.evaluate import Tester
from fedgen.federate.gate.messages import RECORDS
from fedgen.federate.gate.refusals import REFUSALS, RefusalReader
from fedgen.federate.gate.sent_marks import SentMarks
from fedgen.federate.journal import Journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings, read_settings
from fedgen.federate.server.checks import (
    SCORE_OBJECTS,
    besides_arrays,
    checked_score,
    checked_update,
    largest_update,
    most_objects,
)
from fedgen.federate.server.exchange import Exchange
from fedgen.federate.server.judge import (
    Judge,
    Judgement,
    Unjudged,
    broken,
    loss_rose,
    mean_loss,
    mended,
    most,
    outliers,
    pooled,
)
from fedgen.federate.server.membership import Membership
from fedgen.federate.settings import AppSettings
from fedgen.federate.site.data import checked_samples, checked_shape
from fedgen.runs.checkpoint import save_tree
from fedgen.runs.cohort import draw_cohort
from fedgen.runs.folder import RunFolder
from fedgen.runs.options import check_headline
from fedgen.runs.privacy import guarantee
from fedgen.runs.resume import same_config
from fedgen.runs.scores import Record, named_headline
from fedgen.runs.summary import result_row, summary_of
from fedgen.runs.trained import Trained

Update = tuple[Tree, float | None]  # a site's upload and its training loss
_SUSPECTS = 3  # without how many of the updates, one at a time, a round that broke the model is tried


class BrokenModelError(Exception):
    """Training from the model that the last round left gives sites no finite numbers."""


@dataclass
class RunState:
    """The progress of a run besides the algorithm's state; all of it is saved in the checkpoint."""

    run: str  # a random id, by which sites keep the states of different runs apart
    round: int = 0
    strikes: dict[str, int] = field(default_factory=dict)  # refused replies, by the site's name
    excluded: dict[str, int | None] = field(default_factory=dict)  # the round when a site is asked again; None: never
    loss: float | None = None  # the median of the sites' training losses in the last round
    messages: dict[str, int] = field(default_factory=dict)  # how often each site was asked to train
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    unscored: dict[str, float | None] | None = None  # the metrics of a finished round that is not evaluated yet


class Server:
    """One run of a federation, given the app folder, the server's folder and Flower's grid."""

    def __init__(self, app: Path, folder: Path, run: str, grid: Grid, journal: Journal) -> None:
        self.shared, self.folder = AppSettings(app, folder), folder
        self.path = folder / "runs" / run
        about = RunFolder(self.path).about()
        self.config = as_begun(self.shared.config, about)
        self.settings = read_settings(folder / "server.toml", ServerSettings)
        self._check_settings(fresh=about is None)
        self._proxy, self._test = self._load_proxy(), self._load_test()
        samples = 0 if self._proxy is None else len(self._proxy)
        task = self.shared.task_with(self.settings.model, self.settings.model_options, proxy_samples=samples)
        self.plan = Plan(self.config, task)
        if (size := largest_update(self.plan.forms.upload)) > self.settings.max_message:
            raise FedgenError(
                f"sites send messages of up to {size:,} bytes: raise max_message in server.toml, then restart"
            )
        if self.settings.authenticated and (size := besides_arrays(self.plan.forms.upload)) > RECORDS:
            raise FedgenError(
                f"sites send messages of {len(named(self.plan.forms.upload)):,} arrays, which have {size:,} bytes"
                f" besides their numbers, and the gate takes {RECORDS:,}: use a model of fewer, or share less of it"
            )
        self._algorithm = self.plan.configure(self.plan.hyper)[0]
        check_headline(self.plan.name, self._algorithm, self.config)
        guarantee(self.config, 1)  # whether there is an accountant, where one is needed
        if self._test is None and self._algorithm.predict_local is None:
            raise FedgenError(f"{self.plan.name} predicts at the server: name a file of samples as test in server.toml")
        self._update = jax.jit(self._server_update)
        predict = self._algorithm.predict_global
        self._tester = Tester(predict, task) if predict else None
        fresh = not (self.path / "config.toml").exists()
        self.run_folder = RunFolder.create(self.path, self.config) if fresh else RunFolder.open(self.path)
        self.run_folder.write_data(self.shared.task.form)
        self.journal = journal
        members = Membership(folder, self.settings, journal, users=self.config.users, fixed=self.plan.depends_on_users)
        gate = RefusalReader(folder / REFUSALS)
        self.exchange = Exchange(grid, self.settings, self.journal, members, gate, SentMarks(folder))
        self.records: list[Record] = []
        self._unjudged = Unjudged(self.path, self.plan.forms)
        self._judge = Judge(self._algorithm, task, self._tester, self._test)
        self._judgement: Judgement | None = None  # on the model after the last round

    def run(self) -> dict[str, Any]:
        """Run all remaining rounds and return the summary. Ending early is an error; finished rounds are kept."""
        with self.run_folder:
            return self._run()

    def _run(self) -> dict[str, Any]:
        state, sound = self._begin(), True
        self.exchange.wait_for_all()
        if self.run_state.unscored is not None:
            sound = self._score(state)
        while sound and self.run_state.round < self.config.rounds:
            state = self._round(state)
            sound = self._score(state)
        summary = self._summary()
        if sound:
            self.run_folder.save_model(self.plan.name, self.config.seed, Trained(state, None, self.config.rounds))
        self._unjudged.forget(self.run_state.round - 1)
        self.run_folder.write_summary(summary)
        self.journal.write("finished", round=self.run_state.round)
        return summary

    def _begin(self) -> Tree:
        """The state to start from: the checkpoint's, or the initial one."""
        about = self.run_folder.about()
        if about is None:
            self.run_state = RunState(secrets.token_hex(8), strikes=self.exchange.strikes)
            self.run_state.excluded = self.exchange.excluded
            self.run_folder.rewind(0)
            state = self.plan.server_init()
            self.journal.write("started", algorithm=self.plan.name, rounds=self.config.rounds, pid=os.getpid())
            self._save(state)
            return state
        if not same_config(about.get("config"), self.config):
            raise FedgenError(f"{self.path} holds a run with other settings; give the new one another name")
        self.run_state = RunState(**(about.get("run_state") or about["standing"]))  # the name in older checkpoints
        if self.run_folder.summary_file.exists():
            raise FedgenError(f"the run in {self.path} is finished; give a new one another name")
        self.records = self.run_folder.rewind(about["metrics_bytes"])
        of = {"algorithm": self.plan.name, "rounds": self.config.rounds}
        self.journal.write("resumed", **of, round=self.run_state.round, pid=os.getpid())
        self.exchange.resume(self.run_state.strikes, self.run_state.excluded, self.run_state.round)
        return self.run_folder.restore(self.plan.forms.server)

    def _round(self, state: Tree) -> Tree:
        """Run one round and save it before anything else is done; raises when too few sites send valid updates."""
        number, start = self.run_state.round, time.monotonic()
        broadcast = self._algorithm.broadcast(state, jnp.int32(number))
        try:
            updates = self._updates(number, broadcast, state)
            losses = [loss for _, loss in updates.values() if loss is not None]
            rose = self._judges_by_loss() and loss_rose(self.run_state.loss, losses)
            to_repeat = rose and self._can_take_back(number - 1)
        except BrokenModelError:
            to_repeat = True
        except FedgenError:
            self._save(state)  # with the strikes, so that a resumed run still excludes the same sites
            raise
        if to_repeat:
            return self._round(self._last_round_taken_back(number))
        uploads = {site: upload for site, (upload, _) in updates.items()}
        after, metrics, uploads = self._aggregated(number, state, uploads)
        if self._keeps_rounds():
            self._unjudged.keep(number, state, uploads)
        self.run_state.round = number + 1
        self.run_state.loss = float(np.median(losses)) if losses else None
        loss = mean_loss(losses)
        self.run_state.unscored = {"train_loss": loss, **{key: float(value) for key, value in metrics.items()}}
        self.run_state.seconds += time.monotonic() - start
        self._save(after)
        if self.settings.keep_rounds:
            save_tree(self.path / "rounds" / f"{number + 1}.safetensors", after, self._about())
        self._unjudged.forget(number - 1)  # only now, so that a kill loses nothing
        names = list(map(self.exchange.roster.name, uploads))
        self.journal.write("done", round=number, sites=names, loss=loss, seconds=round(time.monotonic() - start, 2))
        return after

    def _combined(self, number: int, state: Tree, uploads: Mapping[int, Tree]) -> tuple[Tree, dict[str, Array]]:
        """The state after a round with these uploads, and what the algorithm reports of it."""
        sites = np.array(list(uploads))
        together = stack(list(uploads.values()))
        return jax.device_get(self._update(self.plan.hyper, state, together, np.int32(number), sites))

    def _aggregated(
        self, number: int, state: Tree, uploads: dict[int, Tree]
    ) -> tuple[Tree, dict[str, Array], dict[int, Tree]]:
        """As `_combined`, without an outlier where the model would be broken with it."""
        after, metrics = self._combined(number, state, uploads)
        if not self.settings.take_back:
            return after, metrics, uploads
        before = self._judgement or self._judge(state, number)
        judgement = self._judge(after, number + 1)
        while len(uploads) > max(self.settings.min_sites, 2) and (reason := broken(before, judgement)):
            for suspect in outliers(uploads)[:_SUSPECTS]:
                fewer = {site: upload for site, upload in uploads.items() if site != suspect}
                again, reported = self._combined(number, state, fewer)
                without = self._judge(again, number + 1)
                if mended(before, judgement, without):
                    break
            else:
                break  # it is none of these updates alone that broke the model
            self._journal_taken_back(number, suspect, reason)
            after, metrics, uploads, judgement = again, reported, fewer, without
        self._judgement = judgement
        return after, metrics, uploads

    def _keeps_rounds(self) -> bool:
        """Whether a round is judged by what sites answer in the next one: most of them may have no finite numbers."""
        return self.settings.take_back and not self.config.dp_noise

    def _judges_by_loss(self) -> bool:
        """Whether the losses that sites report then count, too: where it has no test samples, there is nothing else."""
        return self._keeps_rounds() and (self._tester is None or self._test is None)

    def _last_round_taken_back(self, number: int) -> Tree:
        """The state before this round if the last one had been without its outlier."""
        before, uploads = self._unjudged.load(number - 1)
        suspect = outliers(uploads)[0]
        del uploads[suspect]
        corrected, _ = self._combined(number - 1, before, uploads)
        self._judgement = None  # it was on the broken model
        self._journal_taken_back(number - 1, suspect, "the sites' training losses rose or were not finite")
        if self.records and self.records[-1]["round"] == number:  # the score of the model as it was
            self.records = self.run_folder.save_without_last(corrected, self._about())
        else:
            self._save(corrected)
        if self.settings.keep_rounds:
            save_tree(self.path / "rounds" / f"{number}.safetensors", corrected, self._about())
        self._unjudged.keep(number - 1, before, uploads, taken_back=True)
        return corrected

    def _can_take_back(self, number: int) -> bool:
        """Whether the round can be done without one of its updates; once, since it need not be an update's fault."""
        return self._keeps_rounds() and self._unjudged.can_lose_one(number, self.settings.min_sites)

    def _journal_taken_back(self, number: int, site: int, reason: str) -> None:
        name = self.exchange.roster.name(site)
        reason = f"{reason}; it is done again without this site's update, which is suspected only"
        self.journal.write("taken back", round=number, without=name, reason=reason)

    def _score(self, state: Tree) -> bool:
        """Evaluate the last round if `eval_every` says so; False when the model is no longer finite."""
        sound = self._judge.is_finite(state, self.run_state.round)
        self._record(state, self.run_state.unscored or {}, sound)
        self.run_state.unscored = None
        self._save(state)
        return sound

    def _updates(self, number: int, broadcast: Tree, state: Tree) -> dict[int, Update]:
        """Valid updates of at least `min_sites` sites, in the order of the round's permutation.

        While there are too few, the next sites of the permutation are asked, and those that failed only when no other
        site is left.
        """
        arrays = wire.encode(broadcast)
        down = sum(len(array.data) for array in arrays.values())

        def take(reply: Message, question: ConfigRecord) -> Update:
            self.run_state.bytes_up += wire.size(reply.content)
            return checked_update(reply, question, self.plan, self._algorithm, self.settings)

        updates: dict[int, Update] = {}
        asked: Counter[int] = Counter()  # how often, in this round
        not_finite: set[int] = set()  # sites whose training diverged, in this round
        everyone = self.config.active == self.config.users  # then those that join meanwhile, too
        active = sys.maxsize if everyone else self.config.active

        def left() -> list[int]:
            belonging = set(self.exchange.roster.belonging()) - set(updates)
            return sorted((site for site in self._order(number) if site in belonging), key=lambda site: asked[site])

        while (missing := self.settings.min_sites - len(updates)) > 0:
            available = self.exchange.cohort(number, left, active, len(updates))
            cohort = {site: node for site, node in available.items() if asked[site] < self.settings.attempts}
            if len(cohort) < missing:
                raise FedgenError(
                    f"round {number} has {len(updates)} valid updates of the {self.settings.min_sites} that are needed,"
                    f" and the other sites failed {self.settings.attempts} times; the {number} finished rounds are"
                    " kept, and the run can be resumed"
                )
            if asked:
                self.journal.write("retry", round=number, good=len(updates), needed=self.settings.min_sites)
            self.journal.write("round", round=number, cohort=list(map(self.exchange.roster.name, cohort)))
            self.run_state.bytes_down += down * len(cohort)
            for site in cohort:
                name = self.exchange.roster.name(site)
                self.run_state.messages[name] = self.run_state.messages.get(name, 0) + 1
                asked[site] += 1
            self._save(state)  # a site may reply even if the server dies now, so the message must be counted
            objects = most_objects(self.plan.forms.upload)
            updates |= self.exchange.ask("train", self.run_state.run, number, arrays, cohort, take, objects)
            not_finite |= self.exchange.not_finite
            if most(len(not_finite), len(asked)) and self._can_take_back(number - 1):
                raise BrokenModelError
        return {site: updates[site] for site in self._order(number) if site in updates}

    def _order(self, number: int) -> list[int]:
        """The round's permutation of all sites, with those that were removed."""
        population = self.exchange.roster.population()
        order: list[int] = draw_cohort(self.plan.key, jnp.int32(number), population, population).tolist()
        return order

    def _server_update(
        self, hyper: Mapping[str, Array], state: Tree, uploads: Tree, number: Array, sites: Array
    ) -> tuple[Tree, dict[str, Array]]:
        algorithm, _ = self.plan.configure(hyper)

        def proxy(key: Array, samples: int) -> Array:
            assert self._proxy is not None, "an algorithm that needs proxy samples refuses to be built without"
            rows = jax.random.randint(key, (samples,), 0, len(self._proxy))
            return self.plan.task.prepare(jnp.asarray(self._proxy)[rows])

        context = Round(number, sites, stream(self.plan.key, "server", number), proxy)
        with jax.default_matmul_precision("highest"):
            return algorithm.server_update(state, uploads, context)

    def _record(self, state: Tree, reported: Mapping[str, float | None], sound: bool) -> None:
        """Evaluate if `eval_every` says so, and write the record."""
        number = self.run_state.round
        record: Record = {"algorithm": self.plan.name, "seed": self.config.seed, "round": number}
        if not sound:
            record["diverged_at"] = number
        elif number % self.config.eval_every and number != self.config.rounds:
            return
        else:
            record |= self._scores(state)
            record |= named_headline(record, self._algorithm.headline_of(self.config.headline))
            record |= reported
        self.records.append(record)
        self.run_folder.append(record)
        self.journal.write("score", **record)

    def _scores(self, state: Tree) -> Record:
        """Scores of the global model on the server's test samples, and of the sites' models on their own."""
        accuracy = seen = users = matching = None
        if self._tester is not None and self._test is not None:
            correct = self._tester(*self._test, state)
            accuracy = 100 * float(correct.sum()) / len(self._test[1])
        replies = self._ask_scores(state) if self._asks_sites() else []
        if replies:
            users = float(np.mean([100 * (score["correct"] / score["total"]) for score in replies]))
            matching = float(np.mean([score["matching"] for score in replies]))
            seen = pooled(replies)
        return {
            "accuracy": accuracy,
            "accuracy_seen_labels": seen,
            "accuracy_users": users,
            "accuracy_matching": matching,
        }

    def _asks_sites(self) -> bool:
        """Whether sites evaluate: their own models, or the global one when the server has no test samples."""
        algorithm = self._algorithm
        return algorithm.predict_local is not None and (algorithm.personal or self._test is None)

    def _ask_scores(self, state: Tree) -> list[dict[str, float]]:
        """The scores that the connected sites report."""
        number = self.run_state.round
        arrays = wire.encode(self._algorithm.broadcast(state, jnp.int32(number)))
        available = self.exchange.available(number, self.exchange.roster.belonging)

        def take(reply: Message, question: ConfigRecord) -> dict[str, float]:
            return checked_score(reply, question, self.settings.max_samples)

        run = self.run_state.run
        replies = self.exchange.ask("evaluate", run, number, arrays, available, take, SCORE_OBJECTS)
        return [score for score in replies.values() if score]

    def _about(self) -> dict[str, Any]:
        return {"run_state": asdict(self.run_state), "config": to_toml(self.config)}

    def _save(self, state: Tree) -> None:
        self.run_folder.save(state, self._about())

    def _summary(self) -> dict[str, Any]:
        rounds = max(self.run_state.round, 1)
        timing = {
            "seconds_compile": 0.0,
            "seconds_train": self.run_state.seconds,
            "bytes_up": round(self.run_state.bytes_up / rounds),
            "bytes_down": round(self.run_state.bytes_down / rounds),
        }
        messages = max(self.run_state.messages.values(), default=0)
        row = result_row(self.plan.name, self.config.seed, self.records, self.config, timing, messages)
        return summary_of(self.config, [row], self.shared.task.names)

    def _check_settings(self, *, fresh: bool) -> None:
        sites, config, where = self.settings.sites, self.config, self.folder / "server.toml"
        if len(sites) < config.users or (fresh and len(sites) > config.users):  # later ones have joined a run
            raise FedgenError(f"{where} names {len(sites)} sites, but the configuration has {config.users} users")
        if len(set(sites)) < len(sites):
            raise FedgenError(f"{where} names a site twice")
        if odd := set(self.settings.removed) - set(sites):
            raise FedgenError(f"{where}: removed names {min(odd)}, which is not among the sites")
        if self.settings.min_sites > config.active:
            raise FedgenError(
                f"{where}: min_sites is {self.settings.min_sites}, but only {config.active} are active in a round"
            )

    def _load_test(self) -> tuple[np.ndarray, np.ndarray] | None:
        if not self.settings.test:
            return None
        path = self.folder / self.settings.test
        arrays = read_npz(path, ("x", "y"))
        return checked_samples(arrays["x"], arrays["y"], self.shared.task.sample, self.shared.task, f"{path}: test")

    def _load_proxy(self) -> np.ndarray | None:
        if not self.settings.proxy:
            return None
        path = self.folder / self.settings.proxy
        return checked_shape(read_npz(path, ("x",))["x"], self.shared.task.sample, self.shared.task, f"{path}: proxy")


def as_begun(config: RunConfig, about: Mapping[str, Any] | None) -> RunConfig:
    """The configuration with the number of users that the run in this checkpoint began with.

    Sites may have been added since, and `add-site` counts them in config.toml. Bounds that an earlier version did not
    have, this run does not have either. What is left different is other settings, with which the run cannot be resumed.
    """
    try:
        begun = tomllib.loads(str((about or {})["config"]))
        users, active = int(begun["users"]), int(begun["active"])
    except (KeyError, ValueError):
        return config
    everyone = config.active == config.users
    if config.users < users or everyone != (active == users):
        return config
    before = {key: value for key, value in BEFORE.items() if key not in begun}
    return config.model_copy(update={**before, "users": users, "active": users if everyone else config.active})
