"""PyTorch's generators under a seed, for code of users that makes networks."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

GENERATORS = threading.RLock()  # to be held while modules are made or called: generators are shared by all threads


@contextmanager
def torch_seeded(seed: int) -> Iterator[None]:
    """Within, PyTorch draws from this seed; its generators are then as they were. Without PyTorch nothing is done."""
    if "torch" not in sys.modules:  # importing it takes seconds, and networks of other frameworks need none
        yield
        return
    import torch

    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
