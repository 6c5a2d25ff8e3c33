"""PyTorch modules as models."""

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

import jax

from fedgen.core.contract import Model
from fedgen.errors import FedgenError

if TYPE_CHECKING:
    from torch import Tensor, nn


def from_torch(
    module: "nn.Module | Callable[[], nn.Module]",
    *,
    sample: "Sequence[int] | Tensor | jax.ShapeDtypeStruct",
    predictor: str | None = None,
    channels_last: bool | None = None,
) -> Model:
    """An `nn.Module` that gives logits [batch, class], as it is, as a model of FedGen.

    `sample` is the shape of one sample as the module takes it, (3, 32, 32) for an image, or an example of it, such as
    `torch.zeros(20, dtype=torch.int64)` for twenty tokens; a `jax.ShapeDtypeStruct` says how FedGen stores it instead,
    from which the module's shape follows. `predictor` names the submodule that makes logits of the
    features (default: the last `nn.Linear`); what it receives is z, a vector for each sample, and everything before it
    is the extractor.

    A module starts with the weights that it has. A function that makes a module, e.g. the class itself, is called for
    each seed, with PyTorch's generator seeded by the run's.

    Images are stored as [height, width, channel] or [height, width] and reach the module as [channel, height, width];
    samples that have the module's own shape pass as they are. Where the two cannot be told apart, `channels_last` says
    whether samples are stored with their channels last.
    """
    if find_spec("torch") is None:
        raise FedgenError("from_torch needs PyTorch: pip install '.[torch]' in FedGen's folder")
    from fedgen.models.torch.build import build

    return build(module, sample, predictor, channels_last)
