"""Real processes give the simulator's numbers: every algorithm, and FedGen on MNIST in both sharing modes."""

from pathlib import Path

import jax
import numpy as np
import pytest
from real import Event, running, server_events, site_events, until, write

from fedgen.config import resolve
from fedgen.core.trees import named, nbytes
from fedgen.federate.deploy.folders import write_app, write_server
from fedgen.federate.deploy.processes import Processes
from fedgen.federate.journal import GATE_JOURNAL, read_journal
from fedgen.federate.plan import Plan
from fedgen.federate.schema import ServerSettings, TaskSettings, read_settings
from fedgen.runs.checkpoint import load_tree
from fedgen.runs.cohort import draw_cohort
from fedgen.runs.division import load_dataset
from fedgen.simulator.setup import Setup, prepare
from helpers import small_data, small_setup, training_program

SITES, ACTIVE, ROUNDS = 3, 2, 2  # the second starts from what the first left at server and sites


DATA = load_dataset(resolve({}))


def _setup(share: str) -> Setup:
    settings = {
        "algorithms": ["fedgen"], "share": share, "users": SITES, "active": ACTIVE, "rounds": ROUNDS,
        "local_steps": 4, "batch_size": 16, "eval_every": ROUNDS, "train_fraction": 0.02, "model.channels": [4],
        "fedgen.generator_steps": 4, "partition.min_samples": 10,
    }  # fmt: skip
    return prepare(resolve(settings), DATA)


# Each sends or keeps something else than the others; test_parity.py has all algorithms, without processes. FedAvg's
# rounds are in test_demo.py, FedGen's four in test_real_resume.py.
KINDS = ("fedensemble", "feddistill", "feddistill+", "feddfusion", "scaffold", "ditto")


@pytest.mark.slow
@pytest.mark.waits
def test_every_kind_of_algorithm_with_a_tiny_model(tmp_path: Path) -> None:
    """One SuperLink and the same SuperNodes for all, and all runs at once: Flower mostly waits. Without TLS, for once.

    The data are the same for all algorithms, and so is the file of samples that the server has for FedDFusion.
    """
    setups = {name: small_setup(name, users=2, active=2, rounds=ROUNDS, eval_every=ROUNDS) for name in KINDS}
    settings = {"join_timeout": 600.0, "round_timeout": 600.0}
    folders, port = write(tmp_path / "federation", setups["feddfusion"], small_data(), tls=False, **settings)
    server = read_settings(folders.server / "server.toml", ServerSettings).model_copy(update={"poll": 1.0})
    assert server.proxy
    write_server(folders, server)
    task = read_settings(folders.app / "task.toml", TaskSettings)
    with running(folders, port) as processes:
        processes.start_superlink()
        for name in server.sites:
            processes.start_site(name)
        for algorithm, setup in setups.items():
            write_app(folders, setup.config, task)
            processes.submit(_run_name(algorithm))
        for algorithm in setups:
            finish(processes, _run_name(algorithm))
        events = server_events(processes)
    for algorithm, setup in setups.items():
        own = [e for e in events if e["run"] == _run_name(algorithm)]
        assert_like_the_simulator(setup, own, folders.server / "runs" / _run_name(algorithm))


def _run_name(algorithm: str) -> str:
    return algorithm.replace("+", "-plus")


def finish(processes: Processes, run: str) -> None:
    ends = ("finished", "ended")
    end = until(lambda: [{"end": e} for e in server_events(processes) if e["run"] == run and e["event"] in ends])["end"]
    assert end["event"] == "finished", end
    assert end["round"] == ROUNDS


def assert_like_the_simulator(setup: Setup, events: list[Event], run: Path) -> None:
    """Cohorts and label counts are equal exactly, and all parameters after each round to 1e-5."""
    (algorithm,), config = setup.config.algorithms, setup.config
    assert not [e for e in events if e["event"] in ("failed", "refused")]
    inputs = setup.inputs(algorithm, [0])
    program = training_program(setup, algorithm, inputs)
    state = program.init(inputs)
    for number in range(ROUNDS):
        drawn = draw_cohort(jax.random.key(0), np.int32(number), config.users, config.active).tolist()
        (asked,) = [e["cohort"] for e in events if e["event"] == "round" and e["round"] == number]
        assert asked == [f"site-{site}" for site in drawn]
        state = program.advance(inputs, state, number, number + 1)
        simulated = jax.tree.map(lambda a: np.asarray(a)[0], state.server)
        federated = named(load_tree(run / "rounds" / f"{number + 1}.safetensors", simulated))
        for name, value in named(simulated).items():
            distance = np.linalg.norm(np.asarray(federated[name], np.float64) - value)
            exact = name == ".prior" or np.issubdtype(value.dtype, np.integer)  # label counts, or what is made of them
            allowed = 0 if exact else 1e-5 * np.linalg.norm(value)
            assert distance <= allowed, f"{name} after round {number + 1} of {run.name}"


@pytest.mark.slow
@pytest.mark.waits
@pytest.mark.optimised
def test_fedgen_on_mnist_in_both_sharing_modes(tmp_path: Path) -> None:
    setups = {share: _setup(share) for share in ("all", "predictor")}
    folders, port = write(tmp_path / "federation", setups["all"], DATA, join_timeout=600.0, round_timeout=600.0)
    with running(folders, port) as processes:
        processes.start_superlink()
        processes.register()
        for number in range(SITES):
            processes.start_site(f"site-{number}")
        for share, setup in setups.items():
            write_app(folders, setup.config, read_settings(folders.app / "task.toml", TaskSettings))
            processes.submit(share)
            finish(processes, share)
        events, journals = server_events(processes), [site_events(processes, f"site-{n}") for n in range(SITES)]
        passed = [e for e in read_journal(folders.server / GATE_JOURNAL) if e["event"] == "message"]
    assert_on_the_wire(setups, passed)

    for share, setup in setups.items():
        assert_like_the_simulator(setup, [e for e in events if e["run"] == share], folders.server / "runs" / share)
        plan = Plan(setup.config, setup.task)
        # What a site says it sent is the upload and nothing else: NumPy's header on each array, no more.
        run = {e["run"] for e in journals[0] if e["event"] == "train"}
        assert len(run) == 2
        arrays = len(named(plan.forms.upload))
        due = nbytes(plan.forms.upload) + 128 * arrays
        sent = {e["sent"] for journal in journals for e in journal if e["event"] == "trained"}
        assert due in sent
        assert len(sent) == 2, "one size for each sharing mode"

    # The server scores the global model; under partial sharing the sites score their own.
    scores = {e["run"]: e for e in events if e["event"] == "score"}
    assert 0 < scores["all"]["accuracy"] <= 100
    assert scores["all"]["accuracy_users"] is None
    assert scores["predictor"]["accuracy"] is None
    summary = _simulated_scores(setups["predictor"])
    assert abs(scores["predictor"]["accuracy_users"] - summary["accuracy_users"]) < 0.05
    assert abs(scores["predictor"]["accuracy_matching"] - summary["accuracy_matching"]) < 0.05
    assert abs(scores["predictor"]["accuracy_seen_labels"] - summary["accuracy_seen_labels"]) < 0.05


def assert_on_the_wire(setups: dict[str, Setup], passed: list[Event]) -> None:
    """What the gate counted: the arrays, about a kilobyte for each object upwards, and less than that downwards."""
    runs = list(dict.fromkeys(e["run"] for e in passed))
    assert len(runs) == len(setups)
    sizes = {}
    for run, (share, setup) in zip(runs, setups.items(), strict=True):
        forms = Plan(setup.config, setup.task).forms
        for way, form, overhead in (("up", forms.upload, (500, 1600)), ("down", forms.broadcast, (50, 600))):
            found = [e for e in passed if (e["run"], e["way"], e["kind"]) == (run, way, "train")]
            assert len(found) == ROUNDS * ACTIVE
            due = nbytes(form) + 128 * len(named(form))
            for e in found:
                # Equal arrays travel once: as long as its biases are zeros, a model is a little smaller than its form.
                assert 0.97 * due + overhead[0] * e["objects"] < e["bytes"] < due + overhead[1] * e["objects"], (due, e)
            sizes[share, way] = max(e["bytes"] for e in found)
    assert sizes["predictor", "up"] < sizes["all", "up"] / 6, sizes
    assert sizes["predictor", "down"] < sizes["all", "down"] / 2, "the generator is most of what is left"


def _simulated_scores(setup: Setup) -> dict:
    from fedgen.simulator.run import run

    return run(setup)["results"][0]
