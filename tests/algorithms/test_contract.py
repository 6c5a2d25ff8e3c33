"""What every registered algorithm must fulfil, whatever it does."""

import contextlib
import dataclasses
import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedgen.algorithms import ALGORITHMS, build
from fedgen.algorithms.wrap import With, innermost
from fedgen.config import to_toml
from fedgen.core import contract
from fedgen.core.contract import Round
from fedgen.core.streams import stream
from fedgen.core.trees import all_finite, named, nbytes, stack
from fedgen.core.wires import shapes
from fedgen.data.federated import Division
from fedgen.runs.checkpoint import load_tree, save_tree
from fedgen.runs.cohort import draw_cohort
from fedgen.simulator.setup import Setup
from helpers import SMALL, built, each, local_of, play, same_bits, small_setup, training_program

QUICK = ("fedavg", "scaffold", "feddistill+", "fedgen")
EVERY = pytest.mark.parametrize("algorithm", each(ALGORITHMS, quick=QUICK))
KEY = jax.random.key(1)
PARTIAL = ("fedavg", "fedprox", "feddistill+", "feddfusion", "fedgen", "scaffold", "feddyn", "fedntd", "ditto")
PARTIAL += ("fedmoments", "fedopt", "fedlc", "fedsam")


@pytest.mark.slow
@EVERY
def test_three_rounds_with_one_active_user_are_finite(algorithm: str) -> None:
    state = play(small_setup(algorithm, active=1, rounds=3), 3)
    assert state.diverged == 0
    assert bool(all_finite((state.server, state.clients, state.loss)))


def test_the_example_in_the_contract_runs_as_it_stands() -> None:
    found = doctest.testmod(contract)
    assert found.attempted > 5
    assert found.failed == 0


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
    held = {"width": len(division.index), "largest": int(sizes.max())}
    state = play(dataclasses.replace(setup, divisions={0: division}, **held), 2)
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
        params, _ = built.local_start(local_of(setup.task, broadcast, client, round=2))
        params = params.shared if algorithm == "ditto" else params  # which trains a second model beside it
        own = client.base.params if isinstance(client, With) else client.params
        assert same_bits(params.extractor, own.extractor), "the broadcast must not touch a user's extractor"
        starts.append(params)
    assert same_bits(starts[0].predictor, starts[1].predictor)
    assert not same_bits(starts[0].extractor, starts[1].extractor)
    assert built.predict_global is None
    assert built.predict_local is not None


@pytest.mark.parametrize("algorithm", ["fedensemble", "feddistill", "moon", "ccvr", "fedproto", "fedrep"])
def test_algorithms_that_cannot_share_partially_say_so(algorithm: str) -> None:
    with pytest.raises(ValueError, match="share"):
        small_setup(algorithm, share="predictor")


def test_partial_sharing_uploads_the_predictor_and_the_counts_only() -> None:
    setup = small_setup("fedgen", share="predictor")
    inputs = setup.inputs("fedgen", [0])
    traffic = training_program(setup, "fedgen", inputs).traffic
    predictor = (6 * 4 + 4) * 4  # latent 6, 4 classes, 4 bytes
    generator = ((4 + 4) * 8 + 8 + 2 * 8 + 8 * 6 + 6 + 2 * 8) * 4  # with BatchNorm's parameters and statistics
    assert traffic.up == predictor + 4 * 4
    assert traffic.down == predictor + generator + 4 * 4


# Settings with which an algorithm may need something else than by default.
UNBOUNDED = {"max_update": 0.0}
NEEDS = [(algorithm, UNBOUNDED) for algorithm in ALGORITHMS]
NEEDS += [("fedavg", {"weighting": "samples", **UNBOUNDED}), ("fedavg", {"aggregation": "median", **UNBOUNDED})]
NEEDS += [("fedprox", {"clip": 0.1, **UNBOUNDED}), ("fedavg", {"max_update": 1.0})]
NEEDS += [("feddfusion", {"feddfusion__steps": 0, **UNBOUNDED})]
NEEDS += [("fedmoments", {"fedmoments__control": True, **UNBOUNDED})]


def _no_proxy(key: jax.Array, samples: int) -> jax.Array:
    raise LookupError("the proxy was asked for")


def _some_uploads(form: object, users: int) -> object:
    """Uploads of that form in which a user agrees with the next one on nothing."""
    rng = np.random.default_rng(0)

    def some(a: jax.ShapeDtypeStruct) -> jax.Array:
        shape = (users, *a.shape)
        if a.dtype == jnp.bool_:
            return jnp.asarray(np.indices(shape).sum(axis=0) % 2 == 0)
        floats = jnp.issubdtype(a.dtype, jnp.floating)
        return jnp.asarray(rng.normal(size=shape) if floats else rng.integers(1, 9, shape), a.dtype)

    return jax.tree.map(some, form)


def _two_alike(uploads: object) -> object:
    """The first two users send the mean of what they would: a sum, weighted by samples where these are sent, stays."""
    samples = [a for name, a in named(uploads).items() if name.endswith(".samples")]
    weights = samples[0][:2] / jnp.sum(samples[0][:2]) if samples else jnp.full(2, 0.5)

    def mixed(a: jax.Array) -> jax.Array:
        if not jnp.issubdtype(a.dtype, jnp.floating):
            return a
        return a.at[:2].set(jnp.tensordot(weights.astype(a.dtype), a[:2], axes=1))

    return jax.tree.map(mixed, uploads)


def _differ(a: object, b: object) -> bool:
    """Whether two trees differ by more than the order of a sum."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return not all(np.allclose(x, y, rtol=1e-4, atol=1e-5) for x, y in pairs)


@pytest.mark.parametrize(("algorithm", "settings"), NEEDS)
def test_only_who_declares_it_looks_at_uploads_one_by_one(algorithm: str, settings: dict[str, Any]) -> None:
    setup, made = built(algorithm, active=4, **settings)
    uploads = _some_uploads(shapes(made, setup.task).upload, 4)
    round = Round(jnp.int32(0), jnp.arange(4), KEY, lambda key, samples: setup.task.prepare(setup.data.x[:samples]))

    @jax.jit
    def after(uploads: object, cohort: jax.Array) -> object:
        server = made.server_init(KEY)
        return made.server_update(server, uploads, round._replace(cohort=cohort))

    cohort = jnp.arange(4)
    as_sent = after(uploads, cohort)
    assert _differ(as_sent, after(jax.tree.map(lambda a: a.at[0].set(a[1]), uploads), cohort)), "they do matter"
    assert _differ(as_sent, after(_two_alike(uploads), cohort)) == made.needs.individual_uploads
    if not made.needs.individual_uploads:
        order = jnp.array([2, 0, 3, 1])
        assert not _differ(as_sent, after(jax.tree.map(lambda a: a[order], uploads), order))
        rest = [name for name, a in named(uploads).items() if not jnp.issubdtype(a.dtype, jnp.floating)]
        assert all(name.endswith(".samples") for name in rest), "what is no number cannot be summed"


@pytest.mark.parametrize(("algorithm", "settings"), NEEDS)
def test_only_who_declares_it_asks_for_proxy_samples(algorithm: str, settings: dict[str, Any]) -> None:
    setup, made = built(algorithm, active=4, **settings)
    forms = shapes(made, setup.task)
    uploads = jax.tree.map(lambda a: jax.ShapeDtypeStruct((4, *a.shape), a.dtype), forms.upload)
    round = Round(jnp.int32(0), jnp.arange(4), KEY, _no_proxy)
    asks = pytest.raises(LookupError, match="proxy") if made.needs.proxy else contextlib.nullcontext()
    with asks:
        jax.eval_shape(lambda s, u: made.server_update(s, u, round), forms.server, uploads)


@pytest.mark.parametrize("algorithm", PARTIAL)
def test_only_who_declares_it_uploads_whole_models_under_partial_sharing(algorithm: str) -> None:
    setup, made = built(algorithm, share="predictor")
    forms = shapes(made, setup.task)
    assert any(".extractor" in name for name in named(forms.upload)) == made.needs.whole_uploads
    assert any(".predictor" in name for name in named(forms.upload))
    assert not any(".extractor" in name for name in named(forms.broadcast))


@pytest.mark.parametrize("algorithm", each(QUICK, quick=("fedavg", "fedgen")))
def test_a_checkpoint_gives_the_state_back(algorithm: str, tmp_path: Path) -> None:
    state = play(small_setup(algorithm, active=6), 1)
    save_tree(tmp_path / "c.safetensors", state, {})
    assert same_bits(load_tree(tmp_path / "c.safetensors", state), state)


WIRE = [("feddfusion", "paper", "all"), ("ditto", "paper", "all"), ("fedgen", "reference", "all")]
PARTIAL_WIRE = [("fedgen", "paper", "predictor")]


@pytest.mark.slow
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
        like = shapes(built, setup.task).upload
        uploads = [load_tree(folder / f"upload{user}.safetensors", like) for user in cohort.tolist()]
        inputs = setup.inputs(algorithm, [0])
        program = training_program(setup, algorithm, inputs)
        assert program.traffic == (nbytes(broadcast), nbytes(uploads[0]))

        def proxy(key: jax.Array, samples: int, setup: Setup = setup) -> jax.Array:
            own = jnp.asarray(setup.divisions[0].proxy)
            return setup.task.prepare(setup.data.x[own[jax.random.randint(key, (samples,), 0, len(own))]])

        round = Round(np.int32(0), cohort, stream(seed, "server", 0), proxy)
        after, _ = built.server_update(server, stack(uploads), round)
        simulated = program.advance(inputs, program.init(inputs), 0, 1)
        for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(simulated.server), strict=True):
            np.testing.assert_allclose(ours, theirs[0], rtol=1e-4, atol=1e-5, err_msg=folder.name)


ACCUMULATING = [
    ("fedavg", {}, False),
    ("fedprox", {}, False),
    ("feddyn", {}, True),
    ("feddyn", {"feddyn__mu": 0.0}, False),
    ("fedopt", {}, True),
    ("fedopt", {"fedopt__server_momentum": 0.0}, False),
    ("fedopt", {"fedopt__server": "adam"}, True),
    ("fedmoments", {}, True),
    ("fedmoments", {"fedmoments__dyn": 0.0}, False),
]


@pytest.mark.parametrize(("algorithm", "settings", "accumulates"), ACCUMULATING)
def test_only_whose_server_accumulates_moves_on_after_a_push(
    algorithm: str, settings: dict[str, Any], accumulates: bool
) -> None:
    """All users push in the first round and send back what they got in the second."""
    setup, made = built(algorithm, active=4, **UNBOUNDED, **settings)
    form = shapes(made, setup.task).upload

    def after(server: object, number: int, push: float) -> object:
        sent = named(made.broadcast(server, jnp.int32(number)))
        leaves = [sent.get(name, jnp.zeros(leaf.shape, leaf.dtype)) for name, leaf in named(form).items()]
        one = jax.tree.map(lambda a: a + push, jax.tree.unflatten(jax.tree.structure(form), leaves))
        uploads = jax.tree.map(lambda a: jnp.stack([a] * 4), one)
        return made.server_update(server, uploads, Round(jnp.int32(number), jnp.arange(4), KEY, _no_proxy))[0]

    pushed = after(made.server_init(KEY), 0, 0.01)
    later = after(pushed, 1, 0.0)
    before, now = (named(innermost(server).params) for server in (pushed, later))
    assert _differ(before, now) == made.needs.accumulates == accumulates


def test_control_variates_add_up_and_are_declared_to() -> None:
    """What one round pushed corrects users' steps in the next ones, in which nobody pushes."""
    for algorithm, settings in (("scaffold", {}), ("fedmoments", {"fedmoments__control": True})):
        assert built(algorithm, **settings)[1].needs.accumulates
    assert not built("fedopt", fedopt__server_momentum=0.0, fedopt__server="sgd")[1].needs.accumulates
    assert built("fedopt", fedopt__server_momentum=0.0, fedopt__server="adam")[1].needs.accumulates
