"""Real processes over TLS give the simulator's numbers: FedGen on MNIST, sharing everything and the predictor only."""

from pathlib import Path

import jax
import numpy as np
from real import server_events, site_events, until, write

from fedgen.config import resolve
from fedgen.core.trees import named, nbytes
from fedgen.federate.folders import write_app
from fedgen.federate.forms import Plan
from fedgen.federate.processes import processes_of
from fedgen.federate.settings import TaskSettings, read_settings
from fedgen.simulate.checkpoint import load_tree
from fedgen.simulate.engine import draw_cohort
from fedgen.simulate.setup import Setup, load_dataset, prepare

SITES, ACTIVE, ROUNDS = 3, 2, 3


DATA = load_dataset(resolve({}))


def _setup(share: str) -> Setup:
    settings = {
        "algorithms": ["fedgen"], "share": share, "users": SITES, "active": ACTIVE, "rounds": ROUNDS,
        "local_steps": 4, "batch_size": 16, "eval_every": ROUNDS, "train_fraction": 0.02, "model.channels": [4],
        "fedgen.generator_steps": 4, "partition.min_samples": 10,
    }  # fmt: skip
    return prepare(resolve(settings), DATA)


def test_fedgen_on_mnist_in_both_sharing_modes(tmp_path: Path) -> None:
    setups = {share: _setup(share) for share in ("all", "predictor")}
    place, port = write(tmp_path / "federation", setups["all"], DATA, join_timeout=60.0, round_timeout=200.0)
    with processes_of(place, port) as processes:
        processes.start_superlink()
        processes.register()
        for number in range(SITES):
            processes.start_site(f"site-{number}")
        for share, setup in setups.items():
            write_app(place, setup.config, read_settings(place.app / "task.toml", TaskSettings))
            processes.submit(share)
            end = until(
                lambda share=share: [e for e in server_events(processes) if e["run"] == share], event="finished"
            )
            assert end["round"] == ROUNDS
        events, journals = server_events(processes), [site_events(processes, f"site-{n}") for n in range(SITES)]

    for share, setup in setups.items():
        own = [e for e in events if e["run"] == share]
        assert not [e for e in own if e["event"] in ("failed", "refused")]
        plan = Plan(setup.config, setup.task)
        inputs = setup.inputs("fedgen", [0])
        program = setup.program("fedgen", inputs, batched=False)
        state = program.init(inputs)
        for number in range(ROUNDS):
            drawn = draw_cohort(jax.random.key(0), np.int32(number), SITES, ACTIVE).tolist()
            (asked,) = [e["cohort"] for e in own if e["event"] == "round" and e["round"] == number]
            assert asked == [f"site-{site}" for site in drawn]
            state = program.advance(inputs, state, number, number + 1)
            simulated = jax.tree.map(lambda a: np.asarray(a[0]), state.server)
            federated = load_tree(place.server / "runs" / share / "rounds" / f"{number + 1}.safetensors", simulated)
            assert (federated.prior == simulated.prior).all(), "label counts are equal exactly"
            for name, value in named(simulated).items():
                distance = np.linalg.norm(named(federated)[name] - value)
                assert distance <= 1e-5 * np.linalg.norm(value), f"{name} after round {number + 1} of {share}"
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


def _simulated_scores(setup: Setup) -> dict:
    from fedgen.simulate.run import run

    return run(setup)["results"][0]
