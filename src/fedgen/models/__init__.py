"""The paper's networks and a larger one, and the registry of classifiers by name.

The networks (`classifiers`, `resnet`, `generator`) are made of `layers`, by XLA. Through `dispatch` the layers that are
small enough are trained by the kernels in `nvidia` where those run.

Networks of other frameworks come in through `adapt`: `from_flax` and `from_equinox` make a `network` of functions of
them, `from_torch` (with `torch`) translates a module's operations, and `split` divides them into extractor and
predictor. `check` looks at whatever a user brings, `check_numbers` at the words that it knows, `seeding` gives it new
weights for each seed, `shared` puts one predictor on all sites' extractors. In them `rewrite` replaces convolutions and
pools by those of `convolution`, where `autotune` finds them faster than XLA's; between them `laid` and `deferring` keep
activations in the order of axes that these like (`channels_last` on a CPU). `precision` lowers the precision of
products.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedgen.registry import Registry

if TYPE_CHECKING:
    from fedgen.core.contract import Model


def _why_no_builder(found: Any) -> str | None:
    """That it is a network; one with weights of its own would have others in each process."""
    from fedgen.models.adapt import BUILDER, framework_of

    if isinstance(found, type) or framework_of(found) is None:
        return None
    return f"is the network itself, a {type(found).__name__}; {BUILDER}"


# name -> builder(sample shape, classes, *, options); the first docstring line is what `fedgen list` shows
MODELS: "Registry[Callable[..., Model]]" = Registry(
    "model",
    {
        "cnn": "fedgen.models.classifiers:cnn",
        "mlp": "fedgen.models.classifiers:mlp",
        "resnet": "fedgen.models.resnet:resnet",
    },
    group="fedgen.models",
    why_not=_why_no_builder,
)
