"""What the parts of the benchmark share: their state, and the peers that stand beside the simulator."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jax

from fedgen.bench.child import Peer, missing
from fedgen.bench.timing import Timing, reason, take_turns
from fedgen.simulator.devices import available_cores

T = TypeVar("T")
SAME_LOSS = 1e-3  # relative: the same arithmetic in another order of sums
LOSS_ROUNDS = 3  # rounds whose losses are compared
# contender -> (its module, what must be installed, arguments after the workload)
PEERS: dict[str, tuple[str, tuple[str, ...], Callable[[], list[str]]]] = {
    "pytorch": ("torch_loop", ("torch",), lambda: ["1"]),
    "pytorch-2-processes": ("torch_loop", ("torch",), lambda: ["2"]),
    "pytorch-gpu": ("torch_loop", ("torch",), lambda: ["1", "cuda"]),
    "pfl": ("pfl_simulation", ("torch", "pfl"), list),
    "pfl-gpu": ("pfl_simulation", ("torch", "pfl"), lambda: ["cuda"]),
    "flower": ("flower_simulation", ("torch", "flwr", "ray"), lambda: [str(available_cores())]),
}


@dataclass
class Bench:
    """The state that the parts share, and their results."""

    quick: bool
    say: Callable[[str], None]
    folder: Path
    found: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # part or contender -> why
    failed: list[str] = field(default_factory=list)  # parts
    keep: Callable[[], None] = lambda: None  # what was found until now outlasts an abort

    def attempt(self, name: str, measure: Callable[[], T]) -> T | None:
        """What this gives; if it fails, why is reported under this name, and what comes after goes on."""
        try:
            return measure()
        except Exception as error:
            self.absent[name] = f"failed: {reason(error)}"
            return None

    def turns(self, part: str, contenders: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Timing]:
        """The timings of a part's contenders in turns; those that fail are reported under the part's name, too."""
        absent: dict[str, str] = {}
        seconds = take_turns(contenders, repeats, absent)
        self.absent |= {f"{part}, {name}": why for name, why in absent.items()}
        return {name: Timing.of(values) for name, values in seconds.items()}


def start_peer(
    bench: Bench,
    name: str,
    workload: Path,
    losses: dict[str, list[float]],
    stack: ExitStack,
    *,
    same_losses: bool = True,
) -> Peer | None:
    """A peer that runs and reaches our losses; any other is left out, with the reason."""
    module, needed, arguments = PEERS[name]
    if name.endswith("-gpu") and not torch_sees_a_gpu():
        if jax.default_backend() != "cpu":
            bench.absent[name] = "PyTorch has no GPU here"
        return None
    if absent := missing(*needed):
        bench.absent[name] = f"{absent} is not installed (pip install '.[bench]' in FedGen's folder)"
        return None
    bench.say(f"starting {name}")
    try:
        peer = stack.enter_context(closing(Peer(module, str(workload), *arguments())))
        losses[name] = peer.play(LOSS_ROUNDS)["losses"]
    except Exception as error:
        bench.absent[name] = f"failed: {error}"
        return None
    for ours, theirs in zip(losses["fedavg"], losses[name], strict=True):
        if same_losses and abs(ours - theirs) > SAME_LOSS * abs(ours):
            bench.absent[name] = f"reaches other losses than ours ({theirs:.5f}, not {ours:.5f}), so it is not compared"
            return None
    return peer


def torch_sees_a_gpu() -> bool:
    """Whether PyTorch can compute where JAX does, on a GPU."""
    if jax.default_backend() == "cpu" or missing("torch"):
        return False
    import torch

    return torch.cuda.is_available()
