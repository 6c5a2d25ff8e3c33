"""The registry: a new algorithm is one new file and one line here."""

from fedgen.algorithms.ditto import ditto
from fedgen.algorithms.fedavg import fedavg
from fedgen.algorithms.feddfusion import feddfusion
from fedgen.algorithms.feddistill import feddistill
from fedgen.algorithms.feddistill_plus import feddistill_plus
from fedgen.algorithms.feddyn import feddyn
from fedgen.algorithms.fedensemble import fedensemble
from fedgen.algorithms.fedgen import fedgen
from fedgen.algorithms.fedlc import fedlc
from fedgen.algorithms.fedntd import fedntd
from fedgen.algorithms.fedopt import fedopt
from fedgen.algorithms.fedprox import fedprox
from fedgen.algorithms.fedsam import fedsam
from fedgen.algorithms.moon import moon
from fedgen.algorithms.registry import Builder, build, options_of
from fedgen.algorithms.scaffold import scaffold

ALGORITHMS: dict[str, Builder] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "scaffold": scaffold,
    "feddyn": feddyn,
    "fedopt": fedopt,
    "moon": moon,
    "fedntd": fedntd,
    "fedlc": fedlc,
    "fedsam": fedsam,
    "ditto": ditto,
    "fedensemble": fedensemble,
    "feddistill": feddistill,
    "feddistill+": feddistill_plus,
    "feddfusion": feddfusion,
    "fedgen": fedgen,
}

__all__ = ["ALGORITHMS", "Builder", "build", "options_of"]
