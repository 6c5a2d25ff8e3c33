"""The paper's networks and a larger one, and the registry of classifiers by name.

The networks (`classifiers`, `resnet`, `generator`) are made of `layers`, by XLA. Through `dispatch` the layers that are
small enough are trained by the kernels in `nvidia` where those run.
"""

from collections.abc import Callable

from fedgen.core.contract import Model
from fedgen.models.classifiers import cnn, mlp
from fedgen.models.resnet import resnet

# name -> builder(sample shape, classes, *, options); the first docstring line is what `fedgen list` shows
MODELS: dict[str, Callable[..., Model]] = {"cnn": cnn, "mlp": mlp, "resnet": resnet}
