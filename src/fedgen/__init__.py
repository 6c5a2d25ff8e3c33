"""FedGen: data-free knowledge distillation for heterogeneous federated learning, and its baselines, in JAX.

What is exported here is imported when it is first used, so that `import fedgen` itself loads no JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedgen.errors import FedgenError
from fedgen.version import __version__

if TYPE_CHECKING:
    from fedgen.algorithms import ALGORITHMS
    from fedgen.core.contract import Algorithm, Batch, Federation, Local, Loss, Model, Needs, Params, Round, Step, Task
    from fedgen.data.dataset import Dataset, from_arrays
    from fedgen.library import simulate
    from fedgen.simulator.devices import use_machine_well

_EXPORTS = {
    "ALGORITHMS": "fedgen.algorithms",
    **dict.fromkeys(
        ("Algorithm", "Batch", "Federation", "Local", "Loss", "Model", "Needs", "Params", "Round", "Step", "Task"),
        "fedgen.core.contract",
    ),
    "Dataset": "fedgen.data.dataset",
    "from_arrays": "fedgen.data.dataset",
    "simulate": "fedgen.library",
    "use_machine_well": "fedgen.simulator.devices",
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Batch",
    "Dataset",
    "Federation",
    "FedgenError",
    "Local",
    "Loss",
    "Model",
    "Needs",
    "Params",
    "Round",
    "Step",
    "Task",
    "__version__",
    "from_arrays",
    "simulate",
    "use_machine_well",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fedgen' has no attribute '{name}'")
    return getattr(import_module(_EXPORTS[name]), name)
