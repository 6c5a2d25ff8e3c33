"""FedGen: data-free knowledge distillation for heterogeneous federated learning, and its baselines, in JAX."""

from fedgen.algorithms import ALGORITHMS
from fedgen.core.contract import Algorithm, Batch, Federation, Local, Loss, Model, Needs, Params, Round, Step, Task
from fedgen.data.dataset import Dataset, from_arrays
from fedgen.errors import FedgenError
from fedgen.library import simulate
from fedgen.simulator.devices import use_machine_well
from fedgen.version import __version__

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
