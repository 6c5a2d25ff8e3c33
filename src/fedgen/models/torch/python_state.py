"""What a module remembers in Python between calls, which an exported graph does not."""

import contextlib
import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from fedgen.errors import FedgenError
from fedgen.models.seeding import GENERATORS, torch_seeded
from fedgen.models.torch.export import no_fast_path, quiet
from fedgen.models.torch.gradients import random_batch, shifted

_CALLS = 2  # in which it changes: what is kept for later, as a table of positions, is made in the first
_ONCE = "but its Python code runs only once here, when it is exported"


def check_python_state(module: nn.Module, example: torch.Tensor) -> None:
    """Refuse a module whose calls change plain attributes or draw by Python or NumPy; `example` is one sample."""
    draw = torch.Generator().manual_seed(0)
    with GENERATORS, _kept_as_they_were(), torch_seeded(0), quiet(), no_fast_path(), shifted(module, draw):
        x = random_batch(module, example, 2, draw)
        for train in (True, False):
            module.train(train)
            try:
                with torch.no_grad():
                    found = [_changed(module, x) for _ in range(_CALLS)]
            except Exception:  # whatever its own code raises is said by those who need what it gives
                continue
            if always := [what for what in found[0] if all(what in others for others in found[1:])]:
                raise FedgenError(always[0])


def _changed(module: nn.Module, x: torch.Tensor) -> list[str]:
    """What a call changes, as sentences."""
    before = _states(module)
    module(x)
    after = _states(module)
    return [sentence for sentence, state in after.items() if before.get(sentence, state) != state]


def _states(module: nn.Module) -> dict[str, Any]:
    """Sentence for when it changes -> what may be compared."""
    numpy = np.random.get_state(legacy=False)
    states = {_drawn("Python's"): random.getstate(), _drawn("NumPy's"): _plain(numpy)}
    for path, inner in module.named_modules():
        for name, value in vars(inner).items():
            states[_kept(f"{path}.{name}".lstrip("."))] = _plain(value)
    return states


def _drawn(whose: str) -> str:
    return f"the module draws from {whose} random generator, {_ONCE}; draw with PyTorch's functions, as torch.rand"


def _kept(name: str) -> str:
    return (
        f"the module changes its attribute '{name}' in each call, {_ONCE}; keep it in a buffer of floating-point"
        " numbers (register_buffer), or leave it out"
    )


def _plain(value: Any) -> Any:
    """What can be compared of a value: numbers, texts and generators, also within containers; the kind of others."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return _plain(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _plain(value.get_state(legacy=False))
    if isinstance(value, dict):
        return [(_plain(key), _plain(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple | deque):
        return [_plain(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return len(value)
    return type(value)


@contextlib.contextmanager
def _kept_as_they_were() -> Iterator[None]:
    """Python's and NumPy's generators: afterwards they are as before."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
