"""One device or several, one process or two, all clients at once or in slices: the same run."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from fedgen.errors import FedgenError
from fedgen.simulator.devices import join_hosts
from fedgen.simulator.engine import Program, working_memory
from fedgen.simulator.sharding import place
from helpers import small_setup, training_program

SCRIPT = Path(__file__).parent / "part_of_a_run.py"
ALGORITHM = "fedgen"  # with partial sharing: users' states, the generator and the server's draws all take part


def _together(*commands: list[str]) -> list[str]:
    """What processes print that run at the same time; all must succeed."""
    environment = {**os.environ, "XLA_FLAGS": ""}  # the same bits on any number of devices need XLA's usual emitters
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    processes = [subprocess.Popen([sys.executable, *command], **pipes) for command in commands]
    try:
        said = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()  # where one failed, the others would wait for it
    assert not any(process.returncode for process in processes), said
    return [printed for printed, _ in said]


def _part(folder: Path, devices: int, *options: str, algorithm: str = ALGORITHM) -> list[str]:
    """The arguments of one process of a run."""
    return [str(SCRIPT), str(folder), algorithm, str(devices), *options]


def _one_process(folder: Path, devices: int, *options: str, algorithm: str = ALGORITHM) -> str:
    """What it says at the end."""
    return _together(_part(folder, devices, *options, algorithm=algorithm))[0].splitlines()[-1]


def _records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def on_one_device(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharding") / "one"
    assert _one_process(folder, 1) == "holds 600 to 600 of 600 samples"
    return folder


@pytest.mark.slow
def test_several_devices_give_the_same_records(on_one_device: Path, tmp_path: Path) -> None:
    """The cohort is divided otherwise (over four devices some train a user twice), and every number is the same."""
    _one_process(tmp_path / "run", 4)
    assert _records(tmp_path / "run") == _records(on_one_device)
    for model in (on_one_device / "models").iterdir():
        assert (tmp_path / "run/models" / model.name).read_bytes() == model.read_bytes()


def _two_places() -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [f"{number}/2@{address}" for number in (0, 1)]


def _two_processes(folder: Path, devices: int, *options: str, algorithm: str = ALGORITHM) -> list[str]:
    """What both say at the end."""
    parts = [_part(folder, devices, "--hosts", place, *options, algorithm=algorithm) for place in _two_places()]
    return [printed.splitlines()[-1] for printed in _together(*parts)]


@pytest.mark.slow
def test_the_command_computes_on_two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One gets its hosts from the option, the other from the environment; the first writes and shows the table."""
    first, second = _two_places()
    sizes = {"model": "mlp", "users": 4, "active": 2, "rounds": 1, "local-steps": 1, "out": tmp_path / "run"}
    small = [f"--{key}={value}" for key, value in sizes.items()]
    command = ["-m", "fedgen", "run", "--algorithm", "fedavg", *small]
    monkeypatch.setenv("FEDGEN_HOSTS", second)  # an option goes before it
    said = _together([*command, "--hosts", first], command)
    assert "report.html" in said[0]
    assert "report.html" not in said[1]
    assert len(json.loads((tmp_path / "run/summary.json").read_text())["results"]) == 1


@pytest.mark.slow
def test_two_processes_give_the_same_records_and_hold_half_each(on_one_device: Path, tmp_path: Path) -> None:
    """Over loopback, with collectives between the processes: every number is the same as on one device."""
    assert _two_processes(tmp_path / "run", 1) == ["holds 300 to 300 of 600 samples"] * 2
    assert _records(tmp_path / "run") == _records(on_one_device)


@pytest.mark.slow
def test_epochs_and_passes_over_the_users_data_are_the_same_on_two_hosts(tmp_path: Path) -> None:
    """Then all of a user's samples are fetched from the host that has them, not only those of its mini-batches."""
    alone = _part(tmp_path / "one", 1, algorithm="summing")
    two = [_part(tmp_path / "two", 1, "--hosts", place, algorithm="summing") for place in _two_places()]
    _together(alone)
    _together(*two)
    records = _records(tmp_path / "one")
    assert all(record["before"] and record["after"] for record in records)
    assert _records(tmp_path / "two") == records


@pytest.mark.slow
def test_what_one_process_began_two_go_on_with_and_one_ends(on_one_device: Path, tmp_path: Path) -> None:
    """Seven users fill two hosts' blocks of four but for one place, which no checkpoint has; then on two devices."""
    assert _one_process(tmp_path / "run", 1, "--interrupt") == "interrupted"
    assert _two_processes(tmp_path / "run", 1, "--interrupt") == ["interrupted"] * 2
    assert _one_process(tmp_path / "run", 2) == "holds 600 to 600 of 600 samples"
    assert _records(tmp_path / "run") == _records(on_one_device)


@pytest.mark.slow
def test_runs_at_once_are_dealt_out_to_devices_and_hosts(tmp_path: Path) -> None:
    """Two runs on two devices: each has one, and the same draws; with two hosts, a half of each run's cohort.

    Of SCAFFOLD, which keeps something at the server and at the users, too, and compiles faster than FedGen.
    """
    seeds, algorithm = ("--seeds", "2"), "scaffold"
    _one_process(tmp_path / "one", 1, *seeds, algorithm=algorithm)
    _one_process(tmp_path / "two", 2, *seeds, algorithm=algorithm)
    _two_processes(tmp_path / "four", 2, *seeds, "--interrupt", algorithm=algorithm)
    _two_processes(tmp_path / "four", 2, *seeds, algorithm=algorithm)
    expected = _records(tmp_path / "one")
    assert [(record["seed"], record["round"]) for record in expected] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    for name in ("two", "four"):
        for ours, theirs in zip(_records(tmp_path / name), expected, strict=True):
            assert (ours["seed"], ours["round"]) == (theirs["seed"], theirs["round"])
            assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
            assert ours["accuracy_users"] == pytest.approx(theirs["accuracy_users"], abs=0.01)


CNN = {"model": "cnn", "model__channels": [2, 3]}


@pytest.mark.parametrize(
    ("network", "numbers"), [({}, (0, 2)), pytest.param(CNN, (0, 1, 2, 5), marks=pytest.mark.slow)]
)
def test_a_cohort_in_slices_is_the_cohort_at_once(network: dict[str, Any], numbers: tuple[int, ...]) -> None:
    """The same draws; sums over a batch of clients are taken in another order, so to 1e-5 and not to the bit."""
    ends = []
    for at_once in numbers:  # devices have 3 clients each: one by one, slices of two, all
        setup = small_setup("fedavg", active=5, at_once=at_once, **network)
        inputs = setup.inputs("fedavg", [0])
        with mock.patch.object(Program, "_clients_that_fit", return_value=1) as asked:
            program = training_program(setup, "fedavg", inputs)
        assert asked.called == (at_once == 0)
        ends.append(program.advance(inputs, program.init(inputs), 0, 2))
    for other in ends[1:]:
        for a, b in zip(jax.tree.leaves(ends[0].server), jax.tree.leaves(other.server), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_each_group_of_devices_has_runs_of_its_own() -> None:
    """Four runs on the tests' two devices."""
    setup = small_setup("fedavg", seeds=4)
    inputs = setup.inputs("fedavg", range(4))
    state = training_program(setup, "fedavg", inputs, batched=True).init(inputs)
    for leaf in jax.tree.leaves(state):
        assert {shard.data.shape[0] for shard in leaf.addressable_shards} == {2}
        assert len({str(shard.index) for shard in leaf.addressable_shards}) == 2


def test_the_memory_estimate_counts_what_a_step_makes() -> None:
    def two_products(x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda row: (row * 2) @ np.ones((8, 4), np.float32), x)

    # the result [5, 4], and within the loop row * 2 [8], the product [4] (4 bytes each)
    made = working_memory(two_products, jax.ShapeDtypeStruct((5, 8), np.float32))
    assert 4 * (20 + 8 + 4) <= made <= 4 * (20 + 8 + 4) + 100


def test_a_gpu_trains_as_many_clients_as_half_of_its_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": 10_000})
    monkeypatch.setattr(jax, "local_devices", lambda: [gpu])
    program = object.__new__(Program)
    program._runs = 2
    # 100 floats for each client, of each run: 5,000 // (400 * 2)
    assert program._clients_that_fit(lambda x: x * 2, np.ones((30, 100), np.float32)) == 6


def test_a_program_has_the_data_as_an_argument_and_reuses_the_state() -> None:
    setup = small_setup("fedavg")
    inputs = setup.inputs("fedavg", [0])
    program = training_program(setup, "fedavg", inputs)._advance.as_text()
    shape = "u8[" + ",".join(map(str, setup.data.x.shape)) + "]"  # as it is stored
    assert re.search(re.escape(shape) + r"\S* parameter\(", program)
    assert not re.search(re.escape(shape) + r"\S* constant\(", program)
    assert "input_output_alias={" in program


def test_devices_of_a_cpu_share_one_copy() -> None:
    x = np.ones((300, 4000), np.float32)
    placed = place(x)
    assert len({shard.data.unsafe_buffer_pointer() for shard in placed.addressable_shards}) == 1
    x[0] = 7  # and it is a copy
    assert float(placed[0, 0]) == 1


@pytest.mark.parametrize("wrong", ["2", "0/2", "2/2@127.0.0.1:1", "x/2@a:1", "0/2@a:0", "0/2@a:65536"])
def test_a_wrong_place_among_hosts_is_refused(wrong: str) -> None:
    with pytest.raises(FedgenError, match="hosts"):
        join_hosts(wrong)


@pytest.mark.parametrize("number", [0, 1])
def test_waiting_for_other_hosts_ends_with_a_sentence(number: int) -> None:
    place = _two_places()[number]
    code = "import sys; from fedgen.simulator.devices import join_hosts; join_hosts(sys.argv[1], wait=1)"
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, check=False, timeout=600)
    address = place.partition("@")[2]
    awaited = [f"1 other process to connect to {address}", f"process 0 of 2 at {address}"][number]
    assert done.stderr == f"error: waited 1 s for {awaited}; start the same command on each\n"
    assert done.returncode == 2
