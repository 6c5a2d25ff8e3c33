"""The paper's networks and a larger one, and the registry of classifiers by name.

The networks (`classifiers`, `resnet`, `generator`) are made of `layers`, by XLA. Through `dispatch` the layers that are
small enough are trained by the kernels in `nvidia` where those run.

Networks of other frameworks come in through `adapt`: `from_flax` and `from_equinox` make a `network` of functions of
them, which `split` divides into extractor and predictor. `check` looks at whatever a user brings.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedgen.registry import Registry

if TYPE_CHECKING:
    from fedgen.core.contract import Model

# name -> builder(sample shape, classes, *, options); the first docstring line is what `fedgen list` shows
MODELS: "Registry[Callable[..., Model]]" = Registry(
    "model",
    {
        "cnn": "fedgen.models.classifiers:cnn",
        "mlp": "fedgen.models.classifiers:mlp",
        "resnet": "fedgen.models.resnet:resnet",
    },
    group="fedgen.models",
)
