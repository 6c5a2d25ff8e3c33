"""The benchmark's arithmetic, its resilience and its honesty: peers must reach our losses."""

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from fedgen.bench import child, contenders, scaling, suite
from fedgen.bench.child import Peer
from fedgen.bench.machine import cnn_round_flops
from fedgen.bench.peers.workload import write_workload
from fedgen.bench.show import markdown, picture, tables
from fedgen.bench.simulator import SimulatorBench, set_up, workload_of
from fedgen.bench.targets import targets
from fedgen.bench.timing import Timing, as_json, exponent, take_turns
from fedgen.cli import bench as cli_bench
from fedgen.cli.main import app
from fedgen.errors import FedgenError
from fedgen.report.table import plain


def test_exponents_of_known_laws() -> None:
    sizes = [10.0, 100.0, 1000.0]
    assert exponent(sizes, [3 * n**1.5 for n in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [2.0, 2.0, 2.0]) == pytest.approx(0, abs=1e-12)


def test_contenders_take_turns_and_warm_up_in_each() -> None:
    order: list[str] = []

    def contender(name: str, seconds: float) -> Any:
        def measure() -> float:
            cold = order[-1:] != [name]
            order.append(name)
            return 100 * seconds if cold else seconds

        return measure

    found = take_turns({"a": contender("a", 1.0), "b": contender("b", 2.0)}, 3, {})
    assert order == ["a", "a", "b", "b"] * 3
    assert found["a"] == [1.0] * 3
    assert Timing.of(found["b"]) == (2.0, 2.0, 2.0, 3)
    assert as_json({"x": [Timing(1.0, 0.5, 2.0, 3)]}) == {
        "x": [{"seconds": 1.0, "low": 0.5, "high": 2.0, "repeats": 3}]
    }


def test_a_contender_that_fails_leaves_the_others_their_figures() -> None:
    answers = iter([1.0, 1.0, 1.0])

    def fails_in_its_second_turn() -> float:
        try:
            return next(answers)
        except StopIteration:
            raise FedgenError("it ended early: out of memory") from None

    absent: dict[str, str] = {}
    found = take_turns({"lost": fails_in_its_second_turn, "kept": lambda: 2.0}, 3, absent)
    assert found == {"kept": [2.0, 2.0, 2.0]}
    assert absent == {"lost": "failed: it ended early: out of memory"}


def test_whatever_one_contender_raises_is_a_line_and_the_others_go_on() -> None:
    def too_large() -> float:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nand how it came to be")

    bench = suite.Bench(True, lambda line: None, Path())
    found = bench.turns("resnet", {"bfloat16": too_large, "float32": lambda: 2.0}, 2)
    assert found == {"float32": (2.0, 2.0, 2.0, 2)}
    assert bench.absent == {"resnet, bfloat16": "failed: JaxRuntimeError: RESOURCE_EXHAUSTED: out of memory"}


def test_the_roofline_counts_what_training_needs() -> None:
    """By hand, multiply-adds of one sample: 14*14*9*6 + 7*7*54*16 + 784*32 + 32*10 forward."""
    first, rest = 10_584, 42_336 + 25_088 + 320
    # the weights' gradients cost the same again; the inputs' too, but for the first layer
    assert cnn_round_flops(28, (6, 16), 32, 10, samples=1) == 2 * (2 * first + 3 * rest)


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_the_pytorch_loop_reaches_our_losses(processes: str, tmp_path: Path) -> None:
    """PyTorch's own layers and optimiser on the draws of our engine: the same numbers, in one process or two."""
    setup = set_up("fedavg", active=3, local_steps=4)
    ours = SimulatorBench(setup, "fedavg").losses(3)
    write_workload(tmp_path / "workload.npz", workload_of(setup, 3))
    peer = Peer("torch_loop", str(tmp_path / "workload.npz"), processes)
    try:
        theirs = peer.play(2)["losses"] + peer.play(1)["losses"]
    finally:
        peer.close()
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert ours[0] > ours[2]


def test_a_peer_that_dies_says_why(tmp_path: Path) -> None:
    peer = Peer("torch_loop", str(tmp_path / "absent.npz"), "1")
    with pytest.raises(FedgenError, match=r"ended early: .*absent\.npz"):
        peer.play(1)
    peer.close()


def test_a_peer_that_is_stuck_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "PATIENCE", 0.5)
    os.mkfifo(tmp_path / "workload.npz")  # whoever reads it waits for ever
    peer = Peer("torch_loop", str(tmp_path / "workload.npz"), "1")
    with pytest.raises(FedgenError, match="no answer within"):
        peer.play(1)
    peer.close()


def test_a_peer_with_other_losses_is_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Other:
        def __init__(self, module: str, *arguments: str) -> None: ...

        def play(self, rounds: int) -> dict[str, list[float]]:
            return {"losses": [1.0, 0.9, 0.802]}

        def close(self) -> None: ...

    monkeypatch.setattr(contenders, "Peer", Other)
    bench = suite.Bench(True, lambda line: None, tmp_path)
    with ExitStack() as peers:
        assert contenders.start_peer(bench, "pytorch", tmp_path / "w", {"fedavg": [1.0, 0.9, 0.8]}, peers) is None
        assert (
            contenders.start_peer(bench, "pytorch", tmp_path / "w", {"fedavg": [1.0, 0.9, 0.8017]}, peers) is not None
        )
    assert "other losses than ours (0.80200, not 0.80000)" in bench.absent["pytorch"]


def _broken(bench: suite.Bench) -> None:
    raise ValueError("no such thing")


def _aborts(bench: suite.Bench) -> None:
    bench.say("about to abort")
    os.abort()


class _Contender:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def round(self) -> float:
        if self.seconds == 3:
            raise MemoryError("three is too many")
        if self.seconds == 5:
            os.abort()
        return self.seconds


def _sizes(quick: bool) -> Any:
    """Sizes."""
    return ((n, lambda n=n: _Contender(n)) for n in (1, 2, 3, 4, 5))


def _growing(bench: suite.Bench) -> None:
    scaling.CURVES["growing"] = _sizes
    scaling.curve("growing", bench)


def _slow(bench: suite.Bench) -> None:
    bench.found["memory_mb"] = 700.0
    bench.keep()
    bench.say("waiting")
    time.sleep(600)


def _fine(bench: suite.Bench) -> None:
    bench.found["memory_mb"] = 900.0


def test_a_part_that_fails_or_dies_says_so_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose process a compiler aborts."""
    monkeypatch.setattr(suite, "PARTS", {"broken": _broken, "aborts": _aborts, "fine": _fine})
    said: list[str] = []
    report = suite.run_bench(["broken", "aborts", "fine"], True, said.append)
    assert report["absent"] == {
        "broken": "failed: ValueError: no such thing",
        "aborts": "failed: its process ended with signal 6 (at: about to abort)",
    }
    assert report["failed"] == ["broken", "aborts"]
    assert said == ["about to abort"]
    assert report["memory_mb"] == 900
    assert [(row["what"], row["met"]) for row in report["targets"]] == [("peak memory of a default run", False)]
    json.dumps(report)


def test_what_a_part_measured_before_it_aborts_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a curve all sizes but the one that raises, which is a line, and the one that takes the process with it."""
    monkeypatch.setattr(suite, "PARTS", {"growing": _growing})
    report = suite.run_bench(["growing"], True, lambda line: None)
    curve = report["scaling"]["growing"]
    assert curve["size"] == [timing["seconds"] for timing in curve["timing"]] == [1, 2, 4]
    assert curve["exponent"] == pytest.approx(1)
    assert report["absent"] == {
        "growing 3": "failed: MemoryError: three is too many",
        "growing": "failed: its process ended with signal 6 (at: growing 5)",
    }
    assert report["failed"] == ["growing"]
    tables(report)


def test_a_part_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = suite.Bench(True, lambda line: None, Path())
    monkeypatch.setattr(suite, "PATIENCE", 15.0)
    assert suite._measure_alone(_slow, bench) == "it took longer than 15 s (at: waiting)"
    assert bench.found == {"memory_mb": 700}


def test_partial_results_are_shown(tmp_path: Path) -> None:
    """Without those that others are compared with, and of a single size."""
    curve = {"title": "users", "size": [10.0], "timing": [_timing(1.0)], "exponent": None}
    whole = {"float32": {"seconds": 31.0, "compiling": 7.0, "accuracy": 70.0}}
    pfl: dict[str, Any] = {"real": False, "rounds": 1500, "ours": whole}
    report = {
        **suite.run_bench([], True, lambda line: None),
        "scaling": {"users": curve},
        "networks": {"torch": _timing(1.0)},
        "pfl_cifar10": pfl,
        "resnet": {"network": "n", "parameters": 1, "clients": 2, "steps": 2, "rounds": {"pytorch-gpu": _timing(1.0)}},
    }
    names = [plain(row[0]) for table in tables(report) for row in table.rows]
    assert "PyTorch loop, GPU, by its defaults (TF32 in convolutions)" in names
    assert len(names) == 4
    assert picture(report, tmp_path / "bench.png")
    assert targets({"pfl_cifar10": pfl}, "gpu") == []
    (row,) = targets({"pfl_cifar10": {**pfl, "ours": {**whole, "tf32": {"seconds": 21.5}}}}, "gpu")
    assert (row["what"], row["value"]) == ("pfl's CIFAR-10 benchmark, whole, in TF32", 21.5)


def _timing(seconds: float) -> dict[str, float]:
    return Timing(seconds, seconds, seconds, 1)._asdict()


def test_tables_and_picture(tmp_path: Path) -> None:
    found = {
        "rounds": {"fedavg": _timing(0.06), "fedgen": _timing(0.08), "evaluation": _timing(0.04), "pfl": _timing(0.3)},
        "ratios": {"roofline": 0.3, "pfl": 5.0},
        "roofline": {"peak_gflops": 190.0, "seconds": 0.015},
        "scaling": {
            name: {"title": name, "size": [1.0, 32.0], "timing": [_timing(1.0), _timing(last)], "exponent": 0.4}
            for name, last in (("runs", 8.0), ("runs-of-fedgen", 4.0))
        },
    }
    rows = targets(found, "cpu")
    assert {row["what"]: row["met"] for row in rows} == {
        "a FedAvg round / its roofline": True,
        "pfl / FedAvg round": True,
        "FedGen round / FedAvg round": True,
        "evaluation / FedAvg round": False,
    }
    assert [(row["value"], row["met"]) for row in targets(found, "gpu")] == [(4.0, False), (8.0, True)]
    report = {**suite.run_bench([], True, lambda line: None), **found, "targets": rows}
    assert [len(table.rows) for table in tables(report)] == [5, 2, 4]
    assert "| pfl | 300.0 | 300.0 … 300.0 | 5.00 |" in markdown(report)
    assert "| evaluation / FedAvg round | 0.67 | ≤ 0.5 × | no |" in markdown(report)
    assert [path.name for path in picture(report, tmp_path / "bench.png")] == ["bench.png", "bench.svg"]


def test_the_command_writes_what_it_found_and_fails_with_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (suite, cli_bench):
        monkeypatch.setattr(module, "PARTS", {"broken": _broken, "fine": _fine})
    result = CliRunner().invoke(app, ["bench", "--only", "fine", "--json", str(tmp_path / "new/found.json")])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "new/found.json").read_text())["memory_mb"] == 900
    result = CliRunner().invoke(app, ["bench"])
    assert result.exit_code == 1
    assert "Not measured: broken: failed: ValueError: no such thing" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "users", "--skip", "users"], "leaves nothing to measure"),
        (["--picture", "bench.pdf"], "NAME.png"),
        (["--json", "/dev/null/found.json"], "cannot be written"),
        (["--json", "/"], "cannot be written"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any) -> dict[str, Any]:
        raise AssertionError("it measures")

    monkeypatch.setattr(suite, "run_bench", never)
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, FedgenError)
    assert said in str(result.exception)


def test_an_unknown_part_is_refused() -> None:
    result = CliRunner().invoke(app, ["bench", "--only", "rouns"])
    assert isinstance(result.exception, FedgenError)
    assert "rounds" in str(result.exception)


def test_a_sweep_is_shown_and_held_to_its_target_where_it_is_whole() -> None:
    whole = {"algorithms": ["fedavg", "fedgen"], "runs": 480, "rounds": 200, "seconds": 96.0}
    (row,) = targets({"sweep": whole}, "gpu")
    assert (row["what"], row["value"], row["met"]) == ("480 runs of 200 rounds in one sweep", 96.0, True)
    assert targets({"sweep": {**whole, "seconds": 121.0}}, "gpu")[0]["met"] is False
    assert targets({"sweep": {**whole, "runs": 48}}, "gpu") == []
    (table,) = tables({"sweep": whole})
    assert [plain(cell) for cell in table.rows[0]] == ["480 runs of 200 rounds (fedavg, fedgen)", "96.0", "1.00"]


def test_every_part_can_be_asked_for() -> None:
    assert set(cli_bench.PARTS) == set(suite.PARTS)
