"""The registry: a new algorithm is one new file and one line here."""

from typing import TYPE_CHECKING, Any

from fedgen.registry import Registry, options_of

if TYPE_CHECKING:
    from fedgen.algorithms.registry import Builder, build

ALGORITHMS: "Registry[Builder]" = Registry(
    "algorithm",
    {
        "fedavg": "fedgen.algorithms.fedavg:fedavg",
        "fedprox": "fedgen.algorithms.fedprox:fedprox",
        "scaffold": "fedgen.algorithms.scaffold:scaffold",
        "feddyn": "fedgen.algorithms.feddyn:feddyn",
        "fedopt": "fedgen.algorithms.fedopt:fedopt",
        "moon": "fedgen.algorithms.moon:moon",
        "fedntd": "fedgen.algorithms.fedntd:fedntd",
        "fedlc": "fedgen.algorithms.fedlc:fedlc",
        "fedsam": "fedgen.algorithms.fedsam:fedsam",
        "fedmoments": "fedgen.algorithms.fedmoments:fedmoments",
        "ccvr": "fedgen.algorithms.ccvr:ccvr",
        "fedproto": "fedgen.algorithms.fedproto:fedproto",
        "fedrep": "fedgen.algorithms.fedrep:fedrep",
        "ditto": "fedgen.algorithms.ditto:ditto",
        "fedensemble": "fedgen.algorithms.fedensemble:fedensemble",
        "feddistill": "fedgen.algorithms.feddistill:feddistill",
        "feddistill+": "fedgen.algorithms.feddistill_plus:feddistill_plus",
        "feddfusion": "fedgen.algorithms.feddfusion:feddfusion",
        "fedgen": "fedgen.algorithms.fedgen:fedgen",
    },
    group="fedgen.algorithms",
)

__all__ = ["ALGORITHMS", "Builder", "build", "options_of"]


def __getattr__(name: str) -> Any:
    """Import what builds an algorithm, and JAX with it, on first access (PEP 562)."""
    if name in ("Builder", "build"):
        from fedgen.algorithms import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
