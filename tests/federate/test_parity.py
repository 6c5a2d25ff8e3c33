"""A federation over Flower's messages gives the simulator's server state after every round."""

from pathlib import Path

import jax
import numpy as np
import pytest
from flwr.app import Array, Message, RecordDict
from local_federation import local_federation

import fedgen
from fedgen.algorithms import ALGORITHMS
from fedgen.config import resolve
from fedgen.core.trees import named
from fedgen.federate.journal import read_journal
from fedgen.federate.server.server import Server
from fedgen.runs.checkpoint import load_tree
from fedgen.runs.privacy import guarantee
from fedgen.simulator.run import run
from fedgen.simulator.setup import Setup, prepare
from helpers import SMALL, each, small_setup, summing, training_program


def assert_like_the_simulator(server: Server, setup: Setup, rounds: int) -> None:
    inputs = setup.inputs(server.plan.name, [setup.config.seed])
    program = training_program(setup, server.plan.name, inputs)
    state = program.init(inputs)
    for number in range(rounds):
        state = program.advance(inputs, state, number, number + 1)
        ours = named(load_tree(server.path / "rounds" / f"{number + 1}.safetensors", server.plan.forms.server))
        theirs = named(jax.tree.map(lambda a: np.asarray(a)[0], state.server))
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            distance = np.linalg.norm(np.asarray(ours[name], np.float64) - value)
            assert distance <= 1e-5 * np.linalg.norm(value) + 1e-7, f"{name} after round {number + 1}"


@pytest.mark.parametrize("algorithm", each(ALGORITHMS, quick=("fedavg", "fedgen")))
def test_every_algorithm(algorithm: str, tmp_path: Path) -> None:
    setup = small_setup(algorithm, users=3, active=2)
    server, _ = local_federation(tmp_path, setup)
    server.run()
    assert_like_the_simulator(server, setup, 3)


@pytest.mark.slow
def test_epochs_a_kept_optimiser_and_passes_over_a_sites_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site knows nothing of the others' sizes, and keeps its optimiser's state on disk between rounds."""
    monkeypatch.setitem(ALGORITHMS, "summing", summing)
    setup = small_setup("summing", users=3, active=2, local_epochs=1, momentum=0.9, optimizer_state="kept")
    assert len(set(setup.divisions[0].size.tolist())) == 3
    server, _ = local_federation(tmp_path, setup)
    server.run()
    assert_like_the_simulator(server, setup, 3)


READER = """
import flax.linen as nn


class Reader(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, words, train):
        h = nn.BatchNorm(use_running_average=not train)(nn.Embed(20, 4)(words).mean(1))
        return nn.Dense(self.classes)(nn.Dropout(0.5, deterministic=not train)(h))


def reader(sample, classes):
    return Reader(classes)
"""


@pytest.mark.slow
def test_texts_and_a_flax_network_with_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers, named parameters, statistics and the network's own draws are the simulator's."""
    (tmp_path / "texts_of_sites.py").write_text(READER)
    monkeypatch.chdir(tmp_path)
    labels = np.arange(300) % 4
    words = np.random.default_rng(0).integers(0, 20, (300, 6))
    data = fedgen.from_arrays(words, labels, words[:40], labels[:40], name="blobs")
    small = {key: value for key, value in SMALL.items() if not key.startswith("model")}
    own = {"algorithms": ["fedavg"], "model": "texts_of_sites:reader", "users": 3, "active": 2, "rounds": 2}
    setup = prepare(resolve(small, own, own={"dataset"}), data)
    server, _ = local_federation(tmp_path / "federation", setup)
    server.run()
    assert server.plan.task.sample.dtype == np.int32
    assert server.plan.task.model.random
    assert_like_the_simulator(server, setup, 2)


@pytest.mark.slow
def test_the_reference_preset_with_private_extractors(tmp_path: Path) -> None:
    """Extractors stay at the sites, averages are weighted by samples, and both of the generator's terms are on."""
    setup = small_setup("fedgen", preset="reference", class_limit=False, share="predictor", users=3, active=2)
    server, grid = local_federation(tmp_path, setup)
    server.run()
    assert_like_the_simulator(server, setup, 3)
    inputs = setup.inputs("fedgen", [0])
    program = training_program(setup, "fedgen", inputs)
    simulated = program.advance(inputs, program.init(inputs), 0, 3)
    for number, site in enumerate(grid.sites):
        files = list(site.folder.glob("state/*/client.safetensors"))
        if files:  # it was drawn
            for name, value in named(load_tree(files[0], site.plan.forms.client)).items():
                theirs = np.asarray(named(simulated.clients)[name][0, number])
                np.testing.assert_allclose(value, theirs, rtol=1e-4, atol=1e-6, err_msg=f"{name} of site {number}")
    assert any(site.folder.glob("state/*/before.safetensors") for site in grid.sites)


@pytest.mark.slow
def test_sites_fine_tune_before_they_are_evaluated_and_the_server_averages_its_models(tmp_path: Path) -> None:
    settings = {"finetune_steps": 4, "finetune_lr": 0.1, "ema": 0.5}
    setup = small_setup("fedmoments", users=2, active=2, rounds=2, **settings)
    server, _ = local_federation(tmp_path, setup)
    (ours,), (theirs,) = server.run()["results"], run(setup)["results"]
    assert_like_the_simulator(server, setup, 2)
    for score in ("accuracy", "accuracy_users", "accuracy_matching"):
        assert ours[score] == pytest.approx(theirs[score], abs=0.51), score  # one of 200 samples
    (plain,) = run(small_setup("fedmoments", users=2, active=2, rounds=2, ema=0.5))["results"]
    assert plain["accuracy"] == theirs["accuracy"]
    assert theirs["accuracy_matching"] > plain["accuracy_matching"] + 1


def test_robust_aggregation_is_the_simulators(tmp_path: Path) -> None:
    setup = small_setup("fedavg", users=3, active=3, aggregation="median", clip=0.05)
    server, _ = local_federation(tmp_path, setup)
    server.run()
    assert_like_the_simulator(server, setup, 3)


def test_updates_that_go_against_the_others_are_shortened_as_in_the_simulator(tmp_path: Path) -> None:
    torn = {"users": 6, "active": 6, "alpha": 0.1, "lr": 0.1}
    setup = small_setup("fedavg", max_against=0.01, **torn)
    server, _ = local_federation(tmp_path, setup)
    server.run()
    assert_like_the_simulator(server, setup, 3)
    (acting,), (off,) = (run(s)["results"] for s in (setup, small_setup("fedavg", max_against=0.0, **torn)))
    assert acting != off, "it acts here"


@pytest.mark.slow
def test_the_noise_of_honest_sites_is_not_held_against_them(tmp_path: Path) -> None:
    """The documented settings, whose noise is longer than the model; what is far longer is shortened."""
    private = {"dp_clip": 0.5, "dp_noise": 4.0, "dp_count_noise": 4.0}
    setup = small_setup("fedgen", users=3, active=3, rounds=2, share="predictor", **private)

    def shout(site: int, message: Message, content: RecordDict) -> RecordDict:
        if site == 2 and "upload" in content:
            name = ".base.params.predictor['weight']"
            content["upload"][name] = Array(content["upload"][name].numpy() * np.float32(1e6))
        return content

    server, _ = local_federation(tmp_path, setup, shout)
    server.run()
    assert not [e for e in read_journal(server.journal.path) if e["event"] == "refused"]
    model = load_tree(server.path / "rounds" / "2.safetensors", server.plan.forms.server).base
    assert max(float(np.abs(a).max()) for a in jax.tree.leaves(model)) < 100


@pytest.mark.slow
def test_a_private_federation_keeps_loss_scores_and_noise_to_its_sites(tmp_path: Path) -> None:
    private = {"dp_noise": 1.0, "dp_clip": 0.1, "dp_count_noise": 1.0, "share": "predictor"}
    setup = small_setup("fedgen", users=2, active=2, rounds=2, **private)
    states = []
    for name in ("one", "two"):
        server, grid = local_federation(tmp_path / name, setup)
        (row,) = server.run()["results"]
        assert row["privacy"]["messages"] == 2
        assert row["privacy"]["epsilon"] == guarantee(setup.config, 2)["epsilon"]
        replies = [m.content for _, m in grid.sent if "upload" in m.content]
        assert len(replies) == 4
        scores = [m.content for _, m in grid.sent if set(m.content) == {"about", "metrics"}]
        assert len(scores) == 4, "sites were asked to test"
        assert not any(content["metrics"] for content in (*replies, *scores))
        events = read_journal(grid.sites[0].folder / "log.jsonl")
        assert all(e["score"] for e in events if e["event"] == "evaluated"), "the site itself may know"
        states.append(load_tree(server.path / "rounds" / "1.safetensors", server.plan.forms.server))
    same_seed = zip(jax.tree.leaves(states[0].base), jax.tree.leaves(states[1].base), strict=True)
    assert all((a != b).any() for a, b in same_seed), "the noise does not come from the run's seed"
