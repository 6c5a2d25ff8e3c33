"""What stays with the users: FedProto, FedRep, FedPer, and fine-tuning before evaluation, against PyTorch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from rounds_in_torch import CLASSES, KEY, RATE, SAMPLES, STEPS, TASK, Reference, Weights, X, Y

from rounds_in_torch import drawn, first_weights, follow, forward, moved, same_weights, shards, shown  # isort: skip
from torch.nn import functional as tf

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.fedrep import by_turns
from fedgen.core.client import finetune_client, finetuning_recipe, finetuning_seed
from fedgen.core.contract import Federation, Params
from fedgen.core.recipe import Shard, client_optimizer
from fedgen.core.trees import named
from fedgen.core.wires import shapes
from fedgen.errors import FedgenError
from fedgen.runs.scores import matching
from fedgen.simulator.run import run
from helpers import built, play, small_setup


class FedProto(Reference):
    """Prototypes as means over all samples of the cohort, or over its users; users keep all of their models."""

    share = "nothing"
    by_users = False

    def __init__(self, start: Weights) -> None:
        super().__init__(start)
        self.prototypes: dict[int, torch.Tensor] = {}
        self.sets: list[dict[int, torch.Tensor]] = []

    def loss(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z, logits = forward(weights, x, train=True)
        value = tf.cross_entropy(logits, y)
        known = [(one, self.prototypes.get(int(label))) for one, label in zip(z, y, strict=True)]
        pulled = [torch.mean((one - prototype) ** 2) for one, prototype in known if prototype is not None]
        return value + 0.7 * sum(pulled) / len(y) if pulled else value

    def finished(self, user: int, weights: Weights) -> None:
        z = forward(weights, torch.tensor(X[user]))[0].detach()
        self.sets.append({c: z[torch.tensor(Y[user] == c)] for c in range(CLASSES) if (Y[user] == c).any()})

    def server(self, mean: Weights, active: int) -> Weights:
        for label in range(CLASSES):
            parts = [one[label] for one in self.sets if label in one]
            if parts:
                joined = [part.mean(0, keepdim=True) for part in parts] if self.by_users else parts
                self.prototypes[label] = torch.cat(joined).mean(0)
        self.sets = []
        return mean


class FedProtoByUsers(FedProto):
    by_users = True


@pytest.mark.parametrize(("average", "reference"), [("samples", FedProto), ("users", FedProtoByUsers)])
def test_fedprotos_models_prototypes_and_predictions_are_pytorchs(average: str, reference: Any) -> None:
    followed = follow("fedproto", {"lam": 0.7, "average": average}, reference)
    algorithm, server, clients, theirs = followed
    assert algorithm.predict_global is None
    assert not algorithm.needs.individual_uploads
    for label, prototype in theirs.prototypes.items():
        np.testing.assert_allclose(server.own.prototypes[label], prototype, rtol=2e-4, atol=2e-5)
    received, x = algorithm.broadcast(server, jnp.int32(3)), X.reshape(-1, 2)
    for user in (0, 1, 2):
        same_weights(shown(clients[user]), theirs.models[user])
        z = forward(theirs.models[user], torch.tensor(x))[0].detach()
        nearest = torch.cdist(z, torch.stack([theirs.prototypes[c] for c in range(CLASSES)])).argmin(1)
        ours = algorithm.predict_local(received, clients[user], jnp.asarray(x))
        np.testing.assert_array_equal(jnp.argmax(ours, axis=1), nearest)


def test_fedproto_predicts_no_label_that_nobody_has_and_by_the_head_if_told_so() -> None:
    algorithm, _ = build(ALGORITHMS["fedproto"], TASK, Federation(users=3), {})
    by_head, _ = build(ALGORITHMS["fedproto"], TASK, Federation(users=3), {"predict": "head"})
    received, client = algorithm.broadcast(algorithm.server_init(KEY), jnp.int32(0)), algorithm.client_init(KEY)
    own = received.own._replace(prototypes=jnp.array([[9.0] * 4, [0.0] * 4, [1.0] * 4]), known=jnp.array([1.0, 0, 1]))
    x = jnp.zeros((1, 2))  # z is 0: the unknown label 1 would be nearest
    assert int(jnp.argmax(algorithm.predict_local(type(received)(received.base, own), client, x))) == 2
    extractor, predictor = client.params
    logits = by_head.predict_local(received, client, jnp.asarray(X[0]))
    np.testing.assert_allclose(logits, np.tanh(X[0] @ extractor / np.sqrt(1 + 1e-5)) @ predictor, rtol=1e-5)


class FedRep(Reference):
    """Two of the four steps train the predictor, and then two the extractor."""

    share = "extractor"

    def local(self, user: int, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> Weights:
        self.step = 0
        return super().local(user, batches)

    def gradient(self, user: int, weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
        turn, self.step = int(self.step < 2), self.step + 1
        return [g * (i == turn) for i, g in enumerate(super().gradient(user, weights, x, y))]


@pytest.mark.parametrize(
    ("name", "options", "reference"),
    [("fedrep", {"head": 0.5}, FedRep), ("fedrep", {"head": 0.4, "share": "extractor"}, FedRep),
     ("fedavg", {"share": "extractor"}, Reference)],
)  # fmt: skip
def test_fedrep_and_fedper_are_pytorchs(name: str, options: dict[str, Any], reference: Any) -> None:
    algorithm, _, clients, theirs = follow(name, options, reference)
    for user in (0, 1, 2):
        np.testing.assert_allclose(
            clients[user].params.predictor, theirs.models[user][1].detach(), rtol=2e-4, atol=2e-5
        )
        assert clients[user].params.extractor is None
    assert algorithm.personal
    assert algorithm.predict_global is None
    upload = named(shapes(algorithm, TASK).upload)
    assert [key for key in upload if "predictor" in key] == []
    assert [key for key in upload if "extractor" in key] != []


def test_fedreps_parts_rest_under_momentum_and_weight_decay() -> None:
    """Each part takes PyTorch's steps in its own turns, and in the others' it and its momentum stay as they are."""
    recipe = Federation(users=1, momentum=0.9, weight_decay=0.1, lr=RATE)
    optimizer = by_turns(client_optimizer(recipe, jnp.float32(RATE)))
    params = Params(jnp.array([1.0, -2.0]), {"bias": jnp.array([0.5])})
    weights = [torch.tensor([1.0, -2.0]), torch.tensor([0.5])]
    theirs = [torch.optim.SGD([w], lr=RATE, momentum=0.9, weight_decay=0.1) for w in weights]
    state = optimizer.init(params)
    for number, turn in enumerate((1, 1, 0, 0, 1)):
        gradient = [float(turn == part) * (number + 1.0) for part in (0, 1)]
        given = Params(jnp.full(2, gradient[0]), {"bias": jnp.full(1, gradient[1])})
        updates, state = optimizer.update(given, state, params)
        params = optax.apply_updates(params, updates)
        weights[turn].grad = torch.full_like(weights[turn], gradient[turn])
        theirs[turn].step()
        np.testing.assert_allclose(params.extractor, weights[0], rtol=1e-6)
        np.testing.assert_allclose(params.predictor["bias"], weights[1], rtol=1e-6)


SHARES_EXTRACTOR = ("fedprox", "scaffold", "feddyn", "fedopt", "moon", "fedntd", "fedlc", "fedsam", "ditto")
SHARES_EXTRACTOR += ("feddistill+", "feddfusion", "fedmoments")


@pytest.mark.parametrize("algorithm", SHARES_EXTRACTOR)
def test_who_can_share_the_extractor_alone(algorithm: str) -> None:
    """The messages down have no predictor, and the shapes of a round fit together."""
    setup, made = built(algorithm, share="extractor")
    forms = shapes(made, setup.task)
    assert not any(".predictor" in name for name in named(forms.broadcast))
    assert any(".extractor" in name for name in named(forms.broadcast))
    assert made.predict_global is None
    assert made.personal


@pytest.mark.parametrize("algorithm", ["fedgen", "fedensemble", "feddistill", "fedproto"])
def test_who_cannot_share_the_extractor_alone_says_so(algorithm: str) -> None:
    with pytest.raises(FedgenError, match="share"):
        small_setup(algorithm, share="extractor")


# How a model is fine-tuned: what is received and kept before, and the model that the user then predicts with.
TUNED = [("fedavg", {}), ("fedavg", {"share": "extractor"}), ("fedavg", {"share": "predictor"}), ("scaffold", {})]
TUNED += [("feddyn", {"mu": 0.3}), ("fedprox", {"mu": 5.0}), ("ditto", {}), ("fedavg", {"optimizer_state": "kept"})]


@pytest.mark.parametrize(("name", "options"), TUNED, ids=str)
def test_fine_tuning_is_plain_sgd_from_the_received_model(name: str, options: dict[str, Any]) -> None:
    """Whatever the algorithm adds to its users' losses."""
    federation = Federation(users=3, local_steps=STEPS, batch_size=6, lr=0.05, finetune_steps=4, finetune_lr=RATE)
    algorithm, federation = build(ALGORITHMS[name], TASK, federation, {**options, "lr_decay": 0.5})
    assert (algorithm.personal, algorithm.headline_of()) == (True, "users")
    received, client = algorithm.broadcast(algorithm.server_init(KEY), jnp.int32(7)), algorithm.client_init(KEY)
    tuned = jax.jit(
        lambda shard: finetune_client(
            algorithm, TASK, federation, received, client, shard, jnp.int32(7), jnp.int32(1), KEY, largest=SAMPLES
        )
    )(shards()[1])
    weights = first_weights()
    for x, y in drawn(finetuning_recipe(federation), 1, 7, finetuning_seed(KEY)):
        step = torch.autograd.grad(tf.cross_entropy(forward(weights, x, train=True)[1], y), weights[:2])
        weights = moved(weights, step, RATE)
    ours = algorithm.predict_local(*tuned, jnp.asarray(X[2]))
    np.testing.assert_allclose(ours, forward(weights, torch.tensor(X[2]))[1].detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"share": "predictor", "local_epochs": 1}, marks=pytest.mark.slow)],
    ids=["all", "part"],
)
def test_the_simulator_scores_each_users_fine_tuned_model(settings: dict[str, Any]) -> None:
    """Each user's counts computed by itself, and the scores of the run from them."""
    setup = small_setup("fedavg", rounds=2, finetune_steps=5, finetune_lr=0.1, score="matching", **settings)
    summary = run(setup)
    (row,) = summary["results"]
    algorithm, federation = build(ALGORITHMS["fedavg"], setup.task, setup.federation, {})
    state, division = play(setup, 2), setup.divisions[0]
    seed, y = jax.random.key(0), np.asarray(setup.data.y_score)
    broadcast, correct = algorithm.broadcast(state.server, jnp.int32(2)), []

    @jax.jit
    def labels(client: Any, shard: Shard, user: jax.Array) -> jax.Array:
        tuned = finetune_client(
            algorithm, setup.task, federation, broadcast, client, shard, jnp.int32(2), user, seed, largest=setup.largest
        )
        return jnp.argmax(algorithm.predict_local(*tuned, setup.task.prepare(setup.data.x_score)), axis=1)

    for user in range(6):
        client = jax.tree.map(lambda a, user=user: a[user], state.clients)
        about = division.offset[user], division.size[user], division.labels[user]
        shard = Shard(setup.data.x, setup.data.y, jnp.asarray(division.index), *map(jnp.asarray, about))
        right = np.asarray(labels(client, shard, jnp.int32(user))) == y
        correct.append(np.bincount(y[right], minlength=4))
    totals = np.bincount(y, minlength=4)
    users = 100 * np.mean([c.sum() for c in correct]) / totals.sum()
    final = summary["results"][0]["curve"][-1]
    assert final == [2, pytest.approx(users)]
    plain = run(small_setup("fedavg", rounds=2, **settings))["results"][0]
    assert row["accuracy"] == plain["accuracy"], "the global model is not touched"
    held = np.asarray(division.labels)
    assert summary["table"][0]["mean"] == pytest.approx(row["accuracy_matching"])
    last = matching(None, np.array(correct), totals, held)
    assert min(last, row["accuracy_matching"]) > plain["accuracy_matching"], "it helps on one's own labels"


def test_who_has_no_model_to_fine_tune_says_so() -> None:
    with pytest.raises(FedgenError, match=r"finetune_steps .* have none"):
        small_setup("fedensemble", finetune_steps=3)
