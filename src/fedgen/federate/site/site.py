"""A site: trains on its own samples with the same client loop as the simulator, and keeps its state on disk."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedgen.core.client import Trained, finetune_client, train_client
from fedgen.core.contract import Array, Tree
from fedgen.core.recipe import Shard
from fedgen.federate.evaluate import Tester
from fedgen.federate.plan import Plan
from fedgen.federate.schema import SiteSettings, read_settings
from fedgen.federate.settings import AppSettings
from fedgen.federate.site.data import load_site_data
from fedgen.federate.wire import InvalidMessageError
from fedgen.runs.checkpoint import load_tree, read_about, save_tree

# A compiled program is for a fixed number of rows. Rounded up to a multiple of this, one program serves sites of
# similar sizes, and a site whose data grows; the padding is never drawn.
_ROWS = 1024
_RUN = re.compile(r"[0-9a-f]{16}")


class SiteScore(NamedTuple):
    """A site's evaluation, on its own test samples, of the model that it would predict with."""

    correct: int
    total: int
    correct_seen: int  # among samples with labels that the site trains on
    total_seen: int
    matching: float  # accuracy in percent, weighted by the site's own label distribution


class Site:
    """One site with its folder: trains and evaluates when the server asks."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder = folder
        self.settings = read_settings(folder / "site.toml", SiteSettings)
        shared = AppSettings(app, folder)
        self.data = load_site_data(self.settings, shared.task, folder)
        task = shared.task_with(
            self.settings.model, self.settings.model_options, sample=self.settings.sample, proxy_samples=1
        )
        self.plan = Plan(shared.config, task)
        self._train = jax.jit(self._train_client)
        algorithm, federation = self.plan.configure(self.plan.hyper)
        predict, self._finetunes = algorithm.predict_local, federation.finetune_steps > 0
        self._finetune = jax.jit(self._finetune_client)
        self._test = Tester(predict, task) if predict else None
        size = len(self.data.y)
        rows = -(-size // _ROWS) * _ROWS
        x = np.pad(self.data.x, [(0, rows - size)] + [(0, 0)] * (self.data.x.ndim - 1))
        y = np.pad(self.data.y, (0, rows - size))
        counts = np.bincount(self.data.y, minlength=task.classes).astype(np.int32)
        arrays = x, y, np.arange(rows, dtype=np.int32), np.int32(0), np.int32(size), counts
        self._shard = Shard(*map(jnp.asarray, arrays))

    def last_round(self, run: str, round: int) -> int | None:
        """The latest round before this one in which the site trained; None: it starts from the initial state."""
        name = self._file(run, round)
        return read_about(self._folder(run) / name)["round"] if name else None

    def train(self, run: str, round: int, broadcast: Tree, ticket: str = "") -> Trained:
        """Train one round on the site's samples; keeps the new state and the one before it.

        The server may repeat a round, after a restart or because too few sites replied. The site then starts again from
        its state before that round. Any earlier round is refused: its message comes too late, and would overwrite what
        the site has learned since.
        """
        if (newest := self._newest(run)) > round:
            raise InvalidMessageError(f"round {round} is over: this site has trained in round {newest} already")
        if self.plan.has_noise and ticket and self._ticket(run) == ticket:
            # A second answer would have other noise, and the two together tell more than one that is counted.
            raise InvalidMessageError("this message was answered already, and an answer with noise is given only once")
        before, client = self._file(run, round), self._state(run, round)
        trained: Trained = jax.device_get(
            self._train(
                self.plan.hyper,
                self._shard,
                broadcast,
                client,
                np.int32(round),
                np.int32(self.settings.number),
                secret_key(),
            )
        )
        state = self._folder(run)
        if before != "before.safetensors":
            if before:
                (state / before).replace(state / "before.safetensors")
            else:
                (state / "before.safetensors").unlink(missing_ok=True)
        save_tree(state / "client.safetensors", trained.client, {"round": round, "ticket": ticket})
        return trained

    def _ticket(self, run: str) -> str:
        """The ticket of the message that the site trained for last."""
        path = self._folder(run) / "client.safetensors"
        return str(read_about(path).get("ticket", "")) if path.exists() else ""

    def evaluate(self, run: str, round: int, broadcast: Tree) -> SiteScore | None:
        """Evaluate the model that the site has before this round; None without test samples or without such a model."""
        data = self.data
        if self._test is None or not len(data.y_test):
            return None
        client = self._state(run, round)
        if self._finetunes:
            broadcast, client = self._finetune(self.plan.hyper, self._shard, broadcast, client, np.int32(round))
        correct = self._test(data.x_test, data.y_test, broadcast, client)
        classes = self.plan.task.classes
        totals, held = np.bincount(data.y_test, minlength=classes), np.bincount(data.y, minlength=classes)
        seen, tested = held > 0, totals > 0
        rate = np.divide(correct, totals, out=np.zeros(classes), where=tested)
        weight = held * tested
        return SiteScore(
            int(correct.sum()),
            int(totals.sum()),
            int(correct[seen].sum()),
            int(totals[seen].sum()),
            float(100 * np.sum(weight * rate) / max(weight.sum(), 1)),
        )

    def _train_client(
        self,
        hyper: Mapping[str, Array],
        shard: Shard,
        broadcast: Tree,
        client: Tree,
        round: Array,
        user: Array,
        noise: Array,
    ) -> Trained:
        plan = self.plan
        algorithm, federation = plan.configure(hyper)
        with jax.default_matmul_precision("highest"):
            return train_client(
                algorithm, plan.task, federation, broadcast, client, shard, round, user, plan.key,
                largest=len(shard.rows), noise=noise,
            )  # fmt: skip

    def _finetune_client(
        self, hyper: Mapping[str, Array], shard: Shard, broadcast: Tree, client: Tree, round: Array
    ) -> tuple[Tree, Tree]:
        """What the site predicts with after it trained the received model on its own samples."""
        plan = self.plan
        algorithm, federation = plan.configure(hyper)
        with jax.default_matmul_precision("highest"):
            return finetune_client(
                algorithm, plan.task, federation, broadcast, client, shard, round, jnp.int32(self.settings.number),
                plan.key, largest=len(shard.rows),
            )  # fmt: skip

    def _folder(self, run: str) -> Path:
        if not _RUN.fullmatch(run):  # it becomes a part of a path
            raise InvalidMessageError(f"the run is called {run[:40]!r}, not by 16 hexadecimal digits")
        return self.folder / "state" / run

    def _newest(self, run: str) -> int:
        """The last round in which the site trained, or -1."""
        path = self._folder(run) / "client.safetensors"
        return int(read_about(path)["round"]) if path.exists() else -1

    def _file(self, run: str, round: int) -> str:
        """The name of the file with the newest state from before this round, or an empty string."""
        for name in ("client.safetensors", "before.safetensors"):
            path = self._folder(run) / name
            if path.exists() and read_about(path)["round"] < round:
                return name
        return ""

    def _state(self, run: str, round: int) -> Tree:
        name = self._file(run, round)
        return load_tree(self._folder(run) / name, self.plan.forms.client) if name else self.plan.client_init()


def secret_key() -> Array:
    """A random key that only this site knows, so that nobody else can reproduce and subtract its noise."""
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(os.urandom(8), np.uint32)), impl="threefry2x32")
