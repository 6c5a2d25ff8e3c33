"""The registry: a new algorithm is one new file and one line here."""

from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.feddfusion import feddfusion
from fedgen.algorithms.feddistill import feddistill
from fedgen.algorithms.feddistill_plus import feddistill_plus
from fedgen.algorithms.fedensemble import fedensemble
from fedgen.algorithms.fedgen import fedgen
from fedgen.algorithms.fedprox import fedprox
from fedgen.algorithms.registry import Builder, build, options_of
from fedgen.algorithms.scaffold import scaffold

ALGORITHMS: dict[str, Builder] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "fedensemble": fedensemble,
    "feddistill": feddistill,
    "feddistill+": feddistill_plus,
    "feddfusion": feddfusion,
    "fedgen": fedgen,
}

__all__ = ["ALGORITHMS", "Builder", "build", "options_of"]
