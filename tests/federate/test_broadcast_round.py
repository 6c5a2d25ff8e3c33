"""Which round a broadcast is of: the same in the simulator, in a federation and in a model that is used later."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from local_federation import local_federation

import fedgen
from fedgen.algorithms import ALGORITHMS
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.wrap import wrap
from fedgen.federate.site.site import Site
from helpers import blobs, small_setup
from use_runs import small_run

ROUNDS = 3


def shows_round(task: fedgen.Task, federation: fedgen.Federation) -> fedgen.Algorithm:
    """FedAvg whose users receive the number of the round, and predict it as a label."""
    made = wrap(
        fedavg(task, federation),
        server_init=lambda key: jnp.float32(0),
        broadcast=lambda own, round: own + round,
    )

    def predict_local(received: Any, client: Any, x: jax.Array) -> jax.Array:
        return jnp.broadcast_to(jax.nn.one_hot(jnp.int32(received.own), task.classes), (len(x), task.classes))

    return made._replace(predict_local=predict_local, personal=True, headline="users")


@pytest.fixture
def name(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ALGORITHMS, "shows-round", shows_round)
    return "shows-round"


def test_users_predict_with_what_the_next_round_would_begin_with(tmp_path: Path, name: str) -> None:
    result = small_run(tmp_path / "run", name, users=2, active=2, rounds=ROUNDS)
    x, y = blobs(200, seed=1)
    scored = {one["round"]: one["accuracy_users"] for one in result.metrics}
    assert scored == pytest.approx({number: 100 * np.mean(y == number) for number in range(1, ROUNDS + 1)})
    assert np.argmax(fedgen.load(tmp_path / "run").model(user=0).predict_proba(x[:5]), axis=1).tolist() == [ROUNDS] * 5


def test_sites_receive_the_round_that_they_train_in_and_are_evaluated_for(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[tuple[int, float]]] = {"train": [], "evaluate": []}
    for kind, called in [(kind, getattr(Site, kind)) for kind in seen]:

        def noted(self: Site, run: str, round: int, broadcast: Any, *rest: Any, _kind=kind, _called=called) -> Any:
            seen[_kind].append((round, float(broadcast.own)))
            return _called(self, run, round, broadcast, *rest)

        monkeypatch.setattr(Site, kind, noted)
    server, _ = local_federation(tmp_path, small_setup(name, users=2, active=2, rounds=ROUNDS))
    server.run()
    assert seen["train"] == [(number, number) for number in range(ROUNDS) for _ in range(2)]
    assert seen["evaluate"] == [(number, number) for number in range(1, ROUNDS + 1) for _ in range(2)]
