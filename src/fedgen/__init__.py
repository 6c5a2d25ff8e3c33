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
    from fedgen.data.sources import DATASETS
    from fedgen.library import simulate
    from fedgen.models import MODELS
    from fedgen.models.from_equinox import from_equinox
    from fedgen.models.from_flax import from_flax
    from fedgen.models.from_torch import from_torch
    from fedgen.runs.watch import StopRun
    from fedgen.simulator.devices import use_machine_well
    from fedgen.sweeps.sweep import sweep
    from fedgen.use.classifier import Classifier
    from fedgen.use.loaded import Run, load
    from fedgen.use.result import Result

__all__ = [
    "ALGORITHMS",
    "DATASETS",
    "MODELS",
    "Algorithm",
    "Batch",
    "Classifier",
    "Dataset",
    "Federation",
    "FedgenError",
    "Local",
    "Loss",
    "Model",
    "Needs",
    "Params",
    "Result",
    "Round",
    "Run",
    "Step",
    "StopRun",
    "Task",
    "__version__",
    "from_arrays",
    "from_equinox",
    "from_flax",
    "from_torch",
    "load",
    "simulate",
    "sweep",
    "use_machine_well",
]

_MODULES = {
    "fedgen.algorithms": ("ALGORITHMS",),
    "fedgen.core.contract": (
        "Algorithm",
        "Batch",
        "Federation",
        "Local",
        "Loss",
        "Model",
        "Needs",
        "Params",
        "Round",
        "Step",
        "Task",
    ),
    "fedgen.data.dataset": ("Dataset", "from_arrays"),
    "fedgen.data.sources": ("DATASETS",),
    "fedgen.library": ("simulate",),
    "fedgen.models": ("MODELS",),
    "fedgen.models.from_equinox": ("from_equinox",),
    "fedgen.models.from_flax": ("from_flax",),
    "fedgen.models.from_torch": ("from_torch",),
    "fedgen.runs.watch": ("StopRun",),
    "fedgen.simulator.devices": ("use_machine_well",),
    "fedgen.sweeps.sweep": ("sweep",),
    "fedgen.use.classifier": ("Classifier",),
    "fedgen.use.loaded": ("Run", "load"),
    "fedgen.use.result": ("Result",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a part of the package when it is first asked for (PEP 562): `import fedgen` alone loads no JAX."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
