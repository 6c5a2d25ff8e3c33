"""What every registered algorithm must fulfil, whatever it does."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms import ALGORITHMS, build
from fedgen.config import to_toml
from fedgen.core.contract import Round
from fedgen.core.streams import stream
from fedgen.core.trees import all_finite, nbytes, stack
from fedgen.data.federated import Division
from fedgen.runs.checkpoint import load_tree, save_tree
from fedgen.runs.cohort import draw_cohort
from fedgen.simulator.setup import Setup
from helpers import SMALL, each, play, same_bits, small_setup

EVERY = pytest.mark.parametrize("algorithm", ALGORITHMS)
PARTIAL = ("fedavg", "fedprox", "feddistill+", "feddfusion", "fedgen")


@EVERY
@pytest.mark.parametrize("active", [1, pytest.param(SMALL["users"], marks=pytest.mark.slow)])
def test_three_rounds_are_finite_for_any_cohort(algorithm: str, active: int) -> None:
    state = play(small_setup(algorithm, active=active, rounds=3), 3)
    assert state.diverged == 0
    assert bool(all_finite((state.server, state.clients, state.loss)))


@pytest.mark.parametrize("active", range(2, SMALL["users"]))
@pytest.mark.slow
def test_any_cohort_size_in_between(active: int) -> None:
    assert play(small_setup("fedavg", active=active), 2).diverged == 0


@EVERY
def test_users_with_one_sample_and_with_one_label(algorithm: str) -> None:
    setup = small_setup(algorithm, active=6)
    labels = np.asarray(setup.data.y)
    everything = np.arange(len(labels), dtype=np.int32)
    # users 0 and 1 hold one sample each, user 2 only label 0, the others the rest
    zeros = everything[labels == 0][2:]
    rest = everything[labels != 0]
    shares = [everything[labels == 0][:1], everything[labels == 0][1:2], zeros, *np.array_split(rest, 3)]
    sizes = np.array([len(share) for share in shares])
    counts = np.array([np.bincount(labels[share], minlength=4) for share in shares])
    division = Division(
        np.concatenate(shares), (np.cumsum(sizes) - sizes).astype(np.int32), sizes.astype(np.int32), counts,
        setup.divisions[0].proxy, setup.divisions[0].validation,
    )  # fmt: skip
    state = play(dataclasses.replace(setup, divisions={0: division}), 2)
    assert bool(all_finite((state.server, state.clients, state.loss)))


@pytest.mark.parametrize("algorithm", each(PARTIAL, quick=("fedavg", "fedgen")))
def test_partial_sharing_keeps_extractors_apart_and_predictors_common(algorithm: str) -> None:
    setup = small_setup(algorithm, share="predictor", active=6)
    built, _ = build(ALGORITHMS[algorithm], setup.task, setup.federation, setup.config.of(algorithm))
    state = play(setup, 2)
    starts = []
    for user in (0, 1):
        client = jax.tree.map(lambda a, user=user: a[user], state.clients)
        broadcast = built.broadcast(state.server, np.int32(2))
        params, _ = built.local_start(broadcast, client)
        own = client.params if hasattr(client, "params") else client.base.params
        assert same_bits(params.extractor, own.extractor), "the broadcast must not touch a user's extractor"
        starts.append(params)
    assert same_bits(starts[0].predictor, starts[1].predictor)
    assert not same_bits(starts[0].extractor, starts[1].extractor)
    assert built.predict_global is None
    assert built.predict_local is not None


@pytest.mark.parametrize("algorithm", ["fedensemble", "feddistill"])
def test_algorithms_that_cannot_share_partially_say_so(algorithm: str) -> None:
    with pytest.raises(ValueError, match="share"):
        small_setup(algorithm, share="predictor")


def test_partial_sharing_uploads_the_predictor_and_the_counts_only() -> None:
    setup = small_setup("fedgen", share="predictor")
    inputs = setup.inputs("fedgen", [0])
    traffic = setup.program("fedgen", inputs, batched=False).traffic
    predictor = (6 * 4 + 4) * 4  # latent 6, 4 classes, 4 bytes
    generator = ((4 + 4) * 8 + 8 + 2 * 8 + 8 * 6 + 6 + 2 * 8) * 4  # with BatchNorm's parameters and statistics
    assert traffic.up == predictor + 4 * 4
    assert traffic.down == predictor + generator + 4 * 4


@EVERY
def test_a_checkpoint_gives_the_state_back(algorithm: str, tmp_path: Path) -> None:
    state = play(small_setup(algorithm, active=6), 1)
    save_tree(tmp_path / "c.safetensors", state, {})
    assert same_bits(load_tree(tmp_path / "c.safetensors", state), state)


WIRE = [(algorithm, "paper", "all") for algorithm in ALGORITHMS]
WIRE += [("fedgen", "reference", "all")]
PARTIAL_WIRE = [("fedgen", "paper", "predictor")]


@pytest.mark.parametrize("kinds", [pytest.param(WIRE, marks=pytest.mark.slow), PARTIAL_WIRE], ids=["all", "partial"])
def test_only_broadcast_and_upload_cross_the_wire(kinds: list[tuple[str, str, str]], tmp_path: Path) -> None:
    """Clients in another process, built from the configuration alone, give the server the simulator's next state."""
    seed = jax.random.key(0)
    setups, cohorts = {}, {}
    for number, (algorithm, preset, share) in enumerate(kinds):
        settings = {"active": 2, "rounds": 1, "preset": preset, "share": share, "class_limit": False}
        setup, folder = small_setup(algorithm, **settings), tmp_path / str(number)
        folder.mkdir()
        built, _ = build(ALGORITHMS[algorithm], setup.task, setup.federation, setup.config.of(algorithm))
        server = built.server_init(stream(seed, "model"))
        (folder / "config.toml").write_text(to_toml(setup.config))
        save_tree(folder / "broadcast.safetensors", built.broadcast(server, np.int32(0)), {})
        division = setup.divisions[0]
        cohort = draw_cohort(seed, np.int32(0), setup.config.users, setup.config.active)
        for user in cohort.tolist():
            rows = division.index[division.offset[user] : division.offset[user] + division.size[user]]
            np.savez(folder / f"user{user}.npz", x=np.asarray(setup.data.x)[rows], y=np.asarray(setup.data.y)[rows])
        setups[folder], cohorts[str(folder)] = (algorithm, setup, built, server, cohort), cohort.tolist()
    child = Path(__file__).parent / "wire_client.py"
    subprocess.run([sys.executable, child, json.dumps(cohorts)], check=True)

    for folder, (algorithm, setup, built, server, cohort) in setups.items():
        broadcast = built.broadcast(server, np.int32(0))
        like = jax.eval_shape(
            lambda b, c, built=built: built.local_finish(*built.local_start(b, c), b, c, np.int32(1))[0],
            broadcast, built.client_init(seed),
        )  # fmt: skip
        uploads = [load_tree(folder / f"upload{user}.safetensors", like) for user in cohort.tolist()]
        inputs = setup.inputs(algorithm, [0])
        program = setup.program(algorithm, inputs, batched=False)
        assert program.traffic == (nbytes(broadcast), nbytes(uploads[0]))

        def proxy(key: jax.Array, samples: int, setup: Setup = setup) -> jax.Array:
            own = jnp.asarray(setup.divisions[0].proxy)
            return setup.task.prepare(setup.data.x[own[jax.random.randint(key, (samples,), 0, len(own))]])

        round = Round(np.int32(0), cohort, stream(seed, "server", 0), proxy)
        after, _ = built.server_update(server, stack(uploads), round)
        simulated = program.advance(inputs, program.init(inputs), 0, 1)
        for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(simulated.server), strict=True):
            np.testing.assert_allclose(ours, theirs[0], rtol=1e-4, atol=1e-5, err_msg=folder.name)
